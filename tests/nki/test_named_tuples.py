"""Named tuples of tensors among a kernel's arguments and results stay what they are."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from opentrn import nki
from opentrn.hw import target
from opentrn.isa import Buffer, view_of
from opentrn.nki import beta1
from opentrn.nki import language as nl
from opentrn.nki.beta1 import language as ol

X = np.arange(6, dtype=np.float32).reshape(2, 3)


class Pair(NamedTuple):
    low: Any
    high: Any


def stored(tile):
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nl.store(out, tile)
    return out


@nki.jit
def turned(pair):
    return Pair(stored(nl.load(pair.high)), stored(nl.add(nl.load(pair.low), 1.0)))


@beta1.jit
def older(pair):
    i, j = ol.arange(2)[:, None], ol.arange(3)[None, :]
    outs = [ol.ndarray(one.shape, dtype=one.dtype, buffer=ol.shared_hbm) for one in pair]
    ol.store(outs[0][i, j], ol.load(pair.high[i, j]))
    ol.store(outs[1][i, j], ol.load(pair.low[i, j]) + 1.0)
    return Pair(*outs)


def right(found, low, high):
    assert type(found) is Pair
    assert np.array_equal(found.low, high)
    assert np.array_equal(found.high, low + 1)


@pytest.mark.parametrize("kernel", [turned, turned[2], older], ids=["one", "two cores", "older"])
def test_launches_traced_and_replayed(kernel):
    for n in range(4):
        right(kernel(Pair(X + n, X * n)), X + n, X * n)


def test_ranks():
    runs = nki.run_ranks(turned, [(Pair(X + n, X * n),) for n in range(2)])
    for n, run in enumerate(runs):
        right(run.outputs, X + n, X * n)
    each = nki.simulate(turned, ranks=2)(Pair(nki.PerRank([X, X + 1]), X * 3))
    for n, found in enumerate(each):
        right(found, X + n, X * 3)


def test_checks_and_recordings():
    assert not nki.check(turned, "trn2", {"pair": Pair(X, X)}).refusals
    views = [view_of(Buffer(n, "hbm", (2, 3), nl.float32, kind="input")) for n in range(2)]
    made = nki.record(turned, target("trn2"), Pair(*views))
    assert [view.shape for view in made.results] == [(2, 3), (2, 3)]
    assert len(made.parameters) == 2


def test_inside_a_function_that_jax_traces():
    jax = pytest.importorskip("jax")
    right(jax.jit(lambda a: turned(Pair(a, a * 2)))(jax.numpy.asarray(X)), X, X * 2)
