"""Stand-ins of the Neuron SDK: dtypes, the CPU simulator's package, host calls of scripts."""

import importlib
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from opentrn import nki
from opentrn.base import NotBuiltError, TrnError
from opentrn.dropin import NAMES, install
from opentrn.dropin.standins import cpu_simulator_nki, neuron_dtypes
from opentrn.nki import language as nl

torch = pytest.importorskip("torch", reason="the torch extra is missing")


@nki.jit
def doubled(a):
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.multiply(nl.load(a), 2.0))
    return out


@nki.jit
def copied(a):
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(a))
    return out


def test_the_ways_scripts_import_them():
    with install("trn2"):
        import nki_cpu_simulator.nki.builtin
        import nki_cpu_simulator.nki.isa.constants as constants
        import nki_cpu_simulator.nki.language.dtypes
        import torch_xla.core.xla_model
        from neuronxcc import nki as older  # noqa: F401
        from nki.isa.constants import oob_mode
        from nki_cpu_simulator import nki as simulated
        from torch_xla.core import xla_model as xm

        assert simulated is cpu_simulator_nki
        assert simulated.language is nl
        assert constants.oob_mode is oob_mode is nki.isa.oob_mode
        assert nki_cpu_simulator.nki.language.dtypes.bfloat16 == "bfloat16"
        assert torch_xla.core.xla_model is xm


def test_the_front_end_records_a_kernel_from_shapes_or_raises_what_is_refused():
    with install("trn2"):
        from nki.compiler.frontend import ParserFrontend

    x = np.full((64, 16), np.nan, np.float32)
    result = ParserFrontend().compile(doubled, inputs={"a": x}, target="trn2", lnc=1)
    assert result.checked.complete
    assert result.checked.refusals == []
    assert result.checked.instructions == 3  # a load, a product, a store
    with pytest.raises(NotBuiltError, match="`module`"):
        _ = result.module
    tall = np.zeros((129, 16), np.float32)  # an SBUF tile has 128 partitions
    with pytest.raises(TrnError, match="129"):
        ParserFrontend().compile(doubled, inputs={"a": tall}, target="trn2")


def test_every_name_has_its_root_set_aside_and_put_back():
    roots = {name.partition(".")[0] for name in NAMES}
    with install(), pytest.raises(ModuleNotFoundError, match="a script can import torch_xla"):
        importlib.import_module("torch_xla.nothing")
    assert not roots & {"numpy", "torch", "jax"}


@pytest.mark.parametrize(("told", "chip"), [("gen3", "trn2"), ("gen4", "trn3"), (None, "trn3")])
def test_cpu_simulate_takes_cores_inputs_by_name_and_the_generation(monkeypatch, told, chip):
    monkeypatch.delenv("NEURON_PLATFORM_TARGET_OVERRIDE", raising=False)
    monkeypatch.delenv("NKI_NC_VERSION", raising=False)
    if told:
        monkeypatch.setenv("NKI_NC_VERSION", told)
    seen = []

    def kernel(a):
        seen.append((nki.current_chip().name, nl.num_programs()))
        return doubled.func(a)

    x = np.ones((4, 8), np.float32)
    with nki.use_target("trn3"):
        found = cpu_simulator_nki.cpu_simulate(kernel)[1](a=x)
    np.testing.assert_array_equal(found, 2 * x)
    assert seen == [(chip, 1)]


def test_static_cast_rounds_to_nearest_even_as_ml_dtypes_does():
    x = np.linspace(-300, 300, 4096, dtype=np.float32).reshape(32, 128)
    for name in ("bfloat16", "float16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"):
        kind = np.dtype(getattr(ml_dtypes, name, None) or name)
        made = neuron_dtypes.static_cast(x, name)
        assert made.dtype == kind
        bits = f"u{kind.itemsize}"
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(made.view(bits), x.astype(kind).view(bits))
        np.testing.assert_array_equal(
            neuron_dtypes.static_cast(made, np.float32), made.astype(np.float32)
        )
    halves = np.array([0.5, 1.5, 2.5, -1.5])
    np.testing.assert_array_equal(neuron_dtypes.static_cast(halves, np.int32), [0, 2, 2, -2])


def test_static_cast_of_large_arrays_takes_little_more_memory_than_its_result():
    x = np.linspace(-300, 300, 3 * 5 * 262_145).reshape(3, 5, -1)  # float64, no round number
    for given in (x, x.astype(np.float32), x.astype(np.float32)[:, ::-1]):
        tracemalloc.start()
        made = neuron_dtypes.static_cast(given, "bfloat16")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        expected = given.astype(np.float32).astype(ml_dtypes.bfloat16)
        np.testing.assert_array_equal(made.view("u2"), expected.view("u2"))
        copied = 0 if given.flags.c_contiguous else given.nbytes
        assert peak < made.nbytes + copied + 12 * 2**20
    back = neuron_dtypes.static_cast(made, np.float32)
    np.testing.assert_array_equal(back, made.astype(np.float32))
    assert neuron_dtypes.static_cast(made, "bfloat16") is made


def test_large_arrays_are_packed_along_their_last_axis_only():
    kind = neuron_dtypes.float8_e5m2_x4
    x = np.resize(np.array([0.5, 1, -2, 4, 8, -16, 0.25], np.float32), (5, 4 * 262_147))
    packed = neuron_dtypes.static_cast(x, kind)
    assert (packed.shape, packed.dtype) == ((5, 262_147), kind)
    bytes_of = x.astype(ml_dtypes.float8_e5m2).view("u1")  # four bytes a word, the first lowest
    np.testing.assert_array_equal(packed.view("<u4").view("u1").reshape(x.shape), bytes_of)
    np.testing.assert_array_equal(neuron_dtypes.static_cast(packed, np.float32), x)
    for ragged in (x.reshape(-1, 2), x[:1, :6], np.float32(1)):
        with pytest.raises(TrnError) as refused:
            neuron_dtypes.static_cast(ragged, kind)
        assert refused.value.code == "standins.static_cast"


@pytest.mark.parametrize("name", ["float8_e4m3fn_x4", "float8_e5m2_x4", "float4_e2m1fn_x4"])
def test_packed_arrays_say_what_they_hold_and_go_through_kernels(name):
    kind = getattr(neuron_dtypes, name)
    x = np.tile(np.array([0.5, 1.0, -2.0, 4.0], np.float32), (32, 8))
    packed = neuron_dtypes.static_cast(x, kind)
    assert (packed.shape, packed.dtype) == ((32, 8), kind)
    np.testing.assert_array_equal(neuron_dtypes.static_cast(packed, np.float32), x)
    assert neuron_dtypes.sizeinbytes(kind) == (2 if "float4" in name else 4)
    with nki.use_target("trn3"):
        run = nki.run(copied, packed)
    assert run.program.inputs[0].dtype == name
    np.testing.assert_array_equal(run.outputs, packed.view(run.outputs.dtype))


def test_limits_of_formats():
    for name in ("bfloat16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"):
        ours, known = neuron_dtypes.finfo(name), ml_dtypes.finfo(getattr(ml_dtypes, name))
        for each in ("bits", "max", "min", "eps", "smallest_normal", "tiny"):
            assert getattr(ours, each) == float(getattr(known, each)), (name, each)
    assert neuron_dtypes.finfo(neuron_dtypes.float8_e4m3fn_x4).max == 448
    assert neuron_dtypes.is_float_type(np.float16)
    assert not neuron_dtypes.is_float_type(np.int32)
    with pytest.raises(TrnError):
        neuron_dtypes.sizeinbytes("float33")


def test_tensors_stay_on_the_cpu_and_kernels_take_them():
    with install("trn2"):
        import torch_neuronx
        import torch_xla
        import torch_xla.core.xla_model as xm

        x = torch.ones(4, 8, dtype=torch.bfloat16).to(xm.xla_device())
        found = torch_neuronx.nki_jit(doubled.func)(x)
        xm.mark_step()
        torch_xla.sync()
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found, 2 * x)
        torch.testing.assert_close(torch_neuronx.wrap_nki(doubled)(x), 2 * x)
        assert torch_xla.device() == torch.device("cpu")
        assert (xm.get_ordinal(), xm.xrt_world_size(), xm.is_master_ordinal()) == (0, 1, True)
        with pytest.raises(NotBuiltError, match="DataParallel"):
            torch_neuronx.DataParallel(None)
        traced = torch_neuronx.trace(torch.nn.Flatten(), torch.ones(2, 3, 4))
        assert torch.equal(traced(torch.ones(2, 3, 4)), torch.ones(2, 12))
        with pytest.raises(NotBuiltError):
            xm.mesh_reduce(1)
        assert not hasattr(torch_xla, "__wrapped__")


def test_the_optimizer_steps():
    with install():
        import torch_xla.core.xla_model as xm

    p = torch.nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    xm.optimizer_step(torch.optim.SGD([p], lr=0.5))
    torch.testing.assert_close(p.detach(), torch.full((2,), 0.5))


def test_compiler_hints_change_nothing_and_internals_are_refused():
    from opentrn.nki import compiler, tensor

    assert compiler.enable_stack_allocator(len) is len
    assert compiler.enable_stack_allocator(log_level=1)(len) is len
    assert compiler.skip_middle_end_transformations(len) is len
    with pytest.raises(NotBuiltError, match="kernel_builder"):
        _ = compiler.kernel_builder
    np.testing.assert_array_equal(tensor.identity(3, "bfloat16").astype(np.float32), np.eye(3))
