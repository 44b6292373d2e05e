"""Ops that multiply and sum: `dot_general` and `convolution`, the tensor engine's work."""

from __future__ import annotations

import numpy as np

from opentrn.base import DType
from opentrn.graph import carriers
from opentrn.graph.ops.define import (
    Ints,
    LaterDType,
    Op,
    Pairs,
    Traffic,
    Type,
    Wrong,
    axes_of,
    count,
    same_dtype,
    stream,
)

FEW = 8  # so few products are as quickly summed without BLAS
FP8 = ("float8_e4m3", "float8_e4m3fn", "float8_e5m2", "float8_e3m4")


def _pair_dtype(lhs: Type, rhs: Type) -> DType:
    """The operands' dtype; two different float8 formats may meet."""
    if lhs.dtype in FP8 and rhs.dtype in FP8:
        return lhs.dtype
    return same_dtype(lhs, rhs)


def _summed(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Products of matrices, summed one after the other, each rounded, as StableHLO's reference does
    (BLAS keeps more digits of each product, and has another order)."""
    total = np.zeros((a.shape[0], a.shape[1], b.shape[2]), a.dtype)
    for k in range(a.shape[2]):
        total = total + a[:, :, k, None] * b[:, None, k]
    return total


class DotGeneral(Op):
    """Sum of products over the contracting axes, for each batch element.

    Axes of the result: batch, then the free axes of lhs, then those of rhs.  Products are summed
    in float32 (float64, integers: in that dtype) and rounded once, to `dtype`."""

    operands = ("lhs", "rhs")
    law = ("contracting axes pair up with equal sizes, so do batch axes; both operands have one "
           "dtype")
    lhs_contracting: Ints
    rhs_contracting: Ints
    lhs_batch: Ints = ()
    rhs_batch: Ints = ()
    dtype: LaterDType = ""

    def settle(self, lhs: Type, rhs: Type) -> DotGeneral:
        left, right = len(lhs.shape), len(rhs.shape)
        return DotGeneral(
            axes_of(self.lhs_contracting, left, "lhs_contracting"),
            axes_of(self.rhs_contracting, right, "rhs_contracting"),
            axes_of(self.lhs_batch, left, "lhs_batch"),
            axes_of(self.rhs_batch, right, "rhs_batch"),
            self.dtype or lhs.dtype)

    def result(self, lhs: Type, rhs: Type) -> Type:
        if _pair_dtype(lhs, rhs).kind not in ("float", "int", "uint", "complex"):
            raise Wrong(f"cannot multiply {lhs.dtype}", fix="convert to a number", kind="dtype")
        for mine, other, name in ((self.lhs_contracting, self.rhs_contracting, "contracting"),
                                  (self.lhs_batch, self.rhs_batch, "batch")):
            if len(mine) != len(other):
                raise Wrong(f"{len(mine)} {name} axes on the left, {len(other)} on the right")
            for a, b in zip(mine, other, strict=True):
                if lhs.shape[a] != rhs.shape[b]:
                    raise Wrong(f"{name} axes lhs {a} and rhs {b} have sizes {lhs.shape[a]} and "
                                f"{rhs.shape[b]}")
        if set(self.lhs_contracting) & set(self.lhs_batch):
            raise Wrong("an axis is both contracting and batch", kind="attribute")
        left, right = self.free(lhs, rhs)
        batch = tuple(lhs.shape[a] for a in self.lhs_batch)
        sizes = tuple(lhs.shape[a] for a in left) + tuple(rhs.shape[a] for a in right)
        return Type(batch + sizes, self.dtype)

    def free(self, lhs: Type, rhs: Type) -> tuple[Ints, Ints]:
        """The axes of lhs and of rhs that are neither contracting nor batch."""
        used_left = {*self.lhs_contracting, *self.lhs_batch}
        used_right = {*self.rhs_contracting, *self.rhs_batch}
        return (tuple(a for a in range(len(lhs.shape)) if a not in used_left),
                tuple(a for a in range(len(rhs.shape)) if a not in used_right))

    def sizes(self, lhs: Type, rhs: Type) -> tuple[int, int, int, int]:
        """(B, M, K, N): batch, free lhs, contracted and free rhs elements."""
        left, right = self.free(lhs, rhs)
        return (count(tuple(lhs.shape[a] for a in self.lhs_batch)),
                count(tuple(lhs.shape[a] for a in left)),
                count(tuple(lhs.shape[a] for a in self.lhs_contracting)),
                count(tuple(rhs.shape[a] for a in right)))

    def evaluate(self, out: Type, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        kinds = Type(lhs.shape, out.dtype), Type(rhs.shape, out.dtype)
        left, right = self.free(*kinds)
        batch, rows, inner, columns = self.sizes(*kinds)
        sums = np.promote_types(lhs.dtype, carriers.work(out.dtype))
        lhs, rhs = lhs.astype(sums, copy=False), rhs.astype(sums, copy=False)
        a = lhs.transpose(self.lhs_batch + left + self.lhs_contracting)
        b = rhs.transpose(self.rhs_batch + self.rhs_contracting + right)
        a, b = a.reshape(batch, rows, inner), b.reshape(batch, inner, columns)
        product = _summed(a, b) if sums.kind == "c" else np.matmul(a, b)
        return product.reshape(out.shape)

    def flops(self, out: Type, lhs: Type, rhs: Type) -> int:
        batch, rows, inner, columns = self.sizes(lhs, rhs)
        return 2 * batch * rows * inner * columns

    def traffic(self, out: Type, lhs: Type, rhs: Type) -> Traffic:
        return stream(out, lhs, rhs)


class Convolution(Op):
    """Slide `rhs` (kernel) over `lhs` (image) and sum products, in float32.

    `lhs_axes` and `out_axes` say where batch, feature and then the spatial axes are; `rhs_axes`
    where output feature, input feature and then the spatial axes are.  Left out, they are NC… and
    OI….  `lhs_dilation` puts zeros between image elements (transposed convolution)."""

    operands = ("lhs", "rhs")
    law = ("lhs features = groups · rhs input features; rhs output features divide by groups; one "
           "stride, padding and dilation for each spatial axis")
    strides: Ints
    padding: Pairs
    lhs_dilation: Ints = ()
    rhs_dilation: Ints = ()
    groups: int = 1
    lhs_axes: Ints = ()
    rhs_axes: Ints = ()
    out_axes: Ints = ()

    def settle(self, lhs: Type, rhs: Type) -> Convolution:
        rank = len(lhs.shape)
        plain, ones = tuple(range(rank)), (1,) * max(rank - 2, 0)
        return Convolution(self.strides, self.padding, self.lhs_dilation or ones,
                           self.rhs_dilation or ones, self.groups, self.lhs_axes or plain,
                           self.rhs_axes or plain, self.out_axes or plain)

    def _check(self, lhs: Type, rhs: Type) -> None:
        rank = len(lhs.shape)
        _pair_dtype(lhs, rhs)
        if rank < 3 or len(rhs.shape) != rank:
            raise Wrong(f"image and kernel have {rank} and {len(rhs.shape)} axes; both need the "
                        "same, at least 3")
        for axes in (self.lhs_axes, self.rhs_axes, self.out_axes):
            if sorted(axes) != list(range(rank)):
                raise Wrong(f"axes {axes} do not name each of {rank} axes once", kind="attribute")
        for given in (self.strides, self.padding, self.lhs_dilation, self.rhs_dilation):
            if len(given) != rank - 2:
                raise Wrong(f"{given} should have {rank - 2} entries", kind="attribute")
        steps = (*self.strides, *self.lhs_dilation, *self.rhs_dilation, self.groups)
        if min(steps) < 1:
            raise Wrong("strides, dilations and groups are at least 1", kind="attribute")

    def result(self, lhs: Type, rhs: Type) -> Type:
        self._check(lhs, rhs)
        image = tuple(lhs.shape[a] for a in self.lhs_axes)
        kernel = tuple(rhs.shape[a] for a in self.rhs_axes)
        if image[1] != self.groups * kernel[1] or kernel[0] % self.groups:
            raise Wrong(f"{image[1]} image features, {self.groups} groups, kernel "
                        f"{kernel[0]}x{kernel[1]}")
        sizes = [image[0], kernel[0]]
        for i, (n, k) in enumerate(zip(image[2:], kernel[2:], strict=True)):
            grown = (n - 1) * self.lhs_dilation[i] + 1 if n else 0
            reach = (k - 1) * self.rhs_dilation[i] + 1
            room = grown + sum(self.padding[i]) - reach
            sizes.append(room // self.strides[i] + 1 if room >= 0 else 0)
        shape = [0] * len(sizes)
        for axis, size in zip(self.out_axes, sizes, strict=True):
            shape[axis] = size
        return Type(tuple(shape), lhs.dtype)

    def _image(self, lhs: np.ndarray) -> np.ndarray:
        """The image as N C spatial…, dilated and padded with zeros."""
        image = lhs.transpose(self.lhs_axes)
        spread = [(n - 1) * d + 1 if n else 0
                  for n, d in zip(image.shape[2:], self.lhs_dilation, strict=True)]
        room = [max(lo, 0) + n + max(hi, 0)
                for n, (lo, hi) in zip(spread, self.padding, strict=True)]
        grown = np.zeros((*image.shape[:2], *room), dtype=image.dtype)
        inner = tuple(slice(max(lo, 0), max(lo, 0) + n, d) for n, (lo, _), d in
                      zip(spread, self.padding, self.lhs_dilation, strict=True))
        grown[(slice(None), slice(None), *inner)] = image
        cut = tuple(slice(max(-lo, 0), n - max(-hi, 0))
                    for n, (lo, hi) in zip(room, self.padding, strict=True))
        return grown[(slice(None), slice(None), *cut)]

    def evaluate(self, out: Type, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        if not count(out.shape):
            return np.zeros(out.shape, dtype=lhs.dtype)
        image, kernel = self._image(lhs), rhs.transpose(self.rhs_axes)
        spatial = len(self.strides)
        reach = tuple((k - 1) * d + 1
                      for k, d in zip(kernel.shape[2:], self.rhs_dilation, strict=True))
        axes = tuple(range(2, 2 + spatial))
        windows = np.lib.stride_tricks.sliding_window_view(image, reach, axes)
        steps = tuple(slice(None, None, s) for s in self.strides)
        taps = tuple(slice(None, None, d) for d in self.rhs_dilation)
        windows = windows[(slice(None), slice(None), *steps, *taps)]
        places = windows.shape[2:2 + spatial]
        inner = count(kernel.shape[1:])
        per_group = kernel.shape[0] // self.groups
        # N G C' places… taps…  ->  G, N·places, C'·taps
        split = windows.reshape(image.shape[0], self.groups, kernel.shape[1], *windows.shape[2:])
        order = (1, 0, *range(3, 3 + spatial), 2, *range(3 + spatial, 3 + 2 * spatial))
        rows = split.transpose(order).reshape(self.groups, -1, inner)
        weights = kernel.reshape(self.groups, per_group, inner).transpose(0, 2, 1)
        product = _summed(rows, weights) if inner <= FEW else np.matmul(rows, weights)
        product = product.reshape(self.groups, image.shape[0], count(places), per_group)
        plain = product.transpose(1, 0, 3, 2).reshape(image.shape[0], kernel.shape[0], *places)
        return plain.transpose(np.argsort(self.out_axes))

    def flops(self, out: Type, lhs: Type, rhs: Type) -> int:
        kernel = [rhs.shape[a] for a in self.rhs_axes]
        return 2 * out.size * count(tuple(kernel[1:]))

    def traffic(self, out: Type, lhs: Type, rhs: Type) -> Traffic:
        return stream(out, lhs, rhs)
