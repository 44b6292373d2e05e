"""Programs moved to another chip: the same instructions, priced and judged anew."""

import numpy as np
import pytest

import opentrn.nki as nki
import opentrn.nki.isa as nisa
import opentrn.nki.language as nl
from opentrn import hw, isa, sim
from opentrn.base import LimitError, ShapeError, TrnError


@nki.jit
def product(a, b):
    out = nl.ndarray((128, b.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    left = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    right = nl.ndarray(b.shape, dtype=b.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=a)
    nisa.dma_copy(dst=right, src=b)
    acc = nl.ndarray((128, b.shape[1]), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=acc, stationary=left, moving=right)
    done = nl.ndarray((128, b.shape[1]), dtype=nl.float32, buffer=nl.sbuf)
    for _ in range(3):
        nisa.tensor_copy(dst=done, src=acc)
    nisa.dma_copy(dst=out, src=done)
    return out


def ran(columns, target):
    with nki.use_target(target):
        return nki.run(
            product, np.ones((128, 128), np.float32), np.ones((128, columns), np.float32)
        )


@pytest.mark.parametrize(("first", "second"), [("trn2", "trn1"), ("trn1", "trn3")])
def test_a_moved_program_takes_the_time_of_one_recorded_there(first, second):
    here, there = ran(512, first), ran(512, second)
    moved = isa.for_chip(here.program, hw.chip(second))
    assert moved.target == second
    assert here.program.target == first  # the original is left alone
    found = sim.timeline(moved, hw.chip(second))
    assert found.total_ns == there.timeline().total_ns != here.timeline().total_ns
    assert moved.counts() == here.program.counts()


def test_what_the_other_chip_refuses_is_refused_at_the_line():
    wide = ran(1024, "trn3")
    with pytest.raises((LimitError, ShapeError), match="at most 512") as refused:
        isa.for_chip(wide.program, hw.chip("trn2"))
    assert isinstance(refused.value, TrnError)
    assert refused.value.at.text == "nisa.nc_matmul(dst=acc, stationary=left, moving=right)"


def test_a_variant_changes_only_what_its_fact_is_about():
    here = ran(512, "trn2")
    slow = hw.variant(hw.chip("trn2"), ["trn2.tensor.clock=1.2GHz"])
    moved = isa.for_chip(here.program, slow)
    for old, new in zip(here.program.instructions(), moved.instructions(), strict=True):
        if old.opcode == "nc_matmul":
            # Half the clock: twice the time of the PE array.
            assert new.form.cost.busy_ns == pytest.approx(2 * old.form.cost.busy_ns)
        elif old.engine != "dma":
            assert new.form.cost.busy_ns == old.form.cost.busy_ns
        assert new.operands == old.operands
        assert new.where == old.where
