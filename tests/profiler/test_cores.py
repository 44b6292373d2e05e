"""Profiles of launches on two cores: time spent waiting for the other core has a name."""

import numpy as np
import pytest

import opentrn.nki as nki
import opentrn.nki.isa as nisa
import opentrn.nki.language as nl
from opentrn.profiler import profile
from opentrn.profiler.path import CORE


@nki.jit
def uneven(x):
    """Both cores exchange their halves; core 1 works on its own for a long time first."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    me, height = nl.program_id(0), x.shape[0] // nl.num_programs(0)
    rows = nl.ds(me * height, height)
    mine = nl.load(x[rows, :])
    for _ in range(20 * me):
        mine = nl.exp(mine)
    theirs = nl.ndarray(mine.shape, mine.dtype)
    nisa.sendrecv(mine, theirs, 1 - me, 1 - me, 0)
    nl.store(out[rows, :], nl.add(mine, theirs))
    return out


def test_the_core_with_less_to_do_waits_for_the_other():
    run = nki.run(uneven[2], np.full((64, 512), -1.0, np.float32))
    waiting, working = (
        profile(one, f"core {n}").summary for n, one in enumerate(run.timelines())
    )  # fmt: skip
    assert waiting.program == "core 0"
    assert (waiting.bound.kind, waiting.bound.resource) == ("dependency", CORE)
    assert waiting.bound.share == pytest.approx(waiting.path[CORE])
    assert waiting.path[CORE] > 0.5 > working.path.get(CORE, 0.0)
    assert working.path["scalar"] > 0.4
    for one in (waiting, working):
        assert sum(one.path.values()) == pytest.approx(1.0)
    # Core 0 had loaded its half long before core 1 came; its sync engine waited for nothing else.
    assert waiting.idle["sync"][CORE] > 0.5 * waiting["total_time"]
    assert "overlap" not in {one.code for one in waiting.advice}
