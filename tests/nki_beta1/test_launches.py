"""Launches: grids, outputs, written arguments, modes, latency, addresses, the drop-in names."""

import numpy as np
import pytest

from opentrn import dropin
from opentrn.base import NotBuiltError, TrnError
from opentrn.nki import beta1 as nki
from opentrn.nki import watch
from opentrn.nki.beta1 import compiler as ncc
from opentrn.nki.beta1 import isa as nisa
from opentrn.nki.beta1 import language as nl


@nki.jit
def numbered(x):
    """Each instance writes its place and the sizes of the grid beside its part of x."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    i, j = nl.program_id(0), nl.program_id(1)
    number = 10 * i + j + 100 * nl.num_programs(1) + 1000 * nl.num_programs()
    nl.store(out[i, j], nl.load(x[i, j]) + float(number))
    return out


@pytest.mark.parametrize(
    "grid",
    [(4, 2), (nl.spmd_dim(nl.nc(2), 2), 2), (nl.nc(2) * 2, 2), (2 * nl.nc(2), 2)],
)
def test_instances_share_their_output(grid):
    x = np.random.default_rng(0).random((4, 2, 3, 5)).astype(np.float32)
    i, j = np.indices((4, 2))
    expected = x + (10 * i + j + 200 + 8000)[:, :, None, None].astype(np.float32)
    np.testing.assert_array_equal(numbered[grid](x), expected)


def test_a_grid_of_one_axis():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out[nl.program_id(0)], nl.load(x[nl.program_id(0)]) * float(nl.program_ndim()))
        return out

    x = np.ones((3, 4, 4), np.float32)
    np.testing.assert_array_equal(kernel[3](x), x)


@pytest.mark.parametrize("grid", [0, -1, 2.5, "two"])
def test_a_grid_has_positive_sizes(grid):
    with pytest.raises(TrnError) as refused:
        numbered[grid]
    assert refused.value.code == "beta1.launch"


def test_written_arguments_are_written():
    @nki.trace
    def kernel(x, y):
        nl.store(y, nl.load(x) * 2.0)

    x, y = np.ones((4, 6), np.float32), np.zeros((4, 6), np.float32)
    assert nki.simulate_kernel(kernel, x, y) is None
    np.testing.assert_array_equal(y, np.full((4, 6), 2.0))
    np.testing.assert_array_equal(x, np.ones((4, 6)))


def test_torch_arguments_and_results():
    torch = pytest.importorskip("torch")
    x = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
    y = torch.zeros(3, 4, dtype=torch.bfloat16)

    @nki.jit
    def kernel(x, y):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x) + 1.0)
        nl.store(y, nl.load(x) * 3.0)
        return out

    assert torch.equal(kernel(x, y), x + 1)
    assert torch.equal(y, x * 3)


def test_every_mode_runs():
    def add_one(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x) + 1.0)
        return out

    x = np.zeros((4, 4), np.float32)
    made = [
        nki.jit(add_one, mode="simulation", platform_target="trn1"),
        nki.jit(mode="torchxla")(add_one),
        nki.baremetal(add_one),
        nki.baremetal(save_neff_name="a.neff")(add_one),
        nki.profile(working_directory=".")(add_one),
        nki.jit(nki.jit(add_one), mode="simulation"),
    ]
    for kernel in made:
        np.testing.assert_array_equal(kernel(x), x + 1)


def test_benchmark_answers_with_simulated_device_time():
    @nki.benchmark(warmup=5, iters=10)
    def small(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x))
        return out

    with pytest.raises(TrnError) as refused:
        small.benchmark_result  # noqa: B018
    assert refused.value.code == "beta1.not_run"
    small(np.ones((128, 16), np.float32))
    short = small.benchmark_result.nc_latency.get_latency_percentile(50)
    small(np.ones((128, 8192), np.float32))
    long = small.benchmark_result.nc_latency.get_latency_percentile(99)
    # 4 MiB in and 4 MiB out at most at the DMA peak of a trn2 core: not less than 20 µs.
    assert 1 < short < 10 < 20 < long < 1000


def test_a_returned_tile_is_a_finding():
    @nki.jit
    def kernel(x):
        return nl.load(x) * 2.0

    with watch() as runs:
        np.testing.assert_array_equal(kernel(np.ones((4, 4), np.float32)), np.full((4, 4), 2.0))
    assert "beta1.returned_tile" in {f.code for f in runs[0].findings}


@pytest.mark.parametrize("loop", [nl.affine_range, nl.sequential_range])
def test_a_loop_is_not_left_early(loop):
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        for i in loop(2):
            nl.store(out[i], nl.load(x[i]))
            return out

    with pytest.raises(TrnError) as refused:
        kernel(np.zeros((2, 4, 4), np.float32))
    assert refused.value.code == "beta1.left_loop"
    assert "for i in loop(2):" in str(refused.value)


def test_a_static_loop_may_be_left():
    @nki.jit
    def kernel(x):
        out = nl.zeros(x.shape, x.dtype, buffer=nl.shared_hbm)
        for i in nl.static_range(4):
            if i == 2:
                break
            nl.store(out[i], nl.load(x[i]))
        return out

    x = np.ones((4, 4, 4), np.float32)
    assert kernel(x).sum(axis=(1, 2)).tolist() == [16, 16, 0, 0]


def test_benchmarks_fill_in_declared_tensors():
    from opentrn.nki.beta1.typing import tensor

    @nki.benchmark
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x))
        return out

    got = kernel(tensor[[16, 32], nl.bfloat16])
    assert got.shape == (16, 32)
    assert got.dtype == nl.bfloat16


def test_tiles_lie_where_their_allocation_says():
    def place(idx, pdim_size, fdim_size):
        return (0, 4096 + idx[0] % 2 * fdim_size)

    @nki.jit
    def kernel(x):
        first = nl.ndarray(
            (4, nl.par_dim(64), 32), nl.float32, buffer=ncc.sbuf.alloc(place), name="first"
        )
        second = nl.ndarray(
            (4, nl.par_dim(64), 32),
            nl.float32,
            buffer=ncc.psum.mod_alloc(base_bank=2, num_bank_tiles=(3,)),
            name="second",
        )
        out = nl.ndarray((4, 64, 32), nl.float32, buffer=nl.shared_hbm)
        for i in nl.affine_range(4):
            first[i] = nl.load(x[i])
            second[i] = nl.copy(first[i])
            nl.store(out[i], second[i])
        return out

    x = np.random.default_rng(1).random((4, 64, 32)).astype(np.float32)
    with watch() as runs:
        np.testing.assert_array_equal(kernel(x), x)
    found = {b.name: (b.space, b.address) for b in runs[0].program.buffers}
    for i in range(4):
        assert found[f"first_{i}"] == ("sbuf", 4096 + i % 2 * 128)
        assert found[f"second_{i}"] == ("psum", (2 + i % 3) * 2048)


def test_addresses_in_a_loop_body_are_decided_once():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        address = 0
        for i in nl.affine_range(3):
            t = nl.ndarray((64, 32), nl.float32, buffer=ncc.sbuf.mod_alloc(base_addr=address),
                           name="t")
            address += 128
            u = nl.ndarray((64, 32), nl.float32, buffer=ncc.sbuf.mod_alloc(base_addr=address),
                           name="u")
            address += 128
            t[...] = nl.load(x[i])
            u[...] = nl.exp(t)
            nl.store(out[i], u)
        return out

    x = np.random.default_rng(2).random((3, 64, 32)).astype(np.float32)
    with watch() as runs:
        np.testing.assert_allclose(kernel(x), np.exp(x), rtol=1e-6)
    places = {(b.name, b.address) for b in runs[0].program.buffers if b.name in ("t", "u")}
    assert places == {("t", 0), ("u", 128)}


def test_decorators_of_the_compiler_change_nothing():
    def kernel(x):
        with ncc.no_reorder():
            return nl.load(x)

    assert ncc.skip_middle_end_transformations(kernel) is kernel
    assert ncc.enable_stack_allocator(log_level=3)(kernel) is kernel
    assert ncc.force_auto_alloc(kernel) is kernel


def test_the_older_names_are_importable_while_installed():
    code = (
        "from neuronxcc import nki\n"
        "import neuronxcc.nki.language as nl, neuronxcc.nki.isa as nisa\n"
        "import neuronxcc.nki.typing as nt, neuronxcc.nki.compiler as ncc\n"
        "from neuronxcc.nki.isa.constants import oob_mode, dge_mode\n"
        "from neuronxcc.nki.language.constants import sizeinbytes\n"
        "from neuronxcc.nki.typing import tensor\n"
        "from neuronxcc.nki import benchmark, baremetal, simulate_kernel, trace\n"
    )
    found: dict = {}
    with dropin.install():
        exec(code, found)
    assert found["nl"] is nl
    assert found["nisa"] is nisa
    assert found["sizeinbytes"](nl.bfloat16) == 2
    assert found["nt"].tensor[128, 512].sizes == (128, 512)


def test_functions_need_a_kernel_of_this_api():
    from opentrn import nki as newer

    with pytest.raises(TrnError) as refused:
        nl.zeros((4, 4), nl.float32)
    assert refused.value.code == "nki.outside_kernel"

    @newer.jit
    def kernel(x):
        nl.zeros((4, 4), nl.float32)
        return x

    with pytest.raises(TrnError) as refused:
        kernel(np.zeros((4, 4), np.float32))
    assert refused.value.code == "beta1.session"


def test_the_target_in_force_goes_before_that_of_the_decorator():
    from opentrn.nki import use_target

    seen = []

    def kernel(x):
        seen.append(nisa.get_nc_version().value)
        nl.store(x, nl.load(x))

    made = nki.jit(kernel, platform_target="trn1")
    made(np.zeros((4, 4), np.float32))
    with use_target("trn3"):
        made(np.zeros((4, 4), np.float32))
    assert seen == [2, 4]


def test_arrays_that_jax_traces_are_refused_at_the_line():
    jax = pytest.importorskip("jax", reason="the extra `jax` is not installed")
    x = np.random.default_rng(0).random((4, 2, 3, 5)).astype(np.float32)
    for f in (jax.jit, jax.vmap, jax.grad):
        with pytest.raises(NotBuiltError, match="numbered was called on arrays") as error:
            f(lambda x: numbered[4, 2](x))(x)
        assert error.value.code == "beta1.jax_traced"
        assert error.value.at.file == __file__
    given = jax.numpy.asarray(x)
    np.testing.assert_array_equal(numbered[4, 2](given), numbered[4, 2](x))
