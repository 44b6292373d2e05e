"""Every check of Strict: what each action does, that defaults are documented and explained."""

from dataclasses import fields

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import TrnError, explanation
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.sim import Finding, Strict

ONES = np.ones((16, 16), np.float32)
ACTIONS = ("error", "report", "ignore")
CHECKS = [field for field in fields(Strict) if field.default in ACTIONS]


def stored(tile, name="out"):
    out = nl.ndarray(tile.shape, nl.float32, buffer=nl.shared_hbm, name=name)
    nl.store(out, tile)
    return out


def uninitialised(x):
    t = nl.ndarray((16, 16), nl.float32)
    return stored(nl.copy(t))


def unwritten_output(x):
    return nl.ndarray((16, 16), nl.float32, buffer=nl.shared_hbm)


def partial_output(x):
    out = nl.ndarray((16, 16), nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(out[0:8], x[0:8])
    return out


def accumulate_unset(x):
    acc = nl.ndarray((16, 16), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(acc, nl.load(x), nl.load(x), accumulate=True)
    return stored(acc)


def reset_in_reduction(x):
    acc, t = nl.ndarray((16, 16), nl.float32, buffer=nl.psum), nl.load(x)
    nisa.nc_matmul(acc, t, t)
    nisa.memset(acc, 0.0)
    nisa.nc_matmul(acc, t, t)
    return stored(acc)


def read_open_group(x):
    acc, t = nl.ndarray((16, 16), nl.float32, buffer=nl.psum), nl.load(x)
    nisa.nc_matmul(acc, t, t)
    nl.copy(acc)
    nisa.nc_matmul(acc, t, t)
    return stored(acc)


def mutated_input(x):
    nl.store(x, nl.load(x))
    return stored(nl.load(x))


def ignored_operand(x):
    t = nl.load(x)
    nisa.activation(t, nl.copy, t, reduce_op=nl.add)
    return stored(t)


def disputed_operand(x):
    t = nl.load(x)
    nisa.activation(t, nl.copy, t, bias=nl.full((16, 1), 1.0, nl.float32))
    return stored(t)


def undefined_operand(x):
    t = nl.ndarray((16, 16), nl.int8)
    nisa.memset(t, 300)
    return stored(t)


KERNELS = [
    uninitialised, unwritten_output, partial_output, accumulate_unset, reset_in_reduction,
    read_open_group, mutated_input, ignored_operand, disputed_operand,
    undefined_operand,
]  # fmt: skip
each = pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)


@each
def test_report_makes_one_finding(kernel):
    with nki.use_strict(Strict(**{kernel.__name__: "report"})):
        run = nki.run(kernel, ONES)
    assert [f.code for f in run.findings] == [f"sim.{kernel.__name__}"]
    assert run.outputs.shape == (16, 16)


@each
def test_ignore_makes_none(kernel):
    with nki.use_strict(Strict(**{kernel.__name__: "ignore"})):
        assert nki.run(kernel, ONES).findings == ()


@each
def test_error_raises_with_the_checks_code(kernel):
    with nki.use_strict(Strict(**{kernel.__name__: "error"})), pytest.raises(TrnError) as caught:
        nki.run(kernel, ONES)
    assert caught.value.code == f"sim.{kernel.__name__}"
    assert caught.value.rule
    assert caught.value.fix


def test_every_check_is_documented_and_explained():
    for field in fields(Strict):
        assert f"    {field.name} " in Strict.__doc__
    for check in CHECKS:
        assert explanation(f"sim.{check.name}") is not None, check.name
    assert len(CHECKS) >= 8


def test_checks_hold_inside_the_block_only():
    with nki.use_strict(Strict(uninitialised="error")), pytest.raises(TrnError):
        nki.run(uninitialised, ONES)
    assert len(nki.run(uninitialised, ONES).findings) == 1


def test_a_clean_kernel_has_no_findings_under_the_hardest_checks():
    hardest = Strict(**{check.name: "error" for check in CHECKS})
    with nki.use_strict(hardest):
        run = nki.run(lambda x: stored(nl.softmax(nl.load(x), 1)), ONES)
    assert run.findings == ()


def test_a_finding_without_a_place_has_no_place():
    finding = Finding("sim.uninitialised", "what", None, "rule", "fix")
    assert finding.json()["at"] is None
    assert str(finding).splitlines()[1] == "  rule  rule"
