"""Inputs and outputs without elements pass beside the program, which has no memory for them."""

import numpy as np
import pytest

import opentrn
from opentrn.base import ShapeError
from opentrn.graph import Graph, g

X, Y, Z = g.input("x", (0, 3)), g.input("y", (2, 3)), g.input("z", (3, 0), "int64")
ARRAYS = [np.zeros((0, 3), np.float32), np.float32([[1, 2, 3], [4, 5, 6]]), np.zeros((3, 0), int)]


def test_they_are_given_and_come_back():
    outputs = [
        g.concatenate(X, Y, dimension=0), X * 2.0, g.reduce(Z, kind="add", dimensions=1),
        g.reduce(X, kind="maximum", dimensions=0), g.reduce(Y, kind="add", dimensions=(0, 1)),
        g.matmul(g.cast(Z, "float32"), X), g.transpose(Z, (1, 0)),
    ]  # fmt: skip
    model = opentrn.load(opentrn.compile(Graph([X, Y, Z], outputs)))
    assert [spec.shape for spec in model.inputs] == [(0, 3), (2, 3), (3, 0)]
    found = model(*ARRAYS)
    wanted = [ARRAYS[1], ARRAYS[0], np.zeros(3, int), np.full(3, -np.inf), np.array(21.0),
              np.zeros((3, 3)), np.zeros((0, 3), int)]  # fmt: skip
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        np.testing.assert_array_equal(one, other)
    assert [a.dtype.name for a in found] == [
        "float32", "float32", "int32", "float32", "float32", "float32", "int32"]  # fmt: skip


def test_a_program_of_nothing_takes_no_time(tmp_path):
    opentrn.compile(Graph([X], [X * 2.0])).save(tmp_path / "nothing.trn")
    model = opentrn.load(tmp_path / "nothing.trn")
    assert model(ARRAYS[0]).shape == (0, 3)
    assert model.time().total_ns == 0
    with pytest.raises(ShapeError, match=r"shape \[0, 2\]"):
        model(np.zeros((0, 2), np.float32))
