"""Models as functions: values, types in and out, refusals, times."""

import ml_dtypes
import numpy as np
import pytest

import opentrn.nki as nki
import opentrn.nki.isa as nisa
import opentrn.nki.language as nl
from opentrn import runtime
from opentrn.base import (
    DtypeError,
    FileFormatError,
    LimitError,
    MissingFileError,
    ShapeError,
    UsageError,
)
from opentrn.runtime import model as model_file
from tests.runtime import kernels


@pytest.fixture(scope="module")
def doubled():
    return runtime.load(kernels.compiled(kernels.doubled, kernels.floats((128, 8))))


def test_a_file_runs_again(tmp_path):
    executable = kernels.compiled(kernels.doubled, kernels.floats((128, 8)))
    executable.save(tmp_path / "m.trn")
    model = runtime.load(tmp_path / "m.trn")
    x = kernels.floats((128, 8)) + 3
    assert np.array_equal(model(x), 2 * x)
    assert np.array_equal(model(x + 1), 2 * x + 2)
    assert [spec.shape for spec in model.inputs] == [(128, 8)]
    assert repr(model) == "<Model doubled on ND 0:NC 0 (trn2)>"


def test_files_that_are_none(tmp_path):
    with pytest.raises(MissingFileError):
        runtime.load(tmp_path / "none.trn")
    (tmp_path / "odd.trn").write_text("not an executable")
    with pytest.raises(FileFormatError):
        runtime.load(str(tmp_path / "odd.trn"))


def test_several_outputs():
    a, b = kernels.floats((128, 8)), kernels.floats((128, 8)) + 1
    model = runtime.load(kernels.compiled(kernels.sum_and_difference, a, b))
    total, difference = model(a, b)
    assert np.array_equal(total, a + b)
    assert np.array_equal(difference, a - b)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_narrow_formats(dtype):
    x = kernels.floats((128, 4), dtype)
    model = runtime.load(kernels.compiled(kernels.doubled, x))
    found = model(x)
    assert found.dtype == dtype
    assert np.array_equal(found.astype(np.float64), 2 * x.astype(np.float64))


def test_torch_in_torch_out():
    torch = pytest.importorskip("torch", reason="the torch extra is not installed")
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.arange(1024, dtype=torch.float32).reshape(128, 8).remainder(7).to(kind)
        array = kernels.floats((128, 8), str(kind).split(".")[1])
        model = runtime.load(kernels.compiled(kernels.doubled, array))
        found = model(x)
        assert found.dtype == kind
        assert torch.equal(found, x * 2)
        turned = x.t().contiguous().t()  # the same values with other strides
        assert torch.equal(model(turned), x * 2)


@pytest.fixture(scope="module")
def integers():
    return runtime.load(kernels.compiled(kernels.doubled, kernels.floats((128, 4), np.int32)))


def test_64_bit_integers_are_narrowed_when_they_fit(integers):
    x = np.arange(512, dtype=np.int64).reshape(128, 4) - 7
    found = integers(x)
    assert found.dtype == np.int32
    assert np.array_equal(found, 2 * x)
    assert np.array_equal(integers(x.tolist()), 2 * x)
    for wrong in (2**31, -(2**31) - 1):
        x[5, 1] = wrong
        with pytest.raises(LimitError, match=str(wrong)) as raised:
            integers(x)
        assert raised.value.code == "runtime.input_range"
        assert raised.value.neuron == "NRT_EXEC_BAD_INPUT 1002"


def test_torch_integers_are_narrowed(integers):
    torch = pytest.importorskip("torch", reason="the torch extra is not installed")
    x = torch.arange(512).reshape(128, 4)
    found = integers(x)
    assert found.dtype == torch.int32
    assert torch.equal(found, (2 * x).int())


def test_bad_inputs_say_what_is_wanted(doubled):
    x = kernels.floats((128, 8))
    with pytest.raises(ShapeError, match="takes 1 inputs, 2 were given") as raised:
        doubled(x, x)
    assert raised.value.fix == "inputs: x float32[128, 8]"
    with pytest.raises(ShapeError, match=r"shape \[8, 128\], not \[128, 8\]") as raised:
        doubled(x.T)
    assert raised.value.code == "runtime.input_shape"
    for array, fix in (
        (x.astype(np.float64), "pass x.astype(numpy.float32)"),
        (x.astype(np.int32), "pass x.astype(numpy.float32)"),
        (x.astype(ml_dtypes.bfloat16), "pass x.astype(numpy.float32)"),
    ):
        with pytest.raises(DtypeError, match=f"is {array.dtype}, not float32") as raised:
            doubled(array)
        assert raised.value.code == "runtime.input_dtype"
        assert raised.value.fix == fix
        assert raised.value.neuron == "NRT_EXEC_BAD_INPUT 1002"
        assert len(str(raised.value).splitlines()) == 5


@nki.jit
def counted_up(x):
    """x += 1 where it lies."""
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1)
    nisa.dma_copy(dst=x, src=tile)
    return x


def test_inputs_the_program_writes_are_written():
    x = kernels.floats((128, 4))
    executable = kernels.compiled(counted_up, x.copy())
    assert executable.program.mutated
    model = runtime.load(executable)
    held = x.copy()
    assert np.array_equal(model(held), x + 1)
    assert np.array_equal(held, x + 1)
    model(held)
    assert np.array_equal(held, x + 2)
    held.flags.writeable = False
    with pytest.raises(UsageError) as raised:
        model(held)
    assert raised.value.code == "runtime.read_only"


def test_written_torch_inputs():
    torch = pytest.importorskip("torch", reason="the torch extra is not installed")
    model = runtime.load(kernels.compiled(counted_up, kernels.floats((128, 4))))
    held = torch.zeros(4, 128).t()
    model(held)
    assert torch.equal(held, torch.ones(128, 4))


def test_the_wrong_chip_is_refused():
    executable = kernels.compiled(kernels.doubled, kernels.floats((128, 8)))
    with pytest.raises(UsageError, match="compiled for trn2, ND 0:NC 0 is trn1") as raised:
        runtime.load(executable, runtime.devices("trn1")[0])
    assert raised.value.code == "runtime.target"
    assert runtime.load(executable, runtime.devices("trn2.48xlarge")[9]).device.chip_index == 1


def test_time_is_remembered(doubled):
    timeline = doubled.time()
    assert doubled.time() is timeline
    # Load: 1.3 us to the first byte; store the same; the bytes and the multiply come on top.
    assert timeline.total_ns > 2 * 1300


def test_time_follows_the_loops_that_ran():
    x = kernels.floats((128, 4))
    count = np.full((1, 1), 2, np.int32)
    model = runtime.load(kernels.compiled(kernels.as_often_as_told, x, count))
    with pytest.raises(UsageError) as raised:
        model.time()
    assert raised.value.code == "runtime.not_run"
    lasting = {}
    for turns in (1, 5, 9, 5):
        found = model(x, np.full((1, 1), turns, np.int32))
        assert np.array_equal(found, x + turns)
        lasting.setdefault(turns, model.time())
        assert model.time() is lasting[turns]
    ns = {turns: one.total_ns for turns, one in lasting.items()}
    assert ns[9] - ns[5] == pytest.approx(ns[5] - ns[1], rel=1e-6)
    assert ns[5] > ns[1]


def test_batches(doubled, capsys):
    batches = [kernels.floats((128, 8)) + n for n in range(3)]
    found = doubled.map(batches)
    assert all(np.array_equal(y, 2 * x) for x, y in zip(batches, found, strict=True))
    assert len(doubled.map((x,) for x in batches)) == 3  # inputs as tuples, from a generator
    assert capsys.readouterr().err == ""
    with pytest.raises(DtypeError):
        doubled.map([batches[0], batches[1].astype(np.float64)])


def test_long_loops_show_a_bar(doubled, monkeypatch, capsys):
    monkeypatch.setattr(model_file, "PATIENCE", 0.0)
    shown = []
    monkeypatch.setattr(
        model_file._Progress, "_show",
        lambda self: (shown.append(self.total), show(self)), raising=True,
    )  # fmt: skip
    doubled.map([kernels.floats((128, 8))] * 3)
    assert shown == [3]
    doubled.map([kernels.floats((128, 8))] * 3, progress=False)
    doubled.map([kernels.floats((128, 8))])  # finished when it would be shown
    assert shown == [3]


show = model_file._Progress._show
