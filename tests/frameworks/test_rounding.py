"""Stochastic rounding: unbiased, to either neighbour, repeated by its seed, off by default."""

import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
front = pytest.importorskip("opentrn.frameworks.torch")
from opentrn import compiler, nki, runtime  # noqa: E402
from opentrn.base import UsageError  # noqa: E402
from opentrn.graph import Builder, Graph  # noqa: E402

RUNS = 60
# Five standard deviations of a mean of all errors: one run in a million is beyond.
SIGMAS = 5
ENABLED, SEED = "NEURON_RT_STOCHASTIC_ROUNDING_EN", "NEURON_RT_STOCHASTIC_ROUNDING_SEED"


@pytest.fixture
def by_chance(monkeypatch):
    """The mode as users switch it on; seeds count through the tests, so that none repeats."""
    monkeypatch.setenv(ENABLED, "1")
    monkeypatch.setenv(SEED, "11")


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5))


def neighbours(x, kind):
    """The numbers of a dtype below and above float32 ones, found by asking torch for the nearest
    and stepping to the other side."""
    near = x.to(kind)
    bits = near.view(torch.int16)
    away, towards = (bits + 1).view(kind).double(), (bits - 1).view(kind).double()
    near, exact = near.double(), x.double()
    other = torch.where(near.abs() < exact.abs(), away, towards)
    other = torch.where(near == exact, near, other)
    return torch.minimum(near, other).numpy(), torch.maximum(near, other).numpy()


def is_unbiased(x, kind, draw):
    """Hold `RUNS` roundings of x to its neighbours, and their mean to x in float64."""
    low, high = neighbours(x, kind)
    exact, total = x.double().numpy(), np.zeros(x.shape)
    for _ in range(RUNS):
        got = draw().double().numpy()
        assert ((got == low) | (got == high)).all()
        total += got
    step = np.where(high > low, high - low, 1)
    chance = (exact - low) / step
    spread = np.sqrt((chance * (1 - chance)).sum() / RUNS)
    off = ((total / RUNS - exact) / step).sum()
    assert abs(off) < SIGMAS * spread
    assert 0.3 < np.abs((total / RUNS - exact) / step).max() / (0.5 / np.sqrt(RUNS)) < 6


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=str)
def test_eager_casts_are_unbiased(by_chance, kind):
    x = numbers(40, 50)
    held = x.to("neuron")
    is_unbiased(x, kind, lambda: held.to(kind).cpu())


@pytest.mark.parametrize("numerics", ["exact", "fast"])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=str)
def test_compiled_casts_are_unbiased(by_chance, numerics, kind):
    torch._dynamo.reset()
    x = numbers(40, 50)
    cast = torch.compile(lambda t: t.to(kind), backend="neuron", options={"numerics": numerics})
    is_unbiased(x, kind, lambda: cast(x))


@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_what_auto_cast_narrows_is_rounded_by_chance(by_chance, numerics):
    """Sums stored as bfloat16: their mean is nearer to the exact one than one rounding is."""
    torch._dynamo.reset()
    x, w = numbers(16, 32), numbers(32, 16).T.contiguous().T
    model = torch.compile(lambda a, b: a.relu() @ b, backend="neuron",
                          options={"dtype": "bfloat16", "numerics": numerics})  # fmt: skip
    exact = (x.double().relu() @ w.double()).numpy()
    found = np.stack([model(x, w).double().numpy() for _ in range(60)])
    errors = np.sqrt((found[0] - exact) ** 2).mean(), np.sqrt((found.mean(0) - exact) ** 2).mean()
    assert len(np.unique(found[:, 0, 0])) > 3
    assert errors[1] < errors[0] / 3


def test_small_steps_add_up(by_chance):
    """The vendor's example: 1024 in float16 stays 1024 when 0.5 is added to nearest."""
    a = torch.tensor(1024.0).half().to("neuron")
    for _ in range(200):
        a = a + 0.5
    # Each step goes up by 1 with probability 1/2: 1124 ± 7.
    assert 1074 < a.item() < 1174


def test_nearest_by_default_and_when_switched_off(monkeypatch):
    x = numbers(30, 40)
    for told in (None, "0", "false"):
        monkeypatch.delenv(ENABLED, raising=False)
        if told is not None:
            monkeypatch.setenv(ENABLED, told)
        assert torch.equal(x.to("neuron").bfloat16().cpu(), x.bfloat16())


def test_numbers_a_dtype_has_stay(by_chance):
    x = torch.tensor([0.0, -0.0, 1.5, -3.0, float("inf"), -float("inf"), 2.0**-133, 3.3895e38])
    x = x.bfloat16().float()
    got = x.to("neuron").bfloat16().cpu()
    assert torch.equal(got.view(torch.int16), x.bfloat16().view(torch.int16))
    assert torch.tensor([float("nan")]).to("neuron").bfloat16().isnan().all()


PROGRAM = """
import torch, opentrn.frameworks.torch
x = torch.linspace(-3, 3, 1001).to("neuron")
print(x.bfloat16().cpu().view(torch.int16).tolist())
print(torch.compile(lambda t: (t * 0.1).bfloat16(), backend="neuron")(x).cpu().float().tolist())
"""


def test_a_seed_repeats_a_process_and_another_does_not(monkeypatch):
    def run(seed):
        monkeypatch.setenv(ENABLED, "true")
        monkeypatch.setenv(SEED, seed)
        return subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True,
                              text=True).stdout  # fmt: skip

    first = run("3")
    assert first == run("3") != run("4")


def test_graphs_of_any_front_door_may_ask_for_it():
    """Without an environment: a context around the model; each seed begins anew."""
    g = Builder()
    x = g.input("x", (8, 100), "float32")
    model = runtime.load(compiler.compile(Graph([x], [g.cast(x, "bfloat16")])))
    given = numbers(8, 100).numpy()

    def once():
        with runtime.stochastic_rounding(seed=9):
            return np.array(model(given), np.float32)

    assert (once() == once()).all()
    assert (once() != np.array(model(given), np.float32)).any()


@pytest.mark.parametrize(("name", "told"), [(ENABLED, "yes"), (SEED, "one")])
def test_values_that_mean_nothing_are_refused(monkeypatch, name, told):
    monkeypatch.setenv(ENABLED, "1")
    monkeypatch.setenv(name, told)
    with pytest.raises(UsageError, match=told) as error:
        nki.told_rounding()
    assert error.value.code == "nki.rounding"


@nki.jit
def halves(x):
    """x as bfloat16, half of the columns by each core."""
    out = nki.language.ndarray(x.shape, nki.language.bfloat16, buffer=nki.language.shared_hbm)
    width = x.shape[1] // 2
    mine = nki.language.ds(nki.language.program_id(0) * width, width)
    tile = nki.language.ndarray((128, width), x.dtype, buffer=nki.language.sbuf)
    narrow = nki.language.ndarray((128, width), out.dtype, buffer=nki.language.sbuf)
    nki.isa.dma_copy(dst=tile, src=x[:, mine])
    nki.isa.tensor_copy(dst=narrow, src=tile)
    nki.isa.dma_copy(dst=out[:, mine], src=narrow)
    return out


def test_every_core_of_a_kernel_rounds_by_chance():
    """1 + 2^-10 lies an eighth of the way from 1 to the next bfloat16, 1 + 2^-7."""
    x = np.full((128, 2048), 1 + 2**-10, np.float32)
    with runtime.stochastic_rounding(7):
        found = np.float64(halves[2](x))
    assert set(np.unique(found)) == {1.0, 1 + 2**-7}
    for half in (found[:, :1024], found[:, 1024:]):
        up, count = (half > 1).mean(), half.size
        assert abs(up - 1 / 8) < SIGMAS * (1 / 8 * 7 / 8 / count) ** 0.5
    assert (np.float64(halves[2](x)) == 1).all()  # outside to the nearest
