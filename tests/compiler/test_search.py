"""Tiles chosen by the timing model: the quickest of a few, remembered; numbers stay the same."""

import numpy as np
import pytest

from opentrn import compiler, runtime
from opentrn.compiler import search
from opentrn.graph import Graph, evaluate, g
from opentrn.isa.text import program_text
from tests.compiler.running import normal, run


def both(shape=(512, 1024)):
    x, y = (g.input(n, shape, "bfloat16") for n in "xy")
    return Graph([x, y], [g.gelu(x) * y])


def heads():
    q, k, v = (g.input(n, (1, 8, 1024, 64), "bfloat16") for n in "qkv")
    return Graph([q, k, v], [g.attention(q, k, v, causal=False, scale=0.125)])


def nanoseconds(executable) -> float:
    return runtime.load(executable).time().total_ns


@pytest.mark.parametrize("make", [both, heads])
def test_the_way_that_is_timed_quickest_is_taken(make, monkeypatch):
    graph = make()
    searched = compiler.compile(graph)
    assert searched.meta["kernels_cut_anew"] == 1
    monkeypatch.setattr(search, "LEAST_INSTRUCTIONS", float("inf"))
    plain = compiler.compile(graph)
    assert plain.meta["kernels_cut_anew"] == 0
    assert nanoseconds(searched) < 0.99 * nanoseconds(plain)
    given = [normal(*v.shape, seed=n) for n, v in enumerate(graph.inputs)]
    found, wanted = (np.asarray(run(e, given)[0], np.float32) for e in (searched, plain))
    np.testing.assert_array_equal(found, wanted)
    half = [x.astype(v.dtype.storage) for x, v in zip(given, graph.inputs, strict=True)]
    meant = evaluate(graph, half)[0].astype(np.float32)
    np.testing.assert_allclose(found, meant, rtol=2.0**-6, atol=2.0**-6)


def test_what_was_found_is_remembered():
    search.best_cut.cache_clear()
    first = compiler.compile(both())
    once = search.best_cut.cache_info()
    assert (once.misses, once.hits) == (1, 0)
    again = compiler.compile(both())
    assert search.best_cut.cache_info()[:2] == (1, 1)  # found, and nothing was timed
    assert program_text(first.program) == program_text(again.program)
    compiler.compile(both((512, 1152)))  # another size is another question
    assert search.best_cut.cache_info()[:2] == (1, 2)


def test_each_chip_is_asked_for_itself():
    search.best_cut.cache_clear()
    for n, name in enumerate(("trn1", "trn2", "trn3"), 1):
        compiler.compile(both(), target=name)
        assert search.best_cut.cache_info().misses == n


def test_small_and_very_long_kernels_are_not_searched():
    search.best_cut.cache_clear()
    x = g.input("x", (64, 64))
    compiler.compile(Graph([x], [g.tanh(x)]))
    assert search.best_cut.cache_info().misses == 0


def test_ways_that_do_not_fit_are_passed_over(monkeypatch):
    search.best_cut.cache_clear()
    monkeypatch.setitem(search.CUTS, search.kernels.elementwise, ("cut", ((6, 160 << 10),), 4000))
    executable = compiler.compile(both((2048, 16384)))
    assert executable.meta["kernels_cut_anew"] == 0
    search.best_cut.cache_clear()
