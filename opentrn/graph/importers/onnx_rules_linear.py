"""ONNX rules: products, convolutions, einsum, attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentrn.graph.importers.onnx_call import Node, onnx_op
from opentrn.graph.importers.onnx_rules_elementwise import torch_rule
from opentrn.graph.importers.torch_rules_linear import _turned
from opentrn.graph.ir import Value


def matmul_of(n: Node, x: Value, y: Value) -> Value:
    """NumPy's matmul."""
    if y.rank == 1:
        return n.g.dot_general(x, y, lhs_contracting=-1, rhs_contracting=0)
    return torch_rule(n, "matmul", x, y)


@onnx_op("MatMul")
def matmul(n: Node) -> Value:
    """NumPy's matmul: vectors are rows or columns, leading axes are broadcast."""
    return matmul_of(n, n.arg(0), n.arg(1))


@onnx_op("Gemm")
def gemm(n: Node) -> Value:
    """alpha · A B + beta · C, A and B turned where the node says so."""
    a, b, alpha, beta = n.arg(0), n.arg(1), n.attr("alpha"), n.attr("beta")
    y = n.g.dot_general(a, b, lhs_contracting=0 if n.attr("transA") else 1,
                        rhs_contracting=1 if n.attr("transB") else 0)
    y = y if alpha == 1 else _scaled(n, y, alpha)
    if not n.has(2) or not beta:
        return y
    c = n.g.broadcast(n.arg(2), y.shape)
    return y + (c if beta == 1 else _scaled(n, c, beta))


def _scaled(n: Node, x: Value, by: float) -> Value:
    if x.dtype.kind == "float":
        return x * by
    if by != int(by):
        raise n.refuse(f"whole numbers times {by}")
    return x * int(by)


# ------------------------------------------------------------------------------------- convolutions


def edges(n: Node, sizes: Sequence[int], taps: Sequence[int], strides: Sequence[int],
          dilations: Sequence[int]) -> list[tuple[int, int]]:
    """Padding before and after each spatial axis, by `auto_pad` or `pads`."""
    auto = n.attr("auto_pad", "NOTSET")
    if auto == "NOTSET":
        pads = n.attr("pads") or [0] * 2 * len(taps)
        if len(pads) != 2 * len(taps):
            raise n.refuse(f"{len(pads)} pads for {len(taps)} axes")
        return list(zip(pads[:len(taps)], pads[len(taps):], strict=True))
    if auto == "VALID":
        return [(0, 0)] * len(taps)
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        raise n.refuse(f"`auto_pad` is {auto!r}")
    made = []
    for size, k, s, d in zip(sizes, taps, strides, dilations, strict=True):
        total = max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
        small, large = total // 2, total - total // 2
        made.append((small, large) if auto == "SAME_UPPER" else (large, small))
    return made


def conv_of(n: Node, x: Value, weight: Value, bias: Value | None = None) -> Value:
    """A convolution by the node's attributes."""
    spatial = x.rank - 2
    strides = n.attr("strides") or [1] * spatial
    dilations = n.attr("dilations") or [1] * spatial
    taps = n.attr("kernel_shape") or weight.shape[2:]
    if tuple(taps) != weight.shape[2:]:
        raise n.refuse(f"`kernel_shape` is {list(taps)}, the weights are {list(weight.shape)}")
    padding = edges(n, x.shape[2:], taps, strides, dilations)
    y = n.g.convolution(x, weight, strides=strides, padding=padding, rhs_dilation=dilations,
                        groups=n.attr("group"))
    if bias is None:
        return y
    return y + n.g.broadcast_in_dim(bias, shape=y.shape, dimensions=(1,))


@onnx_op("Conv")
def conv(n: Node) -> Value:
    """Convolution (correlation) of NC… with OI…."""
    return conv_of(n, n.arg(0), n.arg(1), n.arg(2) if n.has(2) else None)


@onnx_op("ConvTranspose")
def conv_transpose(n: Node) -> Value:
    """The adjoint of a convolution."""
    x, weight = n.arg(0), n.arg(1)
    spatial, groups = x.rank - 2, n.attr("group")
    strides = n.attr("strides") or [1] * spatial
    dilations = n.attr("dilations") or [1] * spatial
    extra = n.attr("output_padding") or [0] * spatial
    taps = weight.shape[2:]
    cuts = _cuts(n, x.shape[2:], taps, strides, dilations, extra)
    padding = [(d * (k - 1) - lo, d * (k - 1) - hi + e) for d, k, e, (lo, hi) in
               zip(dilations, taps, extra, cuts, strict=True)]
    y = n.g.convolution(x, _turned(n.g, weight, groups), strides=[1] * spatial, padding=padding,
                        lhs_dilation=strides, rhs_dilation=dilations, groups=groups)
    if not n.has(2):
        return y
    return y + n.g.broadcast_in_dim(n.arg(2), shape=y.shape, dimensions=(1,))


def _cuts(n: Node, sizes: Sequence[int], taps: Sequence[int], strides: Sequence[int],
          dilations: Sequence[int], extra: Sequence[int]) -> list[tuple[int, int]]:
    """What a transposed convolution cuts off each end: `pads`, or what makes `output_shape`."""
    auto, wanted = n.attr("auto_pad", "NOTSET"), n.attr("output_shape")
    if wanted is None and not auto.startswith("SAME"):
        return edges(n, sizes, taps, strides, dilations)
    made = []
    wanted = wanted or [size * s for size, s in zip(sizes, strides, strict=True)]
    for size, k, s, d, e, want in zip(sizes, taps, strides, dilations, extra,
                                      wanted[-len(sizes):], strict=True):
        total = s * (size - 1) + e + (k - 1) * d + 1 - want
        small = total // 2
        made.append((small, total - small) if auto == "SAME_UPPER" else (total - small, small))
    return made


# ------------------------------------------------------------------------------------------- einsum


@onnx_op("Einsum")
def einsum(n: Node) -> Value:
    """Sums of products over the letters an equation leaves out, two operands at a time."""
    equation = n.attr("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    values = n.values
    if len(terms) != len(values):
        raise n.refuse(f"{len(values)} inputs for {equation!r}")
    spelled = [_letters(n, t, v) for t, v in zip(terms, values, strict=True)]
    dots = max((s for s, t in zip(spelled, terms, strict=True) if "..." in t), default=[],
               key=lambda s: sum(isinstance(c, int) for c in s))
    dots = [c for c in dots if isinstance(c, int)]
    if arrow:
        before, ellipsis, after = right.partition("...")
        out = [*before, *(dots if ellipsis else []), *after]
    else:
        every = [c for s in spelled for c in s if isinstance(c, str)]
        out = [*dots, *sorted(c for c in set(every) if every.count(c) == 1)]
    return _contracted(n, [_diagonal(n, v, s) for v, s in zip(values, spelled, strict=True)], out)


def _letters(n: Node, term: str, x: Value) -> list[Any]:
    """One label for each axis: letters, and numbers (from the end, -1) for those of the dots."""
    before, dots, after = term.partition("...")
    rest = x.rank - len(before) - len(after)
    if rest < 0 or (rest and not dots):
        raise n.refuse(f"{term!r} for {x.rank} axes")
    return [*before, *range(-rest, 0), *after]


def _diagonal(n: Node, x: Value, labels: list[Any]) -> tuple[Value, list[Any]]:
    """A label that stands for two axes as one: only what lies on their diagonal."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            rows = n.g.iota(x.shape, first, "int32")
            same = n.g.compare(rows, n.g.iota(x.shape, second, "int32"), direction="EQ")
            x = n.g.sum(n.g.select(same, x, n.g.like(x, 0)), (second,))
            labels = labels[:second] + labels[second + 1:]
    return x, labels


Term = tuple[Value, list[Any]]


def _contracted(n: Node, terms: list[Term], out: list[Any]) -> Value:
    def step(a: Term, b: Term, later: set[Any]) -> Term:
        (x, xs), (y, ys) = a, b
        keep = later | set(out)
        x, xs = _summed(n, x, xs, keep | set(ys))
        y, ys = _summed(n, y, ys, keep | set(xs))
        x, y = _matched(n, x, xs, ys, y), _matched(n, y, ys, xs, x)
        both = [c for c in xs if c in ys]
        batch = [c for c in both if c in keep]
        inner = [c for c in both if c not in keep]
        made = n.g.dot_general(
            x, y, lhs_contracting=[xs.index(c) for c in inner],
            rhs_contracting=[ys.index(c) for c in inner],
            lhs_batch=[xs.index(c) for c in batch], rhs_batch=[ys.index(c) for c in batch])
        return made, [*batch, *(c for c in xs if c not in both), *(c for c in ys if c not in both)]

    x, labels = terms[0]
    for i, term in enumerate(terms[1:], 2):
        x, labels = step((x, labels), term, {c for _, each in terms[i:] for c in each})
    x, labels = _summed(n, x, labels, set(out))
    if set(labels) != set(out) or len(set(out)) != len(out):
        raise n.refuse("its result names a label no input has, or one twice")
    return n.g.transpose(x, tuple(labels.index(c) for c in out))


def _summed(n: Node, x: Value, labels: list[Any], keep: set[Any]) -> Term:
    gone = tuple(i for i, c in enumerate(labels) if c not in keep)
    return (n.g.sum(x, gone), [c for c in labels if c in keep]) if gone else (x, labels)


def _matched(n: Node, x: Value, xs: list[Any], ys: list[Any], y: Value) -> Value:
    """x with axes of size 1 repeated to those of y."""
    sizes = dict(zip(ys, y.shape, strict=True))
    return n.g.broadcast(x, tuple(sizes.get(c, s) if s == 1 else s
                                  for c, s in zip(xs, x.shape, strict=True)))


# ---------------------------------------------------------------------------------------- attention


@onnx_op("Attention")
def attention(n: Node) -> Any:
    """softmax(scale · Q Kᵀ + mask) · V, whole where the node wants nothing else; what it may want
    besides (caches, windows, caps) is spelled out as ONNX's own function says."""
    known = {"is_causal", "scale", "q_num_heads", "kv_num_heads", "qk_matmul_output_mode"}
    plain = n.results == 1 and n.arg(0).rank == 4 and not any(n.has(i) for i in (4, 5, 6))
    if not plain or n.attributes.keys() - known:
        return n.importer.spelled(n)
    q, k, v = (n.arg(i) for i in range(3))
    mask = [n.arg(3)] if n.has(3) else []
    rows, columns = q.shape[-2], k.shape[-2]
    if q.dtype != v.dtype or (n.attr("is_causal") and mask) or rows > columns:
        return n.importer.spelled(n)
    rest = [n.g.reshape(m, (1,) * (4 - m.rank) + m.shape) for m in mask]
    if any(s not in (1, w) for m in rest for s, w in
           zip(m.shape, (*q.shape[:3], columns), strict=True)):
        return n.importer.spelled(n)
    return n.g.attention(q, k, v, *rest, causal=bool(n.attr("is_causal")),
                         scale=n.attr("scale") or 0.0)

