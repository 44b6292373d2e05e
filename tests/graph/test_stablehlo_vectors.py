"""openxla/stablehlo's test vectors against `graph.evaluate`, each within its own check.

A random tenth in a run of all tests; all with OPENTRN_STABLEHLO_ALL=1 (`make stablehlo`).
"""

import os
import random

import numpy as np
import pytest

from tests.graph import stablehlo_compiled as compiled
from tests.graph import stablehlo_vectors as data

pytest.importorskip("jaxlib", reason="StableHLO is read through jaxlib (the extra `jax`)")


@pytest.fixture(scope="module")
def vectors():
    if not data.vectors():
        pytest.skip("openxla/stablehlo's testdata is not here: set OPENTRN_STABLEHLO")
    return data.vectors()


def test_vectors_pass_their_own_checks(vectors):
    names = sorted(vectors)
    if not os.environ.get("OPENTRN_STABLEHLO_ALL"):
        names = random.sample(names, -(-len(names) // 10))
    wrong = {name: data.verdict(vectors[name]) for name in names}
    assert {name: what for name, what in wrong.items() if what} == {}


def test_vectors_run_on_the_chip(vectors):
    """Those whose types the chip has; the ones it refuses are named here."""
    names = sorted(vectors)
    if not os.environ.get("OPENTRN_STABLEHLO_ALL"):
        names = random.sample(names, -(-len(names) // 10))
    found = {name: compiled.outcome(vectors[name])[0] for name in names}
    kinds = {name: kind for name, kind in found.items() if kind not in ("passes", compiled.LACKS)}
    assert {name: kind for name, kind in kinds.items()
            if kind != "refused" or name not in compiled.REFUSED} == {}


def test_the_checks_can_fail():
    one = np.float32([1.0, 0.0, np.nan])
    assert data.ulps(one, np.float32([1.0, -0.0, np.nan])).tolist() == [0, 0, 0]
    assert data.ulps(np.float32([1.0]), np.nextafter(np.float32([1.0]), 2)).tolist() == [1]
    assert data.ulps(np.float32([1e-45]), np.float32([-1e-45])).tolist() == [2]
    assert data.ulps(np.float64([1.0]), np.float64([np.inf])).tolist() == [np.inf]
    assert data.ulps(np.complex64([1 + 1j]), np.complex64([1 + 2j])).tolist() == [2**23]
    assert not data.passes("check.expect_close", np.float32([1]), np.float32([1.0000005]))
    assert not data.passes("check.expect_almost_eq", np.float32([1]), np.float32([1.01]))
    assert not data.passes("check.expect_eq", np.int32([1]), np.int64([1]))
    text = """module { func.func @main() {
      %0 = stablehlo.constant dense<1.0> : tensor<f32>
      %1 = stablehlo.add %0, %0 : tensor<f32>
      stablehlo.custom_call @check.expect_close(%1, %0) {has_side_effect = true}
        : (tensor<f32>, tensor<f32>) -> ()
      return } }"""
    assert data.verdict(text) == "fails check.expect_close"
