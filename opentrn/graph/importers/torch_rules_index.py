"""Torch rules: reading and writing at indices."""

from __future__ import annotations

import math
from typing import Any

from opentrn.graph.build import Builder
from opentrn.graph.importers.torch_rules import refuse, torch_op
from opentrn.graph.importers.torch_types import broadcast_shape, wrapped
from opentrn.graph.ir import Value

Indices = list[Value | None]


@torch_op("aten::embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool "
          "scale_grad_by_freq=False, bool sparse=False) -> Tensor")
def embedding(g: Builder, weight: Value, indices: Value, padding_idx: int = -1,
              scale_grad_by_freq: bool = False, sparse: bool = False) -> Value:
    """Rows of weight."""
    return g.take(weight, indices, 0)


@torch_op("aten::index_select(Tensor self, int dim, Tensor index) -> Tensor")
def index_select(g: Builder, self: Value, dim: int, index: Value) -> Value:
    """Whole slices along dim."""
    if not self.rank:
        return g.reshape(g.broadcast(self, index.shape), ())
    axis = dim % self.rank
    return g.take(self, wrapped(g, index, self.shape[axis]), axis)


def _vectors(g: Builder, x: Value, indices: Indices) -> tuple[Value, tuple[int, ...]]:
    """(index vectors, the axes they place), after torch's broadcasting."""
    placed = tuple(axis for axis, index in enumerate(indices) if index is not None)
    given = [index for index in indices if index is not None]
    for index in given:
        if index.dtype.kind == "bool":
            raise refuse("a bool index selects as many elements as it has Trues, which is not "
                         "known before the program runs", g.where, "use torch.where")
    shape = broadcast_shape(*(i.shape for i in given))
    entries = [g.broadcast(wrapped(g, g.cast(i, "int64"), x.shape[a]), shape)
               for i, a in zip(given, placed, strict=True)]
    if len(entries) == 1:
        return g.reshape(entries[0], (*shape, 1)), placed
    return g.concatenate(*(g.reshape(e, (*shape, 1)) for e in entries),
                         dimension=len(shape)), placed


def _window_places(placed: tuple[int, ...], rank: int, lead: int) -> tuple[int, ...]:
    """Where the axes not indexed lie in the result: around the indices if these are neighbours,
    else after them."""
    neighbours = placed == tuple(range(placed[0], placed[-1] + 1))
    before = placed[0] if neighbours else 0
    rest = rank - len(placed)
    return tuple(i if i < before else i + lead for i in range(rest))


@torch_op("aten::index.Tensor(Tensor self, Tensor?[] indices) -> Tensor")
def index(g: Builder, self: Value, indices: Indices) -> Value:
    """self[indices], None standing for a whole axis."""
    given = [(a, i) for a, i in enumerate(indices) if i is not None]
    if len(given) == 1 and given[0][1].dtype.kind != "bool":
        axis, only = given[0]
        return g.take(self, wrapped(g, only, self.shape[axis]), axis)
    vectors, placed = _vectors(g, self, indices)
    lead = vectors.rank - 1
    sizes = tuple(1 if a in placed else n for a, n in enumerate(self.shape))
    return g.gather(self, vectors, offset_dims=_window_places(placed, self.rank, lead),
                    collapsed_slice_dims=placed, start_index_map=placed, index_vector_dim=lead,
                    slice_sizes=sizes)


def _under_mask(g: Builder, x: Value, indices: Indices, values: Value,
                accumulate: bool) -> Value | None:
    """x[mask] = values (or +=) for values that are the same at every True; None for others."""
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(given) != 1 or given[0][1].dtype.kind != "bool":
        return None
    (axis, mask), = given
    last = axis + mask.rank
    rest = x.shape[last:]
    same = values.shape[max(values.rank - len(rest), 0):]
    if values.size != math.prod(same):
        return None
    one = g.reshape(values, same)
    spread = g.broadcast_in_dim(mask, shape=x.shape, dimensions=tuple(range(axis, last)))
    new = g.broadcast(g.cast(one, x.dtype), x.shape)
    return g.select(spread, x + new if accumulate else new, x)


@torch_op("aten::_index_put_impl(Tensor self, Tensor?[] indices, Tensor values, bool "
          "accumulate=False, bool unsafe=False) -> Tensor")
def index_put_impl(g: Builder, self: Value, indices: Indices, values: Value,
                   accumulate: bool = False, unsafe: bool = False) -> Value:
    """As `index_put`."""
    return index_put(g, self, indices, values, accumulate)


@torch_op("aten::index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) "
          "-> Tensor")
def index_put(g: Builder, self: Value, indices: Indices, values: Value,
              accumulate: bool = False) -> Value:
    """self with self[indices] replaced by values, or values added there."""
    masked = _under_mask(g, self, indices, values, accumulate)
    if masked is not None:
        return masked
    vectors, placed = _vectors(g, self, indices)
    lead = vectors.rank - 1
    window = _window_places(placed, self.rank, lead)
    rest = iter(n for a, n in enumerate(self.shape) if a not in placed)
    batch = iter(vectors.shape[:-1])
    shape = tuple(next(rest) if i in window else next(batch)
                  for i in range(lead + self.rank - len(placed)))
    return g.scatter(self, vectors, g.broadcast(values, shape),
                     kind="add" if accumulate else "set", update_window_dims=window,
                     inserted_window_dims=placed, scatter_dims=placed, index_vector_dim=lead)


def _everywhere(g: Builder, x: Value, dim: int, index: Value) -> tuple[Value, Value]:
    """Index vectors that place every element of `index`: its own place, but `index` along dim."""
    axis = dim % max(x.rank, 1)
    if not x.rank:
        x = g.reshape(x, (1,))
        index = g.reshape(index, (math.prod(index.shape),))
    chosen = wrapped(g, g.cast(index, "int64"), x.shape[axis])
    entries = [chosen if a == axis else g.iota(index.shape, a, "int64") for a in range(x.rank)]
    columns = [g.reshape(e, (*index.shape, 1)) for e in entries]
    joined = columns[0] if x.rank == 1 else g.concatenate(*columns, dimension=index.rank)
    return x, joined


@torch_op("aten::gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor")
def gather(g: Builder, self: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    """self at each place of index, with index instead of the place's own coordinate along dim."""
    x, vectors = _everywhere(g, self, dim, index)
    every = tuple(range(x.rank))
    found = g.gather(x, vectors, offset_dims=(), collapsed_slice_dims=every,
                     start_index_map=every, index_vector_dim=vectors.rank - 1,
                     slice_sizes=(1,) * x.rank)
    return g.reshape(found, index.shape)


def scattered(g: Builder, x: Value, dim: int, index: Value, src: Any, kind: str) -> Value:
    """x with src, a tensor or a number, combined in where `gather` would read; `kind` as that of
    the graph op `scatter`."""
    whole, vectors = _everywhere(g, x, dim, index)
    every = tuple(range(whole.rank))
    shape = vectors.shape[:-1]
    if isinstance(src, Value):
        cut = g.slice(src, [0] * src.rank, list(index.shape), [1] * src.rank)
        updates = g.reshape(cut, shape)
    else:
        updates = g.full(shape, src, x.dtype)
    result = g.scatter(whole, vectors, updates, kind=kind, update_window_dims=(),
                       inserted_window_dims=every, scatter_dims=every,
                       index_vector_dim=vectors.rank - 1)
    return g.reshape(result, x.shape)


@torch_op("aten::scatter.src(Tensor self, int dim, Tensor index, Tensor src) -> Tensor")
def scatter_src(g: Builder, self: Value, dim: int, index: Value, src: Value) -> Value:
    """self with src written where `gather` would read."""
    return scattered(g, self, dim, index, src, "set")


@torch_op("aten::scatter.value(Tensor self, int dim, Tensor index, Scalar value) -> Tensor")
def scatter_value(g: Builder, self: Value, dim: int, index: Value, value: Any) -> Value:
    """self with value written where `gather` would read."""
    return scattered(g, self, dim, index, value, "set")


@torch_op("aten::scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor")
def scatter_add(g: Builder, self: Value, dim: int, index: Value, src: Value) -> Value:
    """self with src added where `gather` would read."""
    return scattered(g, self, dim, index, src, "add")
