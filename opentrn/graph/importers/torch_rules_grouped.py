"""Torch rules: products in groups, as layers of experts make them.

Rows sorted by group lie one after another, and `offs` says where each group ends, which is known
only when the program runs.  Sizes are fixed when it is compiled, so every group's matrix meets
every row and what a row's own group gives is selected; where there are far fewer rows than groups,
each row fetches its group's matrix instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opentrn.base import dtype as dtype_of
from opentrn.graph.build import Builder
from opentrn.graph.importers.torch_rules import refuse, torch_op
from opentrn.graph.ir import Value

# A row's own matrix is read, written and read again; one of a group is read once.
FETCHED = 3


def _ends(g: Builder, offs: Value, count: int) -> Value:
    """bool[groups, count]: whether a group ends after a row, or later."""
    row = g.constant(np.arange(count, dtype=np.int32))
    shape = (offs.shape[0], count)
    return g.compare(g.broadcast_in_dim(row, shape, (1,)),
                     g.broadcast_in_dim(g.cast(offs, "int32"), shape, (0,)), direction="LT")


def _members(g: Builder, offs: Value, count: int) -> Value:
    """bool[groups, count]: the rows of each group; rows after the last group are in none."""
    ends = _ends(g, offs, count)
    before = g.pad(ends, g.full((), False, "bool"), [1, 0], [-1, 0])
    return g.and_(ends, g.not_(before))


def _rows_by_matrix(g: Builder, x: Value, weight: Value, offs: Value) -> Value:
    """Each row of x[S, K] times the matrix of its group in weight[G, K, N]; 0 in no group."""
    rows, groups = x.shape[0], weight.shape[0]
    shape = (rows, weight.shape[2])
    nothing = g.full(shape, 0.0, x.dtype)
    if FETCHED * rows < groups:
        later = g.cast(g.not_(_ends(g, offs, rows)), "int32")
        group = g.reduce(later, kind="add", dimensions=0)
        own = g.take(weight, g.minimum(group, g.like(group, groups - 1)), 0)
        y = g.reshape(g.matmul(g.reshape(x, (rows, 1, x.shape[1])), own), shape)
        inside = g.compare(group, g.like(group, groups), direction="LT")
        return g.select(g.broadcast_in_dim(inside, shape, (0,)), y, nothing)
    members, y = _members(g, offs, rows), nothing
    for n in range(groups):
        mine = g.broadcast_in_dim(_at(g, members, n), shape, (0,))
        y = g.select(mine, g.matmul(x, _at(g, weight, n)), y)
    return y


def _at(g: Builder, x: Value, n: int) -> Value:
    """x[n]"""
    first = [n, *[0] * (x.rank - 1)], [n + 1, *x.shape[1:]], [1] * x.rank
    return g.reshape(g.slice(x, *first), x.shape[1:])


def _matrices_by_rows(g: Builder, x: Value, y: Value, offs: Value) -> Value:
    """xᵀ · y over the rows of each group: x[S, K], y[S, N] -> [G, K, N]."""
    members, made = _members(g, offs, x.shape[0]), []
    for n in range(offs.shape[0]):
        mine = _at(g, members, n)
        left, right = (g.select(g.broadcast_in_dim(mine, v.shape, (0,)), v, g.like(v, 0.0))
                       for v in (x, y))
        product = g.dot_general(left, right, lhs_contracting=0, rhs_contracting=0)
        made.append(g.reshape(product, (1, *product.shape)))
    return g.concatenate(*made, dimension=0) if len(made) > 1 else made[0]


@torch_op("transformers::grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor")
def grouped_mm_fallback(g: Builder, input: Value, weight: Value, offs: Value) -> Value:
    """Each row of input times the matrix of its group in weight."""
    return _rows_by_matrix(g, input, weight, offs)


@torch_op("transformers::grouped_mm_fallback_backward(Tensor input, Tensor weight, Tensor offs, "
          "Tensor grad_output) -> (Tensor, Tensor)")
def grouped_mm_fallback_backward(g: Builder, input: Value, weight: Value, offs: Value,
                                 grad_output: Value) -> tuple[Value, Value]:
    """Gradients of `grouped_mm_fallback` by input and weight."""
    turned = g.transpose(weight, (0, 2, 1))
    return (_rows_by_matrix(g, grad_output, turned, offs),
            _matrices_by_rows(g, input, grad_output, offs))


@torch_op("aten::_grouped_mm(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, "
          "ScalarType? out_dtype=None) -> Tensor")
def grouped_mm(g: Builder, self: Value, mat2: Value, offs: Value | None = None,
               bias: Value | None = None, out_dtype: Any = None) -> Value:
    """Products in groups of rows, columns, or what is summed over, where there are two axes."""
    if bias is not None:
        raise refuse("_grouped_mm with a bias", g.where, "add the bias afterwards")
    ranks = self.rank, mat2.rank
    if offs is None:
        made = g.matmul(self, mat2)
    elif ranks == (2, 3):
        made = _rows_by_matrix(g, self, mat2, offs)
    elif ranks == (3, 2):
        turned = g.transpose(self, (0, 2, 1))
        made = g.transpose(_rows_by_matrix(g, g.transpose(mat2, (1, 0)), turned, offs), (1, 0))
    else:
        made = _matrices_by_rows(g, g.transpose(self, (1, 0)), mat2, offs)
    return made if out_dtype is None else g.cast(made, dtype_of(out_dtype))
