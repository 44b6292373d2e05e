"""Ahead-of-time compilation: values, structure of results, files, flags; kernels as torch ops."""

import pytest

from opentrn import nki
from opentrn.base import FileFormatError, NotBuiltError, TrnError, UnsupportedError, UsageError
from opentrn.dropin import install
from opentrn.nki import language as nl

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
nn = torch.nn
neuron = pytest.importorskip("opentrn.frameworks.torch", reason="the extra `torch`")


class Classifier(nn.Module):
    """Scores, and the best class of each row, by name."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x, extra):
        scores = self.linear(x) + extra["shift"]
        return {"scores": scores, "best": [scores.argmax(-1), (scores.sum(),)]}


@pytest.fixture
def given():
    torch.manual_seed(0)
    return Classifier().eval(), (torch.randn(3, 8), {"shift": torch.randn(4)})


def assert_same(found, wanted):
    torch.testing.assert_close(found["scores"], wanted["scores"])
    assert found["best"][0].dtype == torch.int64
    assert torch.equal(found["best"][0], wanted["best"][0])
    torch.testing.assert_close(found["best"][1][0], wanted["best"][1][0])
    assert found["best"][1][0].shape == ()


def test_a_traced_module_gives_its_results_as_it_nests_them(given, tmp_path):
    model, args = given
    with torch.no_grad():
        wanted = model(*args)
    traced = neuron.trace(model, args)
    assert_same(traced(*args), wanted)
    path = neuron.save(traced, tmp_path / "model.trn")
    loaded = neuron.load(path)
    assert_same(loaded(*args), wanted)
    assert 1e-6 < loaded.model.time().total_ns * 1e-9 < 1e-3


def test_functions_and_flags(given):
    x = torch.randn(4, 64)
    traced = neuron.trace(lambda x: x @ x.T, x, compiler_workdir="here",
                          compiler_args=["--target=trn1", "--auto-cast", "matmult", "-O1"])
    assert traced.executable.target == "trn1"
    worst = (traced(x) - x @ x.T).abs().max()
    assert 1e-4 < worst < 1  # bfloat16, of sums of 64 products
    with pytest.raises(UsageError, match="--fast"):
        neuron.trace(nn.ReLU(), x, compiler_args="--fast-and-wrong yes")
    with pytest.raises(UsageError, match="auto-cast"):
        neuron.trace(nn.ReLU(), x, compiler_args="--auto-cast some")
    with pytest.raises(UsageError, match="input_output_aliases"):
        neuron.trace(nn.ReLU(), x, input_output_aliases={0: 1})


def test_wrong_inputs_and_files_are_refused(given, tmp_path):
    model, args = given
    traced = neuron.trace(model, args)
    for wrong in (torch.randn(2, 8), torch.randn(3, 8).bfloat16()):
        with pytest.raises((ValueError, TypeError)) as caught:
            traced(wrong, args[1])
        assert isinstance(caught.value, TrnError)
    with pytest.raises(UnsupportedError, match="float64"):
        traced(torch.randn(3, 8).double(), args[1])
    torch.save(model.state_dict(), tmp_path / "pickle.pt")
    with pytest.raises(FileFormatError):
        neuron.load(tmp_path / "pickle.pt")


def test_the_vendors_names(tmp_path):
    with install("trn1"):
        import torch_neuronx

        x = torch.randn(2, 3)
        traced = torch_neuronx.trace(nn.Tanh(), x)
        assert traced.executable.target == "trn1"
        torch_neuronx.save(traced, tmp_path / "tanh.trn")
        torch.testing.assert_close(torch_neuronx.load(tmp_path / "tanh.trn")(x), x.tanh())
        with pytest.raises(NotBuiltError, match="DataParallel"):
            torch_neuronx.DataParallel(traced)


# ------------------------------------------------------------------------------- kernels as ops


@nki.jit
def squares(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nl.store(out, nl.multiply(tile, tile))
    return out


@neuron.nki_op("opentrn_tests::square", mutates_args={})
def square(x: torch.Tensor) -> torch.Tensor:
    """x², by a kernel."""
    return neuron.wrap_nki(squares)(x)


square.register_autograd(
    lambda ctx, grad: 2 * ctx.saved_tensors[0] * grad,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


def test_a_kernel_is_an_op_with_a_gradient():
    x = torch.randn(4, 6, requires_grad=True)
    torch.testing.assert_close(square(x), x * x)
    torch.testing.assert_close(torch.ops.opentrn_tests.square(x), x * x)
    square(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


def test_an_op_knows_its_shape_without_numbers():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        found = torch.ops.opentrn_tests.square(torch.empty(3, 5, dtype=torch.bfloat16))
    assert (tuple(found.shape), found.dtype) == ((3, 5), torch.bfloat16)


def test_a_compiled_function_runs_kernels_between_its_graphs():
    torch._dynamo.reset()
    neuron.reset()

    def function(x):
        return square(x + 1) * 2

    x = torch.randn(3, 8)
    torch.testing.assert_close(torch.compile(function, backend="neuron")(x), 2 * (x + 1) ** 2)
    told = neuron.report()
    assert told.graphs == 2
    only, = told.breaks
    assert "nki_op" in only.why
