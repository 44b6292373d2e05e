"""Torch rules: less common functions, and lookups made of comparisons and order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from opentrn.base import dtype as dtype_of
from opentrn.graph.build import Builder
from opentrn.graph.importers.torch_rules import refuse, torch_op
from opentrn.graph.importers.torch_rules_index import scatter_add
from opentrn.graph.importers.torch_rules_reduce import prod_dim
from opentrn.graph.importers.torch_types import axes, floated, restored, together, wrapped
from opentrn.graph.ir import Value


def _one(g: Builder, x: Value) -> Value:
    return g.like(x, 1.0)


def _beside(g: Builder, x: Value) -> Value:
    """√(1 - x²), the other side of a right triangle."""
    return g.sqrt((1.0 - x) * (1.0 + x))


def _signed(g: Builder, size: Value, like: Value) -> Value:
    """`size` with the sign of `like`."""
    return g.select(g.compare(like, g.like(like, 0.0), direction="LT"), g.negate(size), size)


def _asinh(g: Builder, x: Value) -> Value:
    a = g.abs(x)
    return _signed(g, g.log_plus_one(a + a * a / (1.0 + g.sqrt(a * a + 1.0))), x)


def _sinh(g: Builder, x: Value) -> Value:
    grown = g.exponential_minus_one(g.abs(x))
    return _signed(g, (grown + grown / (grown + 1.0)) * 0.5, x)


FUNCTIONS: dict[str, Callable[[Builder, Value], Value]] = {
    "atan": lambda g, x: g.atan2(x, _one(g, x)),
    "asin": lambda g, x: g.atan2(x, _beside(g, x)),
    "acos": lambda g, x: g.atan2(_beside(g, x), x),
    "sinh": _sinh,
    "cosh": lambda g, x: (g.exponential(x) + g.exponential(g.negate(x))) * 0.5,
    "asinh": _asinh,
    "acosh": lambda g, x: g.log(x + g.sqrt((x - 1.0) * (x + 1.0))),
    "atanh": lambda g, x: g.log_plus_one((x + x) / (1.0 - x)) * 0.5,
}


def _function(name: str) -> Callable[..., Value]:
    def rule(g: Builder, self: Value) -> Value:
        kind = floated(self.dtype)
        return g.cast(FUNCTIONS[name](g, g.cast(self, "float32")), kind)
    rule.__doc__ = f"{name} of each element."
    rule.__name__ = name
    return rule


for _name in FUNCTIONS:
    torch_op(f"aten::{_name}(Tensor self) -> Tensor")(_function(_name))


@torch_op("aten::hypot(Tensor self, Tensor other) -> Tensor")
def hypot(g: Builder, self: Value, other: Value) -> Value:
    """√(self² + other²)."""
    x, y = together(g, self, other)
    return g.sqrt(x * x + y * y)


@torch_op("aten::signbit(Tensor self) -> Tensor")
def signbit(g: Builder, self: Value) -> Value:
    """True for numbers below 0, and for -0."""
    if self.dtype.kind != "float":
        return g.compare(self, g.like(self, 0), direction="LT")
    turned = g.select(g.compare(self, g.like(self, 0.0), direction="EQ"), 1.0 / self, self)
    return g.compare(turned, g.like(turned, 0.0), direction="LT")


@torch_op("aten::copysign.Tensor(Tensor self, Tensor other) -> Tensor")
def copysign(g: Builder, self: Value, other: Value) -> Value:
    """|self| with the sign of other, -0 being negative."""
    x, y = together(g, self, other)
    x, y = (g.cast(v, floated(v.dtype)) for v in (x, y))
    size = g.abs(x)
    return g.select(signbit(g, y), g.negate(size), size)


def _other_than_nan(g: Builder, x: Value, y: Value, kind: str) -> Value:
    x, y = together(g, x, y)
    best = getattr(g, kind)(x, y)
    if x.dtype.kind != "float":
        return best
    best = g.select(g.compare(x, x, direction="NE"), y, best)
    return g.select(g.compare(y, y, direction="NE"), x, best)


@torch_op("aten::fmax(Tensor self, Tensor other) -> Tensor")
def fmax(g: Builder, self: Value, other: Value) -> Value:
    """The larger; the number where one is NaN."""
    return _other_than_nan(g, self, other, "maximum")


@torch_op("aten::fmin(Tensor self, Tensor other) -> Tensor")
def fmin(g: Builder, self: Value, other: Value) -> Value:
    """The smaller; the number where one is NaN."""
    return _other_than_nan(g, self, other, "minimum")


@torch_op("aten::round.decimals(Tensor self, *, int decimals) -> Tensor")
def round_decimals(g: Builder, self: Value, decimals: int) -> Value:
    """The nearest multiple of 10^-decimals."""
    if self.dtype.kind != "float":
        return self
    scale = 10.0 ** abs(decimals)
    if decimals >= 0:
        return g.round_nearest_even(self * scale) / scale
    return g.round_nearest_even(self / scale) * scale


@torch_op("aten::prod(Tensor self, *, ScalarType? dtype=None) -> Tensor")
def prod_all(g: Builder, self: Value, dtype: str | None = None) -> Value:
    """Product of all elements."""
    return prod_dim(g, g.reshape(self, (self.size,)), 0, False, dtype)


@torch_op("aten::angle(Tensor self) -> Tensor")
def angle(g: Builder, self: Value) -> Value:
    """π where self is below 0, else 0; NaN stays."""
    x = g.cast(self, floated(self.dtype))
    turned = g.select(g.compare(x, g.like(x, 0.0), direction="LT"), g.like(x, np.pi),
                      g.like(x, 0.0))
    return g.select(g.compare(x, x, direction="NE"), x, turned)


ERFINV = (
    (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
     -0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
    (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
     -0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)
"""M. Giles, "Approximating the erfinv function" (GPU Computing Gems, Jade Edition, 2011), table 5:
coefficients in single precision near 0 and near ±1, the highest power first."""


@torch_op("aten::erfinv(Tensor self) -> Tensor")
def erfinv(g: Builder, self: Value) -> Value:
    """The inverse of erf, ±∞ at ±1 and NaN beyond."""
    kind = floated(self.dtype)
    x = g.cast(self, "float32")
    w = g.negate(g.log((1.0 - x) * (1.0 + x)))
    found = []
    for t, numbers in zip((w - 2.5, g.sqrt(w) - 3.0), ERFINV, strict=True):
        total = g.like(x, numbers[0])
        for number in numbers[1:]:
            total = total * t + number
        found.append(total * x)
    made = g.select(g.compare(w, g.like(w, 5.0), direction="LT"), *found)
    end = g.compare(g.abs(x), g.like(x, 1.0), direction="EQ")
    return g.cast(g.select(end, x * float("inf"), made), kind)


@torch_op("aten::hardshrink_backward(Tensor grad_out, Tensor self, Scalar lambd) -> Tensor")
def hardshrink_backward(g: Builder, grad_out: Value, self: Value, lambd: Any) -> Value:
    """The gradient where self is farther than lambd from 0."""
    near = g.compare(g.abs(self), g.like(self, float(lambd)), direction="LE")
    return g.select(near, g.like(grad_out, 0.0), grad_out)


@torch_op("aten::softshrink_backward(Tensor grad_output, Tensor self, Scalar lambd) -> Tensor")
def softshrink_backward(g: Builder, grad_output: Value, self: Value, lambd: Any) -> Value:
    """The gradient where self is farther than lambd from 0."""
    return hardshrink_backward(g, grad_output, self, lambd)


# ---------------------------------------------------------------------- products


def _scaled(g: Builder, x: Value, number: Any) -> Value:
    return x if number == 1 else x * number


@torch_op("aten::addmv(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> "
          "Tensor")
def addmv(g: Builder, self: Value, mat: Value, vec: Value, beta: Any = 1, alpha: Any = 1) -> Value:
    """beta · self + alpha · (mat · vec); self does not count when beta is 0."""
    column = g.reshape(vec, (vec.size, 1))
    product = _scaled(g, g.reshape(g.matmul(mat, column), (mat.shape[0],)), alpha)
    if beta == 0:
        return product
    return product + g.broadcast(_scaled(g, self, beta), product.shape)


@torch_op("aten::addbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar "
          "alpha=1) -> Tensor")
def addbmm(g: Builder, self: Value, batch1: Value, batch2: Value, beta: Any = 1,
           alpha: Any = 1) -> Value:
    """beta · self + alpha · the sum of the products of a batch."""
    product = _scaled(g, g.reduce(g.matmul(batch1, batch2), kind="add", dimensions=0), alpha)
    if beta == 0:
        return product
    return product + g.broadcast(_scaled(g, self, beta), product.shape)


# ---------------------------------------------------------------------- places


@torch_op("aten::take(Tensor self, Tensor index) -> Tensor")
def take(g: Builder, self: Value, index: Value) -> Value:
    """Elements by their row-major places."""
    flat = g.reshape(self, (self.size,))
    return g.take(flat, wrapped(g, g.cast(index, "int64"), self.size), 0)


def _elements(g: Builder, x: Value, places: np.ndarray) -> Value:
    """Elements at fixed row-major places."""
    return g.take(g.reshape(x, (x.size,)), g.constant(places.astype(np.int32)), 0)


@torch_op("aten::diagonal(Tensor(a) self, int offset=0, int dim1=0, int dim2=1) -> Tensor(a)")
def diagonal(g: Builder, self: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """Elements whose places along the two axes differ by offset, along a new last axis."""
    grid = np.arange(self.size).reshape(self.shape)
    return _elements(g, self, np.diagonal(grid, offset, dim1, dim2))


@torch_op("aten::as_strided(Tensor(a) self, SymInt[] size, SymInt[] stride, SymInt? "
          "storage_offset=None) -> Tensor(a)")
def as_strided(g: Builder, self: Value, size: Any, stride: Any,
               storage_offset: int | None = None) -> Value:
    """Elements of a dense tensor at the places strides say."""
    return _elements(g, self, _strided(g, self, size, stride, storage_offset))


def _strided(g: Builder, x: Value, size: Any, stride: Any, offset: int | None) -> np.ndarray:
    """Row-major places of the elements strides say."""
    places = np.array(offset or 0)
    for n, s in zip(size, stride, strict=True):
        places = places[..., None] + np.arange(n) * s
    if places.size and int(places.max()) >= x.size:
        raise refuse("as_strided beyond the elements of its operand", g.where)
    return places


@torch_op("aten::as_strided_scatter(Tensor self, Tensor src, SymInt[] size, SymInt[] stride, "
          "SymInt? storage_offset=None) -> Tensor")
def as_strided_scatter(g: Builder, self: Value, src: Value, size: Any, stride: Any,
                       storage_offset: int | None = None) -> Value:
    """A dense tensor with src at the places strides say."""
    places = _strided(g, self, size, stride, storage_offset)
    if places.size == self.size and (np.sort(places, axis=None) == np.arange(self.size)).all():
        back = np.argsort(places, axis=None).reshape(self.shape)
        in_order = (back == np.arange(self.size).reshape(self.shape)).all()
        return g.reshape(src, self.shape) if in_order else _elements(g, src, back)
    flat, ids = g.reshape(self, (self.size,)), places.reshape(-1, 1).astype(np.int32)
    made = g.scatter(flat, g.constant(ids), g.reshape(src, (src.size,)), kind="set",
                     update_window_dims=(), inserted_window_dims=(0,), scatter_dims=(0,),
                     index_vector_dim=1)
    return g.reshape(made, self.shape)


@torch_op("aten::empty.memory_format(SymInt[] size, *, ScalarType? dtype=None, Layout? "
          "layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? "
          "memory_format=None) -> Tensor")
def empty(g: Builder, size: Any, dtype: str | None = None) -> Value:
    """Memory nobody has written: NaN, or 0 where there is none."""
    kind = dtype_of(dtype or "float32")
    return g.full(tuple(size), float("nan") if kind.kind == "float" else 0, kind)


@torch_op("aten::empty_permuted(SymInt[] size, int[] physical_layout, *, ScalarType? dtype=None, "
          "Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor")
def empty_permuted(g: Builder, size: Any, physical_layout: Any, dtype: str | None = None) -> Value:
    """As `empty`: a graph's tensors have no layout."""
    return empty(g, size, dtype)


@torch_op("aten::histc(Tensor self, int bins=100, Scalar min=0, Scalar max=0) -> Tensor")
def histc(g: Builder, self: Value, bins: int = 100, min: Any = 0, max: Any = 0) -> Value:
    """How many elements lie in each of equal bins from min to max, which is in the last.

    What lies outside is not counted, nor is NaN; where min is max, the elements' own limits count,
    or 1 on either side where these are equal."""
    x = g.cast(g.reshape(self, (self.size,)), "float32")
    low, high = (g.full((), float(n), "float32") for n in (min, max))
    if min == max and self.size:
        low, high = (g.reduce(x, kind=k, dimensions=0) for k in ("minimum", "maximum"))
        same = g.compare(low, high, direction="EQ")
        low, high = g.select(same, low - 1.0, low), g.select(same, high + 1.0, high)
    low, high = g.broadcast(low, x.shape), g.broadcast(high, x.shape)
    place = g.floor((x - low) * float(bins) / (high - low))
    place = g.minimum(place, g.like(place, float(bins - 1)))
    inside = g.and_(g.compare(x, low, direction="GE"), g.compare(x, high, direction="LE"))
    place = g.select(inside, place, g.like(place, float(bins)))
    grid = (self.size, bins)
    line = g.constant(np.arange(bins, dtype=np.float32))
    hits = g.compare(g.broadcast_in_dim(place, grid, (0,)), g.broadcast_in_dim(line, grid, (1,)),
                     direction="EQ")
    return g.cast(g.reduce(g.cast(hits, "float32"), kind="add", dimensions=0), self.dtype)


def _below(g: Builder, edges: Value, x: Value, right: bool) -> Value:
    """How many edges of each row lie below (or at, with `right`) each number."""
    kind = together(g, edges, x)[0].dtype if edges.shape == x.shape else x.dtype
    edges, x = g.cast(edges, kind), g.cast(x, kind)
    count = edges.shape[-1]
    shape = (*x.shape, count)
    if edges.rank == 1:
        spread = g.broadcast_in_dim(edges, shape, (x.rank,))
    else:
        spread = g.broadcast_in_dim(edges, shape, (*range(x.rank - 1), x.rank))
    number = g.broadcast_in_dim(x, shape, tuple(range(x.rank)))
    found = g.compare(spread, number, direction="LE" if right else "LT")
    return g.reduce(g.cast(found, "int32"), kind="add", dimensions=x.rank)


@torch_op("aten::bucketize.Tensor(Tensor self, Tensor boundaries, *, bool out_int32=False, bool "
          "right=False) -> Tensor")
def bucketize(g: Builder, self: Value, boundaries: Value, out_int32: bool = False,
              right: bool = False) -> Value:
    """The interval between rising boundaries that each number lies in."""
    return g.cast(_below(g, boundaries, self, right), "int32" if out_int32 else "int64")


@torch_op("aten::searchsorted.Tensor(Tensor sorted_sequence, Tensor self, *, bool out_int32=False, "
          "bool right=False, str? side=None, Tensor? sorter=None) -> Tensor")
def searchsorted(g: Builder, sorted_sequence: Value, self: Value, out_int32: bool = False,
                 right: bool = False, side: str | None = None,
                 sorter: Value | None = None) -> Value:
    """Where each number would be put in a rising row so that it still rises."""
    if sorter is not None:
        raise refuse("searchsorted with a sorter", g.where, "sort the sequence first")
    right = right or side == "right"
    found = _below(g, sorted_sequence, self, right)
    return g.cast(found, "int32" if out_int32 else "int64")


@torch_op("aten::median.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor "
          "indices)")
def median_dim(g: Builder, self: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """The lower middle along dim and where it is; NaN, where there is one."""
    if not self.rank:
        return self, g.full((), 0, "int64")
    (axis,) = axes(dim, self.rank)
    count = self.shape[axis]
    whole = [g.sort(self, axis), g.cast(g.sort(self, axis, False, "indices"), "int64")]
    last = _at(g, whole[0], axis, count - 1)
    wrong = g.compare(last, last, direction="NE") if self.dtype.kind == "float" else None
    made = []
    for x in whole:
        middle, nan = _at(g, x, axis, (count - 1) // 2), _at(g, x, axis, count - 1)
        found = middle if wrong is None else g.select(wrong, nan, middle)
        made.append(restored(g, found, self.shape, (axis,), keepdim))
    return made[0], made[1]


def _at(g: Builder, x: Value, axis: int, place: int) -> Value:
    starts, limits = [0] * x.rank, list(x.shape)
    starts[axis], limits[axis] = place, place + 1
    cut = g.slice(x, starts, limits, [1] * x.rank)
    return g.reshape(cut, tuple(n for a, n in enumerate(x.shape) if a != axis))


@torch_op("aten::median(Tensor self) -> Tensor")
def median(g: Builder, self: Value) -> Value:
    """The lower middle of all elements."""
    return median_dim(g, g.reshape(self, (self.size,)), 0)[0]


@torch_op("aten::new_empty_strided(Tensor self, SymInt[] size, SymInt[] stride, *, ScalarType? "
          "dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor")
def new_empty_strided(g: Builder, self: Value, size: Any, stride: Any,
                      dtype: str | None = None) -> Value:
    """Memory nobody has written, by default of self's dtype; strides mean nothing in a graph."""
    return empty(g, size, dtype or self.dtype)


def _triangle(g: Builder, found: Any, dtype: Any) -> Value:
    kind = dtype_of("int64" if dtype in (None, 4) else dtype)  # 4 is torch's number for int64
    return g.cast(g.constant(np.array(found, np.int64)), kind)


@torch_op("aten::tril_indices(int row, int col, int offset=0, *, ScalarType? dtype=4, Layout? "
          "layout=None, Device? device=None, bool? pin_memory=None) -> Tensor")
def tril_indices(g: Builder, row: int, col: int, offset: int = 0, dtype: Any = 4) -> Value:
    """Rows and columns of the places at or below a diagonal."""
    return _triangle(g, np.tril_indices(row, offset, col), dtype)


@torch_op("aten::triu_indices(int row, int col, int offset=0, *, ScalarType? dtype=4, Layout? "
          "layout=None, Device? device=None, bool? pin_memory=None) -> Tensor")
def triu_indices(g: Builder, row: int, col: int, offset: int = 0, dtype: Any = 4) -> Value:
    """Rows and columns of the places at or above a diagonal."""
    return _triangle(g, np.triu_indices(row, offset, col), dtype)


# ---------------------------------------------------------------------- bags of rows


def _bag_of_each(g: Builder, starts: Value, count: int) -> Value:
    """The bag of each of `count` rows: how many bags begin at or before it, less one."""
    line = g.constant(np.arange(count, dtype=np.int32))
    return _below(g, g.cast(starts, "int32"), line, True) + (-1)


@torch_op("aten::_embedding_bag_backward(Tensor grad, Tensor indices, Tensor offsets, Tensor "
          "offset2bag, Tensor bag_size, Tensor maximum_indices, SymInt num_weights, bool "
          "scale_grad_by_freq, int mode, bool sparse, Tensor? per_sample_weights, int "
          "padding_idx=-1) -> Tensor")
def embedding_bag_gradient(g: Builder, grad: Value, indices: Value, offsets: Value,
                           offset2bag: Value, bag_size: Value, maximum_indices: Value,
                           num_weights: int, scale_grad_by_freq: bool, mode: int, sparse: bool,
                           per_sample_weights: Value | None, padding_idx: int = -1) -> Value:
    """Each bag's gradient added to the rows it was made of, wherever torch noted their bags."""
    if not offset2bag.size:
        starts = g.slice(offsets, [0], [grad.shape[0]], [1])
        offset2bag = _bag_of_each(g, starts, indices.shape[0])
    return embedding_bag_backward(g, grad, indices, offset2bag, bag_size, maximum_indices,
                                  num_weights, scale_grad_by_freq, mode, per_sample_weights,
                                  padding_idx)


@torch_op("aten::_embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool "
          "scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? "
          "per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1) -> "
          "(Tensor, Tensor, Tensor, Tensor)",
          "aten::_embedding_bag_forward_only(Tensor weight, Tensor indices, Tensor offsets, bool "
          "scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? "
          "per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1) -> "
          "(Tensor, Tensor, Tensor, Tensor)")
def embedding_bag(g: Builder, weight: Value, indices: Value, offsets: Value,
                  scale_grad_by_freq: bool = False, mode: int = 0, sparse: bool = False,
                  per_sample_weights: Value | None = None, include_last_offset: bool = False,
                  padding_idx: int = -1) -> tuple[Value, ...]:
    """Sums (mode 0) or means (1) of rows, a bag for each offset: a product with ones and zeros."""
    if mode > 1 or padding_idx >= 0:
        raise refuse("embedding_bag by maximum, or with a padding index", g.where)
    bags, count = offsets.shape[0] - include_last_offset, indices.shape[0]
    mine = _bag_of_each(g, g.slice(offsets, [0], [bags], [1]), count)
    numbers = g.broadcast_in_dim(g.constant(np.arange(bags, dtype=np.int32)), (bags, count), (0,))
    member = g.compare(numbers, g.broadcast_in_dim(mine, (bags, count), (1,)), direction="EQ")
    rows = g.take(weight, indices, 0)
    if per_sample_weights is not None:
        rows = rows * g.broadcast_in_dim(per_sample_weights, rows.shape, (0,))
    total = g.matmul(g.cast(member, weight.dtype), rows)
    size = g.reduce(g.cast(member, "int32"), kind="add", dimensions=1)
    if mode == 1:
        share = g.maximum(g.cast(size, "float32"), g.full((bags,), 1.0, "float32"))
        total = total / g.broadcast_in_dim(g.cast(share, weight.dtype), total.shape, (0,))
    kind = offsets.dtype
    if mode == 0 and weight.dtype in ("float32", "float16"):
        # Torch's kernels for these do not note which bag a row went to.
        none = g.full((bags,), 0, kind)
        return total, g.full((0,), 0, kind), none, none
    return total, g.cast(mine, kind), g.cast(size, kind), g.cast(size, kind)


@torch_op("aten::_embedding_bag_dense_backward(Tensor grad, Tensor indices, Tensor offset2bag, "
          "Tensor bag_size, Tensor maximum_indices, SymInt num_weights, bool scale_grad_by_freq, "
          "int mode, Tensor? per_sample_weights, int padding_idx=-1) -> Tensor")
def embedding_bag_backward(g: Builder, grad: Value, indices: Value, offset2bag: Value,
                           bag_size: Value, maximum_indices: Value, num_weights: int,
                           scale_grad_by_freq: bool, mode: int,
                           per_sample_weights: Value | None, padding_idx: int = -1) -> Value:
    """Each bag's gradient added to the rows it was made of."""
    if mode > 1 or padding_idx >= 0 or scale_grad_by_freq:
        raise refuse("the gradient of embedding_bag by maximum, with padding, or by frequency",
                     g.where)
    if mode == 1:
        share = g.maximum(g.cast(bag_size, "float32"), g.full(bag_size.shape, 1.0, "float32"))
        grad = grad / g.broadcast_in_dim(g.cast(share, grad.dtype), grad.shape, (0,))
    rows = g.take(grad, offset2bag, 0)
    if per_sample_weights is not None:
        rows = rows * g.broadcast_in_dim(per_sample_weights, rows.shape, (0,))
    zero = g.full((num_weights, grad.shape[1]), 0.0, grad.dtype)
    places = g.broadcast_in_dim(indices, rows.shape, (0,))
    return scatter_add(g, zero, 0, places, rows)


@torch_op("aten::_embedding_bag_per_sample_weights_backward(Tensor grad, Tensor weight, Tensor "
          "indices, Tensor offsets, Tensor offset2bag, int mode, int padding_idx=-1) -> Tensor")
def embedding_bag_weights_gradient(g: Builder, grad: Value, weight: Value, indices: Value,
                                   offsets: Value, offset2bag: Value, mode: int,
                                   padding_idx: int = -1) -> Value:
    """For each row of a bag, its product with the bag's gradient; 0 of the padding row."""
    if not offset2bag.size:
        starts = g.slice(offsets, [0], [grad.shape[0]], [1])
        offset2bag = _bag_of_each(g, starts, indices.shape[0])
    made = g.sum(g.take(weight, indices, 0) * g.take(grad, offset2bag, 0), (1,))
    if padding_idx < 0:
        return made
    padding = g.compare(indices, g.like(indices, padding_idx), direction="EQ")
    return g.select(padding, g.like(made, 0.0), made)


__all__ = ["FUNCTIONS"]
