"""Calls cut into pieces: the same numbers as uncut, traced once, on memory of the same size."""

import numpy as np
import pytest

from opentrn import compiler
from opentrn.compiler import pieces
from opentrn.graph import Graph, g
from tests.compiler.running import normal, run


@pytest.fixture
def small(monkeypatch):
    """Cut what has more than 2^14 elements, or takes more than 2^21 multiplications."""
    monkeypatch.setattr(pieces, "ELEMENTS", 1 << 14)
    monkeypatch.setattr(pieces, "MULTIPLICATIONS", 1 << 21)
    monkeypatch.setattr(pieces, "LEAST", 1)


def _built(name):
    """(graph, arrays, what NumPy says, kernel calls when cut)."""
    x, y = normal(240, 384), normal(240, 384, seed=1)
    column, row = normal(240, 1, seed=2), normal(384, seed=3)
    a, b, c, r = (g.input(n, v.shape) for n, v in zip("abcr", (x, y, column, row), strict=True))
    if name == "elementwise":
        made = (a * g.broadcast(c, a.shape) + g.broadcast(r, a.shape)) / (g.exponential(b) + 2.0)
        return (
            Graph([a, b, c, r], [made]),
            [x, y, column, row],
            (x * column + row) / (np.exp(y) + 2),
        )
    if name == "booleans":
        return Graph([a, b], [g.compare(a, b, "GT")]), [x, y], x > y
    if name == "copy":
        made = g.transpose(a, (1, 0))
        return Graph([a], [made]), [x], x.T
    if name == "wide product":
        w, bias, more = normal(16, 8192, seed=4), normal(8192, seed=5), normal(96, 8192, seed=6)
        x = normal(96, 16)
        p, q, s, t = (g.input(n, v.shape) for n, v in zip("pqst", (x, w, bias, more), strict=True))
        made = g.gelu(g.matmul(p, q) + g.broadcast(s, (96, 8192)), approximate=True) + t
        z = x.astype(float) @ w + bias
        gelu = 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
        return Graph([p, q, s, t], [made]), [x, w, bias, more], gelu + more
    w, x = normal(64, 96, seed=4), normal(64, 768)
    p, q = g.input("p", x.shape), g.input("q", w.shape)
    made = g.matmul(g.transpose(p, (1, 0)), q)  # rows that lie transposed in memory
    return Graph([p, q], [made]), [x, w], x.T.astype(float) @ w


CASES = ["elementwise", "booleans", "copy", "wide product", "tall product"]


@pytest.mark.parametrize("name", CASES)
def test_pieces_are_the_whole(name, small):
    graph, arrays, wanted = _built(name)
    executable = compiler.compile(graph)
    calls, traced = executable.meta["kernel_calls"], executable.meta["kernels_traced"]
    assert traced < calls
    (found,) = run(executable, arrays)
    off = np.abs(found.astype(float) - wanted.astype(float)).max()
    assert off <= 2e-5 * max(1, np.abs(wanted).max())
    outlined = compiler.outline(graph)
    assert outlined.instructions == len(executable.program)
    assert sum(part.calls for part in outlined.parts) == calls
    assert outlined.hbm_bytes == executable.meta["hbm_bytes"]


@pytest.mark.parametrize("name", CASES)
def test_small_calls_are_whole(name):
    executable = compiler.compile(_built(name)[0])
    assert executable.meta["kernels_traced"] == executable.meta["kernel_calls"]


def test_lengths_divide_and_are_whole_tiles_where_they_can_be():
    assert pieces._length(128256, 8, 1) == 128256 // 8
    assert pieces._length(4096, 8, 512) == 512
    assert pieces._length(128256, 8, 512) == 128256 // 8  # 16032: 31 banks and a part of one
    assert pieces._length(7919, 8, 1) is None  # a prime number
    assert pieces._length(4096, 1, 512) is None  # small enough
