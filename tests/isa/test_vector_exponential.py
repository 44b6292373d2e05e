"""The Vector Engine's exponential: values in float64, accumulators, refusals, costs by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import DtypeError, LimitError, UsageError
from opentrn.isa.enums import reduce_cmd
from opentrn.isa.vector_exponential import exponential
from tests.isa.vector_forms import NUMBER, carrier, cycles, make, refuse, tile


def form(on="trn3", **more):
    given = {"dst": tile(4, 6), "src": tile(4, 6), "max_value": NUMBER, "reduce_init": NUMBER}
    return make(exponential, on=on, **(given | more))


def run(i, src, max_value=0.0, reduce_init=0.0, accumulators=None):
    held = np.zeros(128, np.float32) if accumulators is None else accumulators
    return i.run(src=src, accumulators=held, max_value=max_value, reduce_init=reduce_init)


@given(st.integers(1, 5), st.integers(1, 9), st.sampled_from(["float32", "bfloat16", "int8"]))
@settings(max_examples=40, deadline=None)
def test_values_and_sums_in_float64(p, f, kind):
    rng = np.random.default_rng(p * f)
    src = carrier(rng.standard_normal((p, f)) * 9, kind)
    top = src.max(1, keepdims=True).astype(np.float32)
    i = form(
        dst=tile(p, f),
        src=tile(p, f, t=kind),
        max_value=tile(p, 1),
        reduce_res=tile(p, 1),
        reduce_cmd=reduce_cmd.reset_reduce,
    )
    made = run(i, src, top)
    # the subtraction rounds to float32, the exponential is taken of that
    want = np.exp((src.astype(np.float32) - top).astype(np.float64))
    np.testing.assert_allclose(made["dst"], want, rtol=3e-7)
    np.testing.assert_allclose(made["reduce_res"], want.sum(1, keepdims=True), rtol=1e-6)
    np.testing.assert_array_equal(made["accumulators"][:p], made["reduce_res"][:, 0])


def test_accumulators_go_on_or_start_from_a_value():
    src, held = np.zeros((4, 6), np.float32), np.full(128, 10, np.float32)
    i = form(reduce_cmd=reduce_cmd.reduce)
    assert run(i, src, accumulators=held)["accumulators"][:5].tolist() == [16] * 4 + [10]
    i = form(reduce_cmd=reduce_cmd.load_reduce)
    assert run(i, src, reduce_init=0.5, accumulators=held)["accumulators"][0] == 6.5
    i = form(reduce_cmd=reduce_cmd.load_reduce, reduce_init=tile(4, 1))
    start = np.arange(4, dtype=np.float32).reshape(4, 1)
    assert run(i, src, reduce_init=start)["accumulators"][:4].tolist() == [6, 7, 8, 9]
    assert np.isnan(run(form(), src)["accumulators"][0])  # idle leaves them undefined


def test_a_start_value_without_load_reduce_is_refused():
    i = form(reduce_cmd=reduce_cmd.reset_reduce)
    src = np.zeros((4, 6), np.float32)
    refuse(UsageError, "exponential.reduce_init", lambda: run(i, src, reduce_init=1.0))
    refuse(LimitError, "exponential.rules", lambda: form(reduce_init=tile(4, 1)))


@pytest.mark.parametrize(
    ("kind", "code", "more"),
    [
        (UsageError, "generation", {"on": "trn2"}),
        (LimitError, "rules", {"reduce_cmd": reduce_cmd.reset}),
        (LimitError, "rules", {"reduce_res": tile(4, 1)}),
        (LimitError, "rules", {"dst": tile(4, 1, 1, 2, 3), "src": tile(4, 6)}),
        (DtypeError, "dst.dtype", {"dst": tile(4, 6, t="uint32")}),
        (DtypeError, "src.dtype", {"src": tile(4, 6, t="tfloat32")}),
        (DtypeError, "max_value.dtype", {"max_value": tile(4, 1, t="bfloat16")}),
    ],
)
def test_what_it_refuses(kind, code, more):
    refuse(kind, f"exponential.{code}", lambda: form(**more))


def test_cost_by_hand():
    wide = {"dst": tile(128, 2048), "src": tile(128, 2048)}
    assert cycles(form(**wide)) == pytest.approx(512)
    more = {"reduce_res": tile(128, 1), "reduce_cmd": reduce_cmd.reset_reduce}
    assert cycles(form(**wide, **more)) == pytest.approx(512 + 64)
    assert cycles(form()) == pytest.approx(64)
