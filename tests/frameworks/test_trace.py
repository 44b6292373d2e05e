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


@nki.jit
def shifted(x, by):
    """x + by, the rows shared by the instances; and -x."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    low = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows = x.shape[0] // nl.num_programs(0)
    here = slice(nl.program_id(0) * rows, (nl.program_id(0) + 1) * rows)
    tile = nl.load(x[here])
    nl.store(out[here], nl.add(tile, by))
    nl.store(low[here], nl.negative(tile))
    return out, low


@neuron.nki_op("opentrn_tests::columns", mutates_args={})
def columns(x: torch.Tensor, by: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Ops of torch around a launch on two cores."""
    out, low = shifted[2](x.t().contiguous(), by)
    return out.t() * 2, low.t().contiguous()


@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_kernels_are_ops_of_a_compiled_graph(numerics):
    torch._dynamo.reset()
    neuron.reset()

    def function(x):
        high, low = columns(square(x + 1), 0.5)
        return high + 3 * low

    x = torch.randn(3, 8, requires_grad=True)
    compiled = torch.compile(function, backend="neuron", fullgraph=True,
                             options={"numerics": numerics})  # fmt: skip
    wanted = 2 * ((x + 1) ** 2 + 0.5) - 3 * (x + 1) ** 2
    torch.testing.assert_close(compiled(x.detach()), wanted.detach())
    assert neuron.report().graphs == 1
    torch._dynamo.reset()
    trained = torch.compile(lambda x: (square(x + 1) * 2).sum(), backend="neuron", fullgraph=True)
    trained(x).backward()
    torch.testing.assert_close(x.grad, 4 * (x.detach() + 1))


def test_a_traced_module_and_a_training_step_hold_kernels():
    x = torch.randn(4, 6)
    traced = neuron.trace(lambda x: columns(x, 2.0)[0] + 1, x)
    torch.testing.assert_close(traced(x), 2 * (x + 2) + 1)
    ours, theirs = nn.Linear(6, 6), nn.Linear(6, 6)
    theirs.load_state_dict(ours.state_dict())
    step = neuron.train_step(ours, torch.optim.SGD(ours.parameters(), 0.1),
                             lambda model, x: square(model(x)).mean())  # fmt: skip
    optimizer = torch.optim.SGD(theirs.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = (theirs(x) ** 2).mean()
        loss.backward()
        torch.testing.assert_close(step(x), loss.detach())
        optimizer.step()
    torch.testing.assert_close(ours.weight, theirs.weight)


def test_an_op_on_the_device_stays_there_and_takes_time():
    x = torch.randn(4, 6).to("neuron").requires_grad_()
    before = torch.neuron.device_seconds()
    found = square(x)
    assert found.device.type == "neuron"
    assert torch.neuron.device_seconds() > before
    found.sum().backward()
    torch.testing.assert_close(x.grad.cpu(), 2 * x.detach().cpu())
    assert squares(x.detach().bfloat16()).device.type == "neuron"  # a kernel by itself


@nki.jit
def grown(x):
    nl.store(x, nl.add(nl.load(x), 1.0))
    return x


@neuron.nki_op("opentrn_tests::grow", mutates_args={"x"})
def grow(x: torch.Tensor) -> None:
    """x + 1, written into x."""
    grown(x)


@pytest.mark.parametrize("home", ["cpu", "neuron"])
def test_what_a_kernel_writes_reaches_the_callers_tensor(home):
    x, strided = torch.zeros(4, 6, device=home), torch.zeros(6, 8, device=home).t()[::2]
    grown(x)
    grown(strided)
    assert torch.equal(x.cpu(), torch.ones(4, 6))
    assert torch.equal(strided.cpu(), torch.ones(4, 6))
    torch._dynamo.reset()
    neuron.reset()

    def function(x):
        y = x * 2
        grow(y)
        return y + 1

    found = torch.compile(function, backend="neuron")(x)
    assert torch.equal(found.cpu(), torch.full((4, 6), 4.0))
    told = neuron.report()
    assert told.graphs == 2
    only, = told.breaks
    assert "nki_op" in only.why
