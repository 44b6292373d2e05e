"""Ops of a chosen graph by PyTorch's CPU kernels, rounded where the simulated kernels round.

A value is held as a tensor of its own dtype; a value of a dtype PyTorch lacks stays a NumPy
carrier, and so does all work on it.  PyTorch's kernels for narrow floats add up in float32 and
round once, as the Tensor Engine and PSUM do.  Where one of our kernels rounds inside (the weights
of an attention), so does the function here.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from opentrn.base import DType
from opentrn.compiler.fused import ACTIVATIONS
from opentrn.graph import Value, splat_of

NAMES = ("float32", "float64", "bfloat16", "float16", "int8", "int16", "int32", "int64", "uint8",
         "bool")  # fmt: skip
NARROW = ("bfloat16", "float16")
# Elements of a tensor that a chain of element-wise steps takes at a time: float32 copies of a few
# operands then stay in a processor's cache.
SLAB = 1 << 16
# Scores of an attention that are worked on at a time.
SCORES = 1 << 18
# Steps that PyTorch computes of narrow floats in float32, rounding once, as they are.
ALONE = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "negate", "abs")


class Vectorised:
    """PyTorch as the library that computes; `function` gives None for what it does not have."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.dtypes = {name: getattr(torch, name) for name in NAMES}
        self.dtypes["int64"] = torch.int32  # as the chip has it: results wrap around where its do

    # ------------------------------------------------------------------ how values are held

    def held(self, dtype: DType, carrier: np.ndarray) -> Any:
        """A carrier as a tensor of its dtype (or as it is, where PyTorch has no such dtype)."""
        kind = self.dtypes.get(str(dtype))
        if kind is None:
            return carrier
        array = np.asarray(carrier)
        if not array.flags.writeable or min(array.strides, default=0) < 0:
            array = array.copy()
        return self.torch.from_numpy(array).to(kind)

    def carrier(self, dtype: DType, held: Any) -> np.ndarray:
        """A tensor as the carrier of its dtype."""
        if str(dtype) in NARROW:
            held = held.float()
        return (held.long() if str(dtype) == "int64" else held).contiguous().numpy()

    def shared(self, dtype: DType, array: np.ndarray) -> Any:
        """A tensor over the memory of a storage array that is only read; None if there is none."""
        if str(dtype) not in self.dtypes or dtype.kind == "bool" or not array.flags.writeable:
            return None
        dense = np.ascontiguousarray(array).reshape(array.shape)  # which keeps a scalar one
        if str(dtype) in NARROW:
            return self.torch.from_numpy(dense.view(np.int16)).view(self.dtypes[str(dtype)])
        return self.torch.from_numpy(dense)

    # ------------------------------------------------------------------ ops

    def function(self, value: Value) -> Callable | None:
        """How a value is computed from tensors; None when the reference is to do it."""
        kinds = [getattr(v, "dtype", None) for v in (value, *value.args)]
        rule = RULES.get(value.op)
        if rule is None or any(str(k) not in self.dtypes for k in kinds):
            return None
        return rule(self, value)

    def number(self, value: Any, dtype: DType) -> Any:
        """A number as a tensor without axes, in the dtype it is computed in."""
        return self.torch.tensor(value, dtype=self.wide(dtype))

    def wide(self, dtype: DType) -> Any:
        """The dtype in which elements of a dtype are computed."""
        return self.torch.float32 if str(dtype) in NARROW else self.dtypes[str(dtype)]


RULES: dict[str, Callable[[Vectorised, Value], Callable | None]] = {}


def rule(*ops: str) -> Callable:
    """Register the function that makes the functions of these ops."""

    def register(function: Callable) -> Callable:
        RULES.update(dict.fromkeys(ops, function))
        return function

    return register


# ---------------------------------------------------------------------- layout


@rule("reshape")
def _reshape(library: Vectorised, value: Value) -> Callable:
    return lambda x: x.reshape(value.shape)


@rule("transpose")
def _transpose(library: Vectorised, value: Value) -> Callable:
    order = value.attrs.permutation
    return lambda x: x.permute(order)


@rule("slice")
def _slice(library: Vectorised, value: Value) -> Callable | None:
    a = value.attrs
    if min(a.strides, default=1) < 1:
        return None
    cut = tuple(map(slice, a.starts, a.limits, a.strides))
    return lambda x: x[cut]


@rule("broadcast_in_dim")
def _broadcast(library: Vectorised, value: Value) -> Callable:
    (x,) = value.args
    lined = [1] * value.rank
    for axis, size in zip(value.attrs.dimensions, x.shape, strict=True):
        lined[axis] = size
    # Dimensions rise in StableHLO's programs, but need not: the operand's axes are put in order.
    order = sorted(range(x.rank), key=lambda n: value.attrs.dimensions[n])
    return lambda x: x.permute(order).reshape(lined).expand(value.shape)


@rule("concatenate")
def _concatenate(library: Vectorised, value: Value) -> Callable:
    return lambda *parts: library.torch.cat(parts, value.attrs.dimension)


@rule("pad")
def _pad(library: Vectorised, value: Value) -> Callable | None:
    a, number = value.attrs, splat_of(value.args[1])
    if number is None or any(a.interior) or min((*a.low, *a.high), default=0) < 0:
        return None
    sizes = [n for pair in zip(reversed(a.low), reversed(a.high), strict=True) for n in pair]
    return lambda x, _: library.torch.nn.functional.pad(x, sizes, value=number)


@rule("gather")
def _gather(library: Vectorised, value: Value) -> Callable:
    # Only rows of a matrix have a kernel; places outside are moved inside, as `gather` says.
    last = value.args[0].shape[0] - 1
    return lambda table, ids: library.torch.nn.functional.embedding(ids.clamp(0, last), table)


# ---------------------------------------------------------------------- element-wise


def _both(name: str) -> Callable[[Any], Callable]:
    return lambda torch: getattr(torch, name)


STEPS: dict[str, Callable[[Any], Callable]] = {
    "add": _both("add"), "subtract": _both("sub"), "multiply": _both("mul"),
    "maximum": _both("maximum"), "minimum": _both("minimum"), "negate": _both("neg"),
    "abs": _both("abs"), "select": _both("where"), "not": _both("bitwise_not"),
    "and": _both("bitwise_and"), "or": _both("bitwise_or"), "xor": _both("bitwise_xor"),
    "clamp": lambda torch: lambda low, x, high: torch.minimum(torch.maximum(x, low), high),
}  # fmt: skip
# Steps on floats only: on integers they are defined otherwise than PyTorch defines them.
FLOAT_STEPS: dict[str, Callable[[Any], Callable]] = {
    "divide": _both("div"), "exponential": _both("exp"), "log": _both("log"),
    "exponential_minus_one": _both("expm1"), "log_plus_one": _both("log1p"),
    "sqrt": _both("sqrt"), "rsqrt": _both("rsqrt"), "tanh": _both("tanh"), "erf": _both("erf"),
    "logistic": _both("sigmoid"), "sine": _both("sin"), "cosine": _both("cos"),
    "floor": _both("floor"), "ceil": _both("ceil"), "round_nearest_even": _both("round"),
    "is_finite": _both("isfinite"), "silu": lambda torch: torch.nn.functional.silu,
    "sign": lambda torch: lambda x: torch.where(torch.isnan(x), x, torch.sign(x)),
}  # fmt: skip
COMPARE = {"EQ": "eq", "NE": "ne", "LT": "lt", "LE": "le", "GT": "gt", "GE": "ge"}


def _step(library: Vectorised, name: str, op: Any, types: list) -> Callable | None:
    """One step of a chain on tensors in the dtypes they are computed in."""
    torch, kind = library.torch, types[-1].dtype
    if name == "compare":
        return getattr(torch, COMPARE[op.direction])
    if name == "gelu":
        form = "tanh" if op.approximate else "none"
        return lambda x: torch.nn.functional.gelu(x, approximate=form)
    if name == "convert":
        return _convert(library, kind, op.dtype)
    if name in FLOAT_STEPS:
        return FLOAT_STEPS[name](torch) if kind.kind == "float" else None
    if name == "subtract" and kind.kind == "bool" or name not in STEPS:
        return None
    return STEPS[name](torch)


def _convert(library: Vectorised, source: DType, target: DType) -> Callable | None:
    """A change of dtype; None where floats become integers, which saturate on the chip."""
    if str(target) not in library.dtypes or str(source) not in library.dtypes:
        return None
    if target.kind == "bool":
        return lambda x: x != 0
    if source.kind == "float" and target.kind != "float":
        return None
    narrow, wide = library.dtypes[str(target)], library.wide(target)
    return lambda x: x.to(narrow).to(wide)


@rule("chain")
def _chain(library: Vectorised, value: Value) -> Callable | None:
    attrs, inputs = value.attrs, [a.type for a in value.args]
    steps = []
    for (op, types), (name, _, places) in zip(attrs.typed(tuple(inputs)), attrs.steps,
                                              strict=True):  # fmt: skip
        made = _step(library, name, op, types)
        if made is None or any(str(t.dtype) not in library.dtypes for t in types):
            return None
        given = [p if isinstance(p, tuple) else library.number(p, t.dtype)
                 for p, t in zip(places, types, strict=True)]  # fmt: skip
        steps.append((made, given))
    if _is_alone(value):
        function, places = steps[0]
        narrow = [p if isinstance(p, tuple) else p.to(library.dtypes[str(value.dtype)])
                  for p in places]  # fmt: skip
        return lambda *held: function(*(held[p[1]] if isinstance(p, tuple) else p for p in narrow))
    wide = [library.wide(t.dtype) for t in inputs]
    return _by_slabs(library, value, lambda *held: _walk(steps, wide, held))


def _is_alone(value: Value) -> bool:
    """Whether a chain is one step of narrow floats that PyTorch rounds once by itself."""
    steps, kinds = value.attrs.steps, {v.dtype for v in (value, *value.args)}
    return len(steps) == 1 and steps[0][0] in ALONE and len(kinds) == 1 and value.dtype in NARROW


def _walk(steps: list, wide: list, held: tuple) -> Any:
    """The result of the last step, in the dtype it was computed in."""
    known = {"in": [x.to(k) for x, k in zip(held, wide, strict=True)], "step": []}
    for function, places in steps:
        args = [known[p[0]][p[1]] if isinstance(p, tuple) else p for p in places]
        known["step"].append(function(*args))
    return known["step"][-1]


def _by_slabs(library: Vectorised, value: Value, compute: Callable) -> Callable:
    """A chain computed a slab of its leading axis at a time, its result in the dtype it has."""
    kind = library.dtypes[str(value.dtype)]
    rows = value.shape[0] if value.rank else 1
    height = max(1, SLAB // max(1, value.size // max(1, rows)))
    if rows <= height:
        return lambda *held: compute(*held).to(kind)

    def by_slabs(*held: Any) -> Any:
        out = library.torch.empty(value.shape, dtype=kind)
        for first in range(0, rows, height):
            out[first : first + height] = compute(*(x[first : first + height] for x in held))
        return out

    return by_slabs


# ---------------------------------------------------------------------- sums and norms


@rule("reduce")
def _reduce(library: Vectorised, value: Value) -> Callable | None:
    torch, (x,), over = library.torch, value.args, value.attrs.dimensions
    if not over or not x.size:
        return None
    kind, wide = library.dtypes[str(value.dtype)], library.wide(x.dtype)
    if value.attrs.kind == "add":
        return lambda x: torch.sum(x, over, dtype=wide).to(kind)
    if value.attrs.kind in ("maximum", "minimum") and x.dtype.kind != "bool":
        function = torch.amax if value.attrs.kind == "maximum" else torch.amin
        return lambda x: function(x, over)
    return None


@rule("softmax")
def _softmax(library: Vectorised, value: Value) -> Callable:
    return lambda x: library.torch.softmax(x, value.attrs.axis)


@rule("layer_norm")
def _layer_norm(library: Vectorised, value: Value) -> Callable:
    a, kind = value.attrs, library.dtypes[str(value.dtype)]
    return lambda x, *rest: _normed(library, x, rest, a.axis, a.epsilon).to(kind)


def _normed(library: Vectorised, x: Any, rest: tuple, axis: int, epsilon: float) -> Any:
    """A layer norm in float32."""
    given = [library.torch.Tensor.float(r) for r in rest]
    wide = x.float() if x.dtype.itemsize < 4 else x
    return library.torch.nn.functional.layer_norm(wide, x.shape[axis:], *given, eps=epsilon)


@rule("rms_norm")
def _rms_norm(library: Vectorised, value: Value) -> Callable | None:
    torch, a, kind = library.torch, value.attrs, library.dtypes[str(value.dtype)]
    if value.dtype == "float64":
        return None
    over = tuple(range(a.axis, value.rank))

    def normed(x: Any, *rest: Any) -> Any:
        wide = x.float()
        made = wide * torch.rsqrt(wide.square().mean(over, keepdim=True) + a.epsilon)
        return (made * rest[0].float() if rest else made).to(kind)

    return normed


# ---------------------------------------------------------------------- products


@rule("dot_general")
def _product(library: Vectorised, value: Value) -> Callable | None:
    # Only batched products of the last two axes have a kernel.
    left, right = (a.dtype for a in value.args)
    kind = library.dtypes[str(value.dtype)]
    if value.dtype.kind != "float":
        return None
    if left == right == value.dtype:
        return library.torch.matmul
    wide = library.torch.float32
    return lambda x, y: (x.to(wide) @ y.to(wide)).to(kind)


# Our activations by the names oneDNN has for them: (attribute, algorithm).
ONEDNN = {"": ("none", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"),
          "silu": ("swish", ""), "tanh": ("tanh", ""), "sigmoid": ("sigmoid", "")}  # fmt: skip


@rule("linear")
def _linear(library: Vectorised, value: Value) -> Callable:
    fused = _fused_linear(library, value)
    if fused is not None:
        return fused
    a, kind = value.attrs, library.dtypes[str(value.dtype)]

    def linear(x: Any, weight: Any, *rest: Any) -> Any:
        return _ended(library, a, x.float() @ weight.float(), rest).to(kind)

    return linear


def _fused_linear(library: Vectorised, value: Value) -> Callable | None:
    """oneDNN's product, whose bias, activation and sum are computed before the one rounding."""
    torch, a, one = library.torch, value.attrs, value.args[0].dtype
    narrow = str(one) == "bfloat16" and value.dtype == one and _has_onednn(torch)
    if not narrow or (a.activation and a.residual):
        return None
    call = torch.ops.mkldnn._linear_pointwise
    name, form = ONEDNN[a.activation]
    if a.residual:
        return lambda x, w, *rest: call.binary(x, rest[-1].contiguous(), w.t(),
                                               rest[0] if a.bias else None, "add")  # fmt: skip
    return lambda x, w, *rest: call(x, w.t(), *(rest or (None,)), name, [], form)


def _has_onednn(torch: Any) -> bool:
    """Whether this PyTorch has oneDNN's products for bfloat16 on this processor."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _ended(library: Vectorised, a: Any, total: Any, rest: tuple) -> Any:
    """activation(total + bias) + residual in float32."""
    torch, parts = library.torch, [r.float() for r in rest]
    if a.bias:
        total = total + parts.pop(0)
    if a.activation in ("gelu", "gelu_tanh"):
        form = "tanh" if a.activation == "gelu_tanh" else "none"
        total = torch.nn.functional.gelu(total, approximate=form)
    elif a.activation:
        name = ACTIVATIONS[a.activation]
        total = {**STEPS, **FLOAT_STEPS}[name](torch)(total)
    return total + parts.pop(0) if a.residual else total


@rule("linear_norm")
def _linear_norm(library: Vectorised, value: Value) -> Callable:
    a, kind = value.attrs, library.dtypes[str(value.dtype)]
    wide = _wide_product(library, value)

    def normed(x: Any, weight: Any, *rest: Any) -> Any:
        own, norms = a.parts(rest)
        total = _ended(library, a, wide(x, weight), own)
        return _normed(library, total, norms, -1, a.epsilon).to(kind)

    return normed


def _wide_product(library: Vectorised, value: Value) -> Callable:
    """x · weight in float32.

    PyTorch gives products of bfloat16 as bfloat16 only, but quickly: what the first leaves out is
    the second, x · weight less the first, and both together have 16 bits.  That is 128 times finer
    than what the norm's result is rounded to."""
    torch = library.torch
    if str(value.args[0].dtype) != "bfloat16" or not _has_onednn(torch):
        return lambda x, weight: x.float() @ weight.float()
    call = torch.ops.mkldnn._linear_pointwise

    def twice(x: Any, weight: Any) -> Any:
        turned = weight.t()
        high = call(x, turned, None, "none", [], "")
        low = call.binary(x, -high, turned, None, "add")
        return high.float() + low

    return twice


# ---------------------------------------------------------------------- attention


@rule("attention")
def _attention(library: Vectorised, value: Value) -> Callable:
    """Scores, exponentials and sums in float32; exponentials are rounded to the dtype of the values
    before the product.  (PyTorch's own exponentials of bfloat16 have too few digits.)"""
    torch, a, kind = library.torch, value.attrs, library.dtypes[str(value.dtype)]
    (batch, heads, rows, width), keys = value.args[0].shape, value.args[1].shape[2]
    together = max(1, SCORES // (rows * keys))
    total = batch * heads

    def attention(q: Any, k: Any, v: Any, *mask: Any) -> Any:
        k, v = (_per_head(x, heads) for x in (k, v))
        q, mask = q.reshape(total, rows, width), tuple(_hiding(m) for m in mask)
        out = torch.empty((total, rows, v.shape[-1]), dtype=kind)
        for first in range(0, total, together):
            part = slice(first, first + together)
            hidden = [_of_heads(torch, m, part, (batch, heads)) for m in mask if m is not None]
            grown, sums = _exponentials(torch, a, q[part], k[part], hidden)
            out[part] = _rounded_product(library, grown, v[part]).div_(sums)
        return out.reshape(value.shape)

    return attention


def _per_head(x: Any, heads: int) -> Any:
    """[B, G, S, D] as [B·H, S, D]: each key head once for every query head that reads it."""
    batch, groups, *tail = x.shape
    spread = x.unsqueeze(2).expand(batch, groups, heads // groups, *tail)
    return spread.reshape(batch * heads, *tail)


def _hiding(mask: Any) -> Any:
    """The mask, or None where a boolean one hides nothing."""
    return None if mask.dtype.itemsize == 1 and bool(mask.all()) else mask


def _of_heads(torch: Any, mask: Any, part: slice, sizes: tuple[int, int]) -> Any:
    """[n, T|1, S] of a mask [B|1, H|1, T|1, S] for some of the B·H heads."""
    if mask.shape[:2] == (1, 1):
        return mask[0]
    batch, heads = sizes
    numbers = torch.arange(batch * heads)[part]
    return mask.expand(batch, heads, *mask.shape[2:])[numbers // heads, numbers % heads]


def _exponentials(torch: Any, a: Any, q: Any, k: Any, mask: list) -> tuple[Any, Any]:
    """exp(score - the row's largest) and its sums, 1 where a row sees nothing, in float32."""
    scores = torch.empty((q.shape[0], q.shape[1], k.shape[1]), dtype=torch.float32)
    torch.baddbmm(scores, q.float(), k.float().mT, beta=0, alpha=a.scale, out=scores)
    if mask and mask[0].dtype == torch.bool:
        scores.masked_fill_(~mask[0], -torch.inf)
    elif mask:
        scores += mask[0].float()
    if a.causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores.masked_fill_(later, -torch.inf)
    top = scores.amax(-1, keepdim=True)
    if mask or a.causal:
        top.masked_fill_(top == -torch.inf, 0.0)
    grown = scores.sub_(top).exp_()
    total = grown.sum(-1, keepdim=True)
    return grown, total.masked_fill_(total == 0, 1.0)


def _rounded_product(library: Vectorised, x: Any, y: Any) -> Any:
    """x, rounded to the dtype of y, times y, in float32: a pair of products where they are quicker
    (see `_wide_product`)."""
    torch, narrow = library.torch, x.to(y.dtype)
    if y.dtype != torch.bfloat16 or not _has_onednn(torch):
        return narrow.float() @ y.float()
    high = torch.bmm(narrow, y)
    return high.float() + torch.baddbmm(high.neg(), narrow, y)


@rule("attention_gradient")
def _attention_gradient(library: Vectorised, value: Value) -> Callable:
    """The gradient of one operand; weights and slopes are rounded to the dtype of the products."""
    torch, a = library.torch, value.attrs
    kind = library.dtypes[str(value.dtype)]
    narrow = library.dtypes[str(value.args[0].dtype)]
    (batch, heads), groups = value.args[0].shape[:2], value.args[1].shape[1]

    def gradient(q: Any, k: Any, v: Any, done: Any, grad: Any, *mask: Any) -> Any:
        keys, values = (_per_head(x, heads) for x in (k, v))
        q, done, grad = (x.flatten(0, 1) for x in (q, done, grad))
        hidden = [_of_heads(torch, m, slice(None), (batch, heads)) for m in mask]
        grown, total = _exponentials(torch, a, q, keys, hidden)
        weights, slope = grown.div_(total).to(narrow).float(), grad.float()
        if a.part == "value":
            return folded(weights.mT @ slope)
        drift = (slope * done.float()).sum(-1, keepdim=True)
        slopes = (slope @ values.float().mT).sub_(drift).mul_(weights).to(narrow).float()
        if a.part == "query":
            return (slopes @ keys.float()).mul_(a.scale).to(kind).reshape(value.shape)
        return folded((slopes.mT @ q.float()).mul_(a.scale))

    def folded(made: Any) -> Any:
        """Gradients of query heads summed for the key head they read."""
        split = made.reshape(batch, groups, heads // groups, *made.shape[1:])
        return split.sum(2).to(kind)

    return gradient


__all__ = ["Vectorised"]
