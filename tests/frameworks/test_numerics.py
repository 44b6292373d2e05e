"""Numerics of the front door: who computes, what a report says, programs that are only timed."""

import pytest

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")

import opentrn.frameworks.torch as neuron  # noqa: E402
from opentrn import compiler  # noqa: E402
from opentrn.base import TrnError, UsageError  # noqa: E402


@pytest.fixture
def model():
    torch.manual_seed(0)
    torch._dynamo.reset()
    neuron.reset()
    return torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.GELU(), torch.nn.Linear(24, 4))


def compiled(model, numerics):
    return torch.compile(model, backend="neuron", options={"numerics": numerics})


@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_both_give_eagers_numbers_and_gradients(model, numerics):
    x = torch.randn(8, 16)
    model(x).square().sum().backward()
    wanted = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    compiled(model, numerics)(x).square().sum().backward()
    for p, grad in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(p.grad, grad, rtol=1e-4, atol=1e-4)
    assert {c.numerics for c in neuron.report().compilations} == {numerics}
    assert f"numerics {numerics}: it was asked for" in str(neuron.report())


def test_the_numerics_in_force_are_the_default(model):
    with compiler.use_numerics("fast"):
        torch.compile(model, backend="neuron")(torch.randn(8, 16))
    assert [c.numerics for c in neuron.report().compilations] == ["fast"]
    with pytest.raises(UsageError, match="no numerics 'most'"), compiler.use_numerics("most"):
        pass


def test_none_has_times_and_shapes_and_refuses_to_tell_numbers(model):
    found = compiled(model, "none")(torch.randn(8, 16))
    assert found.shape == (8, 4)
    assert (found + 1).argmax(-1).shape == (8,)
    assert neuron.report().compilations[0].device_seconds > 0
    with pytest.raises(UsageError) as refused:
        found.sum().item()
    assert refused.value.code == "runtime.no_numbers"
    assert "test_numerics.py" in str(refused.value.at)
    kept = torch.ones(8, 4)
    for read in (found.tolist, found.detach().numpy, lambda: kept.copy_(found),
                 lambda: torch.add(found.detach(), 1, out=kept)):  # fmt: skip
        with pytest.raises(UsageError, match="only timed"):
            read()
    found.sum().backward()
    assert model[0].weight.grad.shape == (24, 16)
    with pytest.raises(UsageError, match="only timed"):
        model[0].weight.grad.max().item()


def test_a_training_step_that_is_only_timed_changes_nothing(model):
    optimizer = torch.optim.AdamW(model.parameters())
    before = [p.detach().clone() for p in model.parameters()]
    step = neuron.train_step(model, optimizer, lambda m, x: m(x).square().mean(), numerics="none")
    step(torch.randn(8, 16))
    assert step.device_seconds > 0
    assert all(map(torch.equal, before, model.parameters()))


def test_a_trace_and_a_comparison_need_numbers(model):
    x = torch.randn(8, 16)
    for call in (neuron.trace, neuron.diff):
        with pytest.raises(TrnError) as refused:
            call(model, x, numerics="none")
        assert refused.value.code == "runtime.no_numbers"
    exact, fast = (neuron.trace(model, x, numerics=n)(x) for n in ("exact", "fast"))
    torch.testing.assert_close(exact, fast, rtol=1e-5, atol=1e-5)
    assert neuron.diff(model, x, numerics="fast").agrees
