"""Torch rules: views, slices, joining, filling, and arrays made from nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from opentrn.base import dtype as dtype_of
from opentrn.graph.build import Builder
from opentrn.graph.importers.torch_rules import refuse, torch_op
from opentrn.graph.importers.torch_types import DEFAULT, kind_of, restored
from opentrn.graph.ir import Value


@torch_op("aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)",
          "aten::_unsafe_view(Tensor self, SymInt[] size) -> Tensor")
def view(g: Builder, self: Value, size: list[int]) -> Value:
    """The same numbers in row-major order under another shape."""
    return g.reshape(self, tuple(size))


@torch_op("aten::reshape(Tensor(a) self, SymInt[] shape) -> Tensor(a)")
def reshape(g: Builder, self: Value, shape: list[int]) -> Value:
    """The same numbers in row-major order under another shape."""
    return g.reshape(self, tuple(shape))


@torch_op("aten::flatten.using_ints(Tensor(a) self, int start_dim=0, int end_dim=-1) -> Tensor(a)")
def flatten(g: Builder, self: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    """Axes start_dim…end_dim as one."""
    if not self.rank:
        return g.reshape(self, (1,))
    first, last = start_dim % self.rank, end_dim % self.rank
    middle = math.prod(self.shape[first:last + 1])
    return g.reshape(self, (*self.shape[:first], middle, *self.shape[last + 1:]))


@torch_op("aten::permute(Tensor(a) self, int[] dims) -> Tensor(a)")
def permute(g: Builder, self: Value, dims: list[int]) -> Value:
    """Axis i of the result is axis dims[i]."""
    return g.transpose(self, tuple(dims))


@torch_op("aten::transpose.int(Tensor(a) self, int dim0, int dim1) -> Tensor(a)")
def transpose(g: Builder, self: Value, dim0: int, dim1: int) -> Value:
    """Two axes exchanged."""
    if not self.rank:
        return self
    order = list(range(self.rank))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return g.transpose(self, tuple(order))


@torch_op("aten::t(Tensor(a) self) -> Tensor(a)")
def t(g: Builder, self: Value) -> Value:
    """A matrix turned; vectors stay."""
    return g.transpose(self, (1, 0)) if self.rank == 2 else self


@torch_op("aten::unsqueeze(Tensor(a) self, int dim) -> Tensor(a)")
def unsqueeze(g: Builder, self: Value, dim: int) -> Value:
    """A new axis of size 1 at dim."""
    place = dim % (self.rank + 1)
    return g.reshape(self, (*self.shape[:place], 1, *self.shape[place:]))


@torch_op("aten::squeeze.dim(Tensor(a) self, int dim) -> Tensor(a)",
          "aten::squeeze.dims(Tensor(a) self, int[] dim) -> Tensor(a)")
def squeeze(g: Builder, self: Value, dim: int | list[int]) -> Value:
    """The axes in dim dropped if their size is 1."""
    given = dim if isinstance(dim, Sequence) else [dim]
    gone = {d % max(self.rank, 1) for d in given}
    return g.reshape(self, tuple(n for i, n in enumerate(self.shape) if i not in gone or n != 1))


@torch_op("aten::squeeze(Tensor(a) self) -> Tensor(a)")
def squeeze_all(g: Builder, self: Value) -> Value:
    """All axes of size 1 dropped."""
    return g.reshape(self, tuple(n for n in self.shape if n != 1))


@torch_op("aten::expand(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)")
def expand(g: Builder, self: Value, size: list[int], implicit: bool = False) -> Value:
    """Axes of size 1 repeated; -1 keeps an axis."""
    extra = len(size) - self.rank
    shape = tuple(self.shape[i - extra] if n == -1 else n for i, n in enumerate(size))
    return g.broadcast(self, shape)


@torch_op("aten::repeat(Tensor self, SymInt[] repeats) -> Tensor")
def repeat(g: Builder, self: Value, repeats: list[int]) -> Value:
    """The whole array laid out repeats times along each axis."""
    sizes = (*(1,) * (len(repeats) - self.rank), *self.shape)
    spread = tuple(n for pair in zip(repeats, sizes, strict=True) for n in pair)
    places = tuple(range(1, 2 * len(sizes), 2))
    tiled = g.broadcast_in_dim(g.reshape(self, sizes), shape=spread, dimensions=places)
    return g.reshape(tiled, tuple(r * n for r, n in zip(repeats, sizes, strict=True)))


@torch_op("aten::slice.Tensor(Tensor(a) self, int dim=0, SymInt? start=None, SymInt? end=None, "
          "SymInt step=1) -> Tensor(a)")
def slice_axis(g: Builder, self: Value, dim: int = 0, start: int | None = None,
               end: int | None = None, step: int = 1) -> Value:
    """self[start:end:step] along dim, ends pushed inside as in Python."""
    axis = dim % self.rank
    first, last, _ = slice(start, end).indices(self.shape[axis])
    if (first, max(last, first), step) == (0, self.shape[axis], 1):
        return self
    starts, limits, strides = [0] * self.rank, list(self.shape), [1] * self.rank
    starts[axis], limits[axis], strides[axis] = first, max(last, first), step
    return g.slice(self, starts, limits, strides)


@torch_op("aten::narrow(Tensor(a) self, int dim, SymInt start, SymInt length) -> Tensor(a)")
def narrow(g: Builder, self: Value, dim: int, start: int, length: int) -> Value:
    """length elements from start on, along dim."""
    first = start % self.shape[dim]
    return slice_axis(g, self, dim, first, first + length)


@torch_op("aten::select.int(Tensor(a) self, int dim, SymInt index) -> Tensor(a)")
def select(g: Builder, self: Value, dim: int, index: int) -> Value:
    """One element of an axis, which disappears."""
    axis = dim % self.rank
    place = index % self.shape[axis]
    return squeeze(g, slice_axis(g, self, axis, place, place + 1), axis)


@torch_op("aten::cat(Tensor[] tensors, int dim=0) -> Tensor")
def cat(g: Builder, tensors: list[Value], dim: int = 0) -> Value:
    """The tensors one after the other along dim; torch's old empty vectors are skipped."""
    kept = [x for x in tensors if x.shape != (0,)] or tensors[:1]
    kind = _join(kept)
    return g.concatenate(*(g.cast(x, kind) for x in kept), dimension=dim)


def _join(tensors: list[Value]) -> str:
    from opentrn.graph.importers.torch_types import common_dtype
    return common_dtype(*tensors)


@torch_op("aten::stack(Tensor[] tensors, int dim=0) -> Tensor")
def stack(g: Builder, tensors: list[Value], dim: int = 0) -> Value:
    """The tensors along a new axis."""
    axis = dim % (tensors[0].rank + 1)
    return cat(g, [unsqueeze(g, x, axis) for x in tensors], axis)


@torch_op("aten::split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]")
def split(g: Builder, self: Value, split_size: int, dim: int = 0) -> list[Value]:
    """Pieces of split_size along dim; the last may be shorter."""
    size = self.shape[dim]
    return [slice_axis(g, self, dim, i, min(i + split_size, size))
            for i in range(0, max(size, 1), max(split_size, 1))]


@torch_op("aten::split_with_sizes(Tensor(a -> *) self, SymInt[] split_sizes, int dim=0) -> "
          "Tensor(a)[]")
def split_with_sizes(g: Builder, self: Value, split_sizes: list[int], dim: int = 0) -> list[Value]:
    """Pieces of the given sizes along dim."""
    ends = np.cumsum(split_sizes)
    return [slice_axis(g, self, dim, int(e) - n, int(e))
            for e, n in zip(ends, split_sizes, strict=True)]


@torch_op("aten::unbind.int(Tensor(a -> *) self, int dim=0) -> Tensor(a)[]")
def unbind(g: Builder, self: Value, dim: int = 0) -> list[Value]:
    """Every element of an axis, which disappears."""
    return [select(g, self, dim, i) for i in range(self.shape[dim])]


@torch_op("aten::flip(Tensor self, int[] dims) -> Tensor")
def flip(g: Builder, self: Value, dims: list[int]) -> Value:
    """Back to front along dims."""
    return g.reverse(self, tuple(dims)) if self.rank else self


@torch_op("aten::roll(Tensor self, SymInt[1] shifts, int[1] dims=[]) -> Tensor")
def roll(g: Builder, self: Value, shifts: list[int], dims: list[int] | tuple[()] = ()) -> Value:
    """Elements moved up by shifts along dims; what leaves at the end enters at the start."""
    x = self if dims else g.reshape(self, (self.size,))
    for shift, dim in zip(shifts, dims or [0], strict=True):
        size = x.shape[dim]
        cut = (size - shift) % size if size else 0
        if cut:
            x = cat(g, [slice_axis(g, x, dim, cut, size), slice_axis(g, x, dim, 0, cut)], dim)
    return g.reshape(x, self.shape)


@torch_op("aten::constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor")
def constant_pad_nd(g: Builder, self: Value, pad: list[int], value: Any = 0) -> Value:
    """value before and after each axis; pairs in pad begin with the last axis."""
    low, high = [0] * self.rank, [0] * self.rank
    for i in range(len(pad) // 2):
        low[-1 - i], high[-1 - i] = pad[2 * i], pad[2 * i + 1]
    return g.pad(self, g.full((), value, self.dtype), low, high)


@torch_op("aten::alias(Tensor(a) self) -> Tensor(a)",
          "aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor",
          "aten::contiguous(Tensor(a) self, *, MemoryFormat memory_format=0) -> "
          "Tensor(a)",
          "aten::detach(Tensor(a) self) -> Tensor(a)",
          "aten::detach_(Tensor(a!) self) -> Tensor(a!)",
          "aten::lift_fresh_copy(Tensor self) -> Tensor")
def same(g: Builder, self: Value) -> Value:
    """The tensor itself: values have no memory to share or copy."""
    return self


@torch_op("aten::copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor")
def copied(g: Builder, self: Value, src: Value) -> Value:
    """src with the shape and dtype of self."""
    return g.broadcast(g.cast(src, self.dtype), self.shape)


@torch_op("aten::tril(Tensor self, SymInt diagonal=0) -> Tensor")
def tril(g: Builder, self: Value, diagonal: int = 0) -> Value:
    """0 above the diagonal."""
    return g.select(_triangle(g, self, "LE", diagonal), self, g.like(self, 0))


@torch_op("aten::triu(Tensor self, SymInt diagonal=0) -> Tensor")
def triu(g: Builder, self: Value, diagonal: int = 0) -> Value:
    """0 below the diagonal."""
    return g.select(_triangle(g, self, "GE", diagonal), self, g.like(self, 0))


def _triangle(g: Builder, x: Value, direction: str, diagonal: int) -> Value:
    row = g.iota(x.shape, x.rank - 2, "int32")
    column = g.iota(x.shape, x.rank - 1, "int32")
    return g.compare(column, row + diagonal, direction=direction)


@torch_op("aten::arange.start_step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? "
          "dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor")
def arange(g: Builder, start: Any, end: Any, step: Any = 1, dtype: str | None = None) -> Value:
    """start, start + step, … before end."""
    numbers = [start, end, step]
    default = "int64" if all(kind_of(n) == "int" for n in numbers) else "float32"
    length = max(math.ceil((end - start) / step), 0)
    kind = dtype_of(dtype or default)
    line = g.iota((length,), 0, kind if kind.kind != "bool" else "int32")
    line = line if step == 1 else line * step
    return line if start == 0 else line + start


@torch_op("aten::arange.start(Scalar start, Scalar end, *, ScalarType? dtype=None, Layout? "
          "layout=None, Device? device=None, bool? pin_memory=None) -> Tensor")
def arange_start(g: Builder, start: Any, end: Any, dtype: str | None = None) -> Value:
    """start, start + 1, … before end."""
    return arange(g, start, end, 1, dtype)


@torch_op("aten::arange(Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? "
          "device=None, bool? pin_memory=None) -> Tensor")
def arange_end(g: Builder, end: Any, dtype: str | None = None) -> Value:
    """0, 1, … before end."""
    return arange(g, 0, end, 1, dtype)


@torch_op("aten::full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? "
          "layout=None, Device? device=None, bool? pin_memory=None) -> Tensor")
def full(g: Builder, size: list[int], fill_value: Any, dtype: str | None = None) -> Value:
    """fill_value everywhere."""
    return g.full(tuple(size), fill_value, dtype or DEFAULT[kind_of(fill_value)])


@torch_op("aten::full_like(Tensor self, Scalar fill_value, *, ScalarType? dtype=None, Layout? "
          "layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? "
          "memory_format=None) -> Tensor")
def full_like(g: Builder, self: Value, fill_value: Any, dtype: str | None = None) -> Value:
    """fill_value everywhere, in the shape of self."""
    return g.full(self.shape, fill_value, dtype or self.dtype)


@torch_op("aten::new_full(Tensor self, SymInt[] size, Scalar fill_value, *, ScalarType? "
          "dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor")
def new_full(g: Builder, self: Value, size: list[int], fill_value: Any,
             dtype: str | None = None) -> Value:
    """fill_value everywhere, in the dtype of self."""
    return g.full(tuple(size), fill_value, dtype or self.dtype)


@torch_op("aten::zeros(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? "
          "device=None, bool? pin_memory=None) -> Tensor")
def zeros(g: Builder, size: list[int], dtype: str | None = None) -> Value:
    """0 everywhere."""
    return g.full(tuple(size), 0, dtype or "float32")


@torch_op("aten::ones(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? "
          "device=None, bool? pin_memory=None) -> Tensor")
def ones(g: Builder, size: list[int], dtype: str | None = None) -> Value:
    """1 everywhere."""
    return g.full(tuple(size), 1, dtype or "float32")


@torch_op("aten::zeros_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? "
          "device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor")
def zeros_like(g: Builder, self: Value, dtype: str | None = None) -> Value:
    """0 everywhere, in the shape of self."""
    return g.full(self.shape, 0, dtype or self.dtype)


@torch_op("aten::ones_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? "
          "device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor")
def ones_like(g: Builder, self: Value, dtype: str | None = None) -> Value:
    """1 everywhere, in the shape of self."""
    return g.full(self.shape, 1, dtype or self.dtype)


@torch_op("aten::scalar_tensor(Scalar s, *, ScalarType? dtype=None, Layout? layout=None, Device? "
          "device=None, bool? pin_memory=None) -> Tensor")
def scalar_tensor(g: Builder, s: Any, dtype: str | None = None) -> Value:
    """A number as a tensor without axes; float32 unless said otherwise."""
    return g.full((), s, dtype or "float32")


@torch_op("aten::slice_scatter(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? "
          "end=None, SymInt step=1) -> Tensor")
def slice_scatter(g: Builder, self: Value, src: Value, dim: int = 0, start: int | None = None,
                  end: int | None = None, step: int = 1) -> Value:
    """self with self[start:end] along dim replaced by src."""
    axis = dim % self.rank
    if step != 1:
        raise refuse(f"slice_scatter with step {step}", g.where)
    first, _, _ = slice(start, end).indices(self.shape[axis])
    shape = _cut(self, axis, src)
    last = first + shape[axis]
    parts = [slice_axis(g, self, axis, 0, first), g.broadcast(src, shape),
             slice_axis(g, self, axis, last, self.shape[axis])]
    return cat(g, [g.cast(p, self.dtype) for p in parts if p.size] or [self], axis)


def _cut(x: Value, axis: int, src: Value) -> tuple[int, ...]:
    size = src.shape[axis - x.rank] if src.rank >= x.rank - axis else 1
    return (*x.shape[:axis], size, *x.shape[axis + 1:])


@torch_op("aten::slice_backward(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt start, "
          "SymInt end, SymInt step) -> Tensor")
def slice_backward(g: Builder, grad_output: Value, input_sizes: list[int], dim: int, start: int,
                   end: int, step: int) -> Value:
    """The gradient of self[start:end:step] along dim: 0 where nothing was taken."""
    axis = dim % len(input_sizes)
    first, _, _ = slice(start, end).indices(input_sizes[axis])
    taken = grad_output.shape[axis]
    low, high, interior = ([0] * len(input_sizes) for _ in range(3))
    interior[axis] = step - 1
    low[axis] = first
    high[axis] = input_sizes[axis] - first - (taken - 1) * step - 1
    if not taken:
        return g.full(tuple(input_sizes), 0, grad_output.dtype)
    return g.pad(grad_output, g.full((), 0, grad_output.dtype), low, high, interior)


@torch_op("aten::select_backward(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt index) "
          "-> Tensor")
def select_backward(g: Builder, grad_output: Value, input_sizes: list[int], dim: int,
                    index: int) -> Value:
    """The gradient of one element of an axis: 0 at all others."""
    axis, place = dim % len(input_sizes), index % input_sizes[dim]
    row = restored(g, grad_output, tuple(input_sizes), (axis,), True)
    return slice_backward(g, row, input_sizes, axis, place, place + 1, 1)


@torch_op("aten::select_scatter(Tensor self, Tensor src, int dim, SymInt index) -> Tensor")
def select_scatter(g: Builder, self: Value, src: Value, dim: int, index: int) -> Value:
    """self with one element of axis dim replaced by src."""
    axis = dim % self.rank
    place = index % self.shape[axis]
    row = restored(g, src, self.shape, (axis,), True)
    return slice_scatter(g, self, row, axis, place, place + 1)
