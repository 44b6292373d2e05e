"""Laws of plans: more machines are never slower, more work never shorter, looser limits no worse.

Machines come in powers of two, so that a batch divides among all of them.
"""

import pytest

from opentrn.base import CapacityError, LimitError
from opentrn.plan import plan, plan_serving

MODELS = ("llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "mamba-2.8b")
MACHINES = ("trn2.48xlarge", "trn1.32xlarge", "p5")


def best(ask, *arguments, **options):
    """The best plan, None where nothing fits or is in time."""
    try:
        return ask(*arguments, keep=1, **options).best
    except (CapacityError, LimitError):
        return None


def rising(numbers):
    """Whether numbers do not fall, Nones left out; some must be there."""
    found = [n for n in numbers if n is not None]
    return bool(found) and all(b >= a * (1 - 1e-9) for a, b in zip(found, found[1:], strict=False))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("model", MODELS)
def test_training(model, machine):
    def seconds(count=64, batch=512, sequence=4096):
        one = best(plan, model, machine, count, batch=batch, sequence=sequence)
        return one and one.step_time_s

    assert rising(seconds(count=2**k) for k in (6, 5, 4, 3, 2, 1, 0))
    assert rising(seconds(sequence=2**k) for k in range(9, 15))
    assert rising(seconds(batch=2**k) for k in range(8, 12))


@pytest.mark.parametrize("machine", MACHINES[1:])
@pytest.mark.parametrize("model", MODELS[:3])
def test_serving(model, machine):
    def rate(count=4, **options):
        one = best(plan_serving, model, machine, count, **{"tpot_s": 0.2} | options)
        return one and one.extra["tokens_per_s"]

    assert rising(rate(count=2**k) for k in range(4))
    assert rising(rate(prompt=2**k) for k in (13, 11, 9, 7))
    assert rising(rate(tpot_s=limit) for limit in (0.02, 0.05, 0.2, 1.0))
    assert rising(rate(weight_bytes=each) for each in (2.0, 1.0, 0.5))
