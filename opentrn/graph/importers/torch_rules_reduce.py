"""Torch rules: sums, extremes, norms of statistics, running totals, order."""

from __future__ import annotations

from typing import Any

from opentrn.base import dtype as dtype_of
from opentrn.graph.build import Builder
from opentrn.graph.importers.torch_rules import refuse, torch_op
from opentrn.graph.importers.torch_types import axes, floated, restored
from opentrn.graph.ir import Value

Dims = list[int] | int | None


def reduced(g: Builder, x: Value, kind: str, dim: Dims, keep: bool) -> Value:
    """`reduce` with torch's `dim` and `keepdim`."""
    over = axes(dim, x.rank)
    if not over:
        return x
    return restored(g, g.reduce(x, kind=kind, dimensions=over), x.shape, over, keep)


def _summable(g: Builder, x: Value, dtype: str | None) -> Value:
    """Bool and short integers are summed as int64."""
    if dtype is not None:
        return g.cast(x, dtype)
    return x if x.dtype.kind == "float" else g.cast(x, "int64")


@torch_op("aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? "
          "dtype=None) -> Tensor")
def sum_dim(g: Builder, self: Value, dim: Dims, keepdim: bool = False,
            dtype: str | None = None) -> Value:
    """Sum over dim."""
    return reduced(g, _summable(g, self, dtype), "add", dim, keepdim)


@torch_op("aten::sum(Tensor self, *, ScalarType? dtype=None) -> Tensor")
def sum_all(g: Builder, self: Value, dtype: str | None = None) -> Value:
    """Sum of all elements."""
    return sum_dim(g, self, None, False, dtype)


@torch_op("aten::mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? "
          "dtype=None) -> Tensor")
def mean_dim(g: Builder, self: Value, dim: Dims, keepdim: bool = False,
             dtype: str | None = None) -> Value:
    """Mean over dim."""
    x = self if dtype is None else g.cast(self, dtype)
    return g.mean(x, axes(dim, x.rank), keepdim)


@torch_op("aten::mean(Tensor self, *, ScalarType? dtype=None) -> Tensor")
def mean_all(g: Builder, self: Value, dtype: str | None = None) -> Value:
    """Mean of all elements."""
    return mean_dim(g, self, None, False, dtype)


@torch_op("aten::prod.dim_int(Tensor self, int dim, bool keepdim=False, *, ScalarType? "
          "dtype=None) -> Tensor")
def prod_dim(g: Builder, self: Value, dim: int, keepdim: bool = False,
             dtype: str | None = None) -> Value:
    """Product over dim."""
    return reduced(g, _summable(g, self, dtype), "multiply", dim, keepdim)


@torch_op("aten::amax(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor")
def amax(g: Builder, self: Value, dim: Any = (), keepdim: bool = False) -> Value:
    """The largest over dim."""
    return reduced(g, self, "maximum", list(dim), keepdim)


@torch_op("aten::amin(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor")
def amin(g: Builder, self: Value, dim: Any = (), keepdim: bool = False) -> Value:
    """The smallest over dim."""
    return reduced(g, self, "minimum", list(dim), keepdim)


@torch_op("aten::max(Tensor self) -> Tensor")
def max_all(g: Builder, self: Value) -> Value:
    """The largest of all elements."""
    return reduced(g, self, "maximum", None, False)


@torch_op("aten::min(Tensor self) -> Tensor")
def min_all(g: Builder, self: Value) -> Value:
    """The smallest of all elements."""
    return reduced(g, self, "minimum", None, False)


@torch_op("aten::max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor "
          "indices)")
def max_dim(g: Builder, self: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """The largest over dim and where it is."""
    return reduced(g, self, "maximum", dim, keepdim), argmax(g, self, dim, keepdim)


@torch_op("aten::min.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor "
          "indices)")
def min_dim(g: Builder, self: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """The smallest over dim and where it is."""
    return reduced(g, self, "minimum", dim, keepdim), argmin(g, self, dim, keepdim)


@torch_op("aten::argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor")
def argmax(g: Builder, self: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """Where the largest over dim is; over all elements counted in row-major order."""
    if dim is None:
        found = g.argmax(g.reshape(self, (self.size,)), 0, "int64")
        return g.reshape(found, (1,) * self.rank) if keepdim else found
    over = axes(dim, self.rank)
    if not over:
        return g.full((), 0, "int64")
    return restored(g, g.argmax(self, over[0], "int64"), self.shape, over, keepdim)


@torch_op("aten::argmin(Tensor self, int? dim=None, bool keepdim=False) -> Tensor")
def argmin(g: Builder, self: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """Where the smallest over dim is."""
    if self.dtype.kind == "uint":
        raise refuse(f"argmin of {self.dtype}", g.where, "convert it to int32")
    turned = g.not_(self) if self.dtype.kind == "int" else g.negate(self)
    return argmax(g, turned, dim, keepdim)


def _truth(g: Builder, x: Value) -> Value:
    return g.cast(x, "bool")


@torch_op("aten::any.dim(Tensor self, int dim, bool keepdim=False) -> Tensor",
          "aten::any.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor")
def any_dim(g: Builder, self: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    """Whether one over dim is not 0."""
    return reduced(g, _truth(g, self), "or", dim, keepdim)


@torch_op("aten::all.dim(Tensor self, int dim, bool keepdim=False) -> Tensor",
          "aten::all.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor")
def all_dim(g: Builder, self: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    """Whether none over dim is 0."""
    return reduced(g, _truth(g, self), "and", dim, keepdim)


@torch_op("aten::any(Tensor self) -> Tensor")
def any_all(g: Builder, self: Value) -> Value:
    """Whether any element is not 0."""
    return any_dim(g, self, None)


@torch_op("aten::all(Tensor self) -> Tensor")
def all_all(g: Builder, self: Value) -> Value:
    """Whether no element is 0."""
    return all_dim(g, self, None)


@torch_op("aten::var.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool "
          "keepdim=False) -> Tensor")
def var(g: Builder, self: Value, dim: Dims = None, correction: float | None = None,
        keepdim: bool = False) -> Value:
    """Mean square distance from the mean, divided by count - correction (1 if not given)."""
    over = axes(dim, self.rank)
    x = g.cast(self, "float64" if self.dtype == "float64" else "float32")
    moved = x - g.broadcast(g.mean(x, over, keep=True), x.shape)
    total = g.sum(moved * moved, over, keep=keepdim)
    count = self.size // max(total.size, 1) - (1 if correction is None else correction)
    return g.cast(total / float(max(count, 0)), self.dtype)


@torch_op("aten::var_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, "
          "bool keepdim=False) -> (Tensor, Tensor)")
def var_mean(g: Builder, self: Value, dim: Dims = None, correction: float | None = None,
             keepdim: bool = False) -> tuple[Value, Value]:
    """Variance and mean."""
    return var(g, self, dim, correction, keepdim), mean_dim(g, self, dim, keepdim)


@torch_op("aten::std.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool "
          "keepdim=False) -> Tensor")
def std(g: Builder, self: Value, dim: Dims = None, correction: float | None = None,
        keepdim: bool = False) -> Value:
    """Root of the variance."""
    return g.sqrt(var(g, self, dim, correction, keepdim))


@torch_op("aten::logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor")
def logsumexp(g: Builder, self: Value, dim: Dims, keepdim: bool = False) -> Value:
    """log Σ e^self over dim; the largest is taken out first, unless it is infinite."""
    x = g.cast(self, floated(self.dtype))
    top = reduced(g, x, "maximum", dim, True)
    top = g.select(g.is_finite(top), top, g.like(top, 0.0))
    total = reduced(g, g.exponential(x - g.broadcast(top, x.shape)), "add", dim, True)
    result = g.log(total) + top
    over = axes(dim, x.rank)
    kept = tuple(n for i, n in enumerate(result.shape) if keepdim or i not in over)
    return g.reshape(result, kept)


@torch_op("aten::linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool "
          "keepdim=False, *, ScalarType? dtype=None) -> Tensor")
def vector_norm(g: Builder, self: Value, ord: Any = 2, dim: Dims = None, keepdim: bool = False,
                dtype: str | None = None) -> Value:
    """(Σ |self|ᵒʳᵈ)^(1/ord) over dim; of order 0 how many are not 0, of ±∞ the extreme."""
    x = self if dtype is None else g.cast(self, dtype)
    if ord == 2:
        return g.sqrt(reduced(g, x * x, "add", dim, keepdim))
    if ord == 1:
        return reduced(g, g.abs(x), "add", dim, keepdim)
    if ord == float("inf"):
        return reduced(g, g.abs(x), "maximum", dim, keepdim)
    if ord == -float("inf"):
        return reduced(g, g.abs(x), "minimum", dim, keepdim)
    if ord == 0:
        counted = g.cast(g.compare(x, g.like(x, 0.0), direction="NE"), x.dtype)
        return reduced(g, counted, "add", dim, keepdim)
    total = reduced(g, g.power(g.abs(x), g.like(x, float(ord))), "add", dim, keepdim)
    return g.power(total, g.like(total, 1.0 / ord))


@torch_op("aten::cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor")
def cumsum(g: Builder, self: Value, dim: int, dtype: str | None = None) -> Value:
    """Running sum along dim."""
    x = _summable(g, self, dtype)
    return g.cumulative(x, "add", dim) if x.rank else x


@torch_op("aten::cumprod(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor")
def cumprod(g: Builder, self: Value, dim: int, dtype: str | None = None) -> Value:
    """Running product along dim."""
    x = _summable(g, self, dtype)
    return g.cumulative(x, "multiply", dim) if x.rank else x


def _alone(g: Builder, x: Value) -> tuple[Value, Value]:
    """What an order makes of a tensor without axes: itself, at place 0."""
    return x, g.full((), 0, "int64")


@torch_op("aten::topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> "
          "(Tensor values, Tensor indices)")
def topk(g: Builder, self: Value, k: int, dim: int = -1, largest: bool = True,
         sorted: bool = True) -> tuple[Value, Value]:
    """The k largest (or smallest) along dim, in order, and where they are."""
    if not self.rank:
        return _alone(g, self)
    axis = dim % self.rank
    order = [*(i for i in range(self.rank) if i != axis), axis]
    back = [order.index(i) for i in range(self.rank)]
    x = g.transpose(self, order)
    if largest:
        values, indices = g.top_k(x, k), g.top_k(x, k, "indices")
    else:
        limits = [0] * self.rank, [*x.shape[:-1], k], [1] * self.rank
        values = g.slice(g.sort(x, -1), *limits)
        indices = g.slice(g.sort(x, -1, part="indices"), *limits)
    return g.transpose(values, back), g.cast(g.transpose(indices, back), "int64")


@torch_op("aten::sort(Tensor self, int dim=-1, bool descending=False) -> (Tensor values, Tensor "
          "indices)")
def sort(g: Builder, self: Value, dim: int = -1,
         descending: bool = False) -> tuple[Value, Value]:
    """In order along dim, and where each came from; equal elements keep their order."""
    if not self.rank:
        return _alone(g, self)
    values = g.sort(self, dim, descending)
    return values, g.cast(g.sort(self, dim, descending, "indices"), "int64")


@torch_op("aten::sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> "
          "(Tensor values, Tensor indices)")
def sort_stable(g: Builder, self: Value, stable: bool | None, dim: int = -1,
                descending: bool = False) -> tuple[Value, Value]:
    """As `sort`, which is stable anyway."""
    return sort(g, self, dim, descending)


@torch_op("aten::kthvalue(Tensor self, SymInt k, int dim=-1, bool keepdim=False) -> (Tensor "
          "values, Tensor indices)")
def kthvalue(g: Builder, self: Value, k: int, dim: int = -1,
             keepdim: bool = False) -> tuple[Value, Value]:
    """The k-th smallest along dim, counted from 1, and where it is."""
    if not self.rank:
        return _alone(g, self)
    axis = dim % self.rank
    first, limits = [0] * self.rank, list(self.shape)
    first[axis], limits[axis] = k - 1, k
    found = [g.slice(x, first, limits, [1] * self.rank) for x in sort(g, self, dim)]
    if keepdim:
        return found[0], found[1]
    shape = self.shape[:axis] + self.shape[axis + 1:]
    return g.reshape(found[0], shape), g.reshape(found[1], shape)


@torch_op("aten::_softmax(Tensor self, int dim, bool half_to_float) -> Tensor")
def softmax_core(g: Builder, self: Value, dim: int, half_to_float: bool) -> Value:
    """eˣ / Σ eˣ along dim."""
    return softmax(g, self, dim, dtype_of("float32") if half_to_float else None)


@torch_op("aten::softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor")
def softmax(g: Builder, self: Value, dim: int, dtype: str | None = None) -> Value:
    """eˣ / Σ eˣ along dim."""
    x = self if dtype is None else g.cast(self, dtype)
    return g.softmax(x, dim) if x.rank else g.reshape(g.softmax(g.reshape(x, (1,)), 0), ())


@torch_op("aten::_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor")
def log_softmax_core(g: Builder, self: Value, dim: int, half_to_float: bool) -> Value:
    """x - log Σ eˣ along dim."""
    return log_softmax(g, self, dim, dtype_of("float32") if half_to_float else None)


@torch_op("aten::log_softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor")
def log_softmax(g: Builder, self: Value, dim: int, dtype: str | None = None) -> Value:
    """x - log Σ eˣ along dim."""
    x = self if dtype is None else g.cast(self, dtype)
    return g.log_softmax(x, dim) if x.rank else g.reshape(g.log_softmax(g.reshape(x, (1,)), 0), ())
