"""Fused ops: what one kernel call computes, as graph ops with a meaning of their own.

They exist only between the pipeline's `fuse` and `emit`.  `evaluate` and `decompose` state the
meaning once, so a fusion is proved by comparing numbers before and after.
"""

import numpy as np

from opentrn.base import dtype
from opentrn.graph import (
    OPS,
    Composite,
    Op,
    Traffic,
    Type,
    Value,
    Wrong,
    count,
    same_dtype,
    stream,
)

# Activation functions a linear kernel applies on the way out of PSUM, by their graph op.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_tanh": "gelu",
    "silu": "silu",
    "tanh": "tanh",
    "sigmoid": "logistic",
}


def activation_of(value: Value) -> str:
    """The name an activation op has in `ACTIVATIONS`, or ""."""
    if value.op == "gelu":
        return "gelu_tanh" if value.attrs.approximate else "gelu"
    return {"silu": "silu", "tanh": "tanh", "logistic": "sigmoid"}.get(value.op, "")


class Linear(Composite):
    """activation(x · weight + bias) + residual, over the last axis of x; weight is [K, N].

    Operands after the weight are bias [N] and residual (shape of the result), as `bias` and
    `residual` say.  Computed in float32 and rounded once, to `kind` (left out: the dtype of x).
    """

    operands = ("x", "weight", "bias?", "residual?")
    law = "x [..., K], weight [K, N], bias [N], residual [..., N], all of one dtype"
    bias: bool = False
    residual: bool = False
    activation: str = ""
    kind: str = ""

    def result(self, x: Type, weight: Type, *rest: Type) -> Type:
        """[..., N] of the dtype of x."""
        same_dtype(x, weight, *rest)
        if len(weight.shape) != 2 or x.shape[-1:] != weight.shape[:1]:
            raise Wrong(f"x {list(x.shape)} does not fit weight {list(weight.shape)}")
        if len(rest) != self.bias + self.residual:
            raise Wrong(f"{len(rest)} operands after the weight", kind="attribute")
        made = Type((*x.shape[:-1], weight.shape[1]), dtype(self.kind or x.dtype))
        wanted = [made.shape[-1:]] * self.bias + [made.shape] * self.residual
        for given, shape in zip(rest, wanted, strict=True):
            if given.shape != shape:
                raise Wrong(f"bias or residual is {list(given.shape)}, not {list(shape)}")
        return made

    def evaluate(self, out: Type, x: np.ndarray, weight: np.ndarray, *rest: np.ndarray):
        """The formula, in the carrier's precision."""
        parts = list(rest)
        y = x @ weight
        if self.bias:
            y = y + parts.pop(0)
        if self.activation:
            y = self._activate(Type(y.shape, out.dtype), y)
        return y + parts.pop(0) if self.residual else y

    def _activate(self, kind: Type, y: np.ndarray) -> np.ndarray:
        return self._activation().evaluate(kind, y)

    def _activation(self) -> Op:
        op = OPS[ACTIVATIONS[self.activation]]
        return op(approximate=self.activation == "gelu_tanh") if op.name == "gelu" else op()

    def decompose(self, g, x: Value, weight: Value, *rest: Value) -> Value:
        """dot_general, broadcast, add, activation, add."""
        if self.kind:
            # Rounded once, at the end: everything on the way is float32.
            wide = [g.cast(v, "float32") for v in (x, weight, *rest)]
            plain = Linear(self.bias, self.residual, self.activation)
            return g.cast(plain.decompose(g, *wide), self.kind)
        parts = list(rest)
        y = g.matmul(x, weight)
        if self.bias:
            y = y + g.broadcast(parts.pop(0), y.shape)
        if self.activation:
            y = g.apply(OPS[ACTIVATIONS[self.activation]], y, **self._activation().attributes)
        return y + parts.pop(0) if self.residual else y

    def flops(self, out: Type, x: Type, weight: Type, *rest: Type) -> int:
        """2·K for each result, and one for each further step."""
        return out.size * (2 * weight.shape[0] + len(rest) + bool(self.activation))

    def traffic(self, out: Type, *args: Type) -> Traffic:
        """Operands once, the result once."""
        return stream(out, *args)


class LinearNorm(Composite):
    """layer_norm of a linear over its columns: weight and bias of the norm follow the linear's.

    Operands after the matrix are bias [N] and residual, as `bias` and `residual` say, then `norms`
    of the norm's own weight [N] and bias [N].  Computed in float32 and rounded once.
    """

    operands = ("x", "weight", "bias?", "residual?", "scale?", "shift?")
    law = "operands of a linear, then those of a layer_norm over its last axis"
    bias: bool = False
    residual: bool = False
    activation: str = ""
    norms: int = 0
    epsilon: float = 1e-5

    def linear(self) -> Linear:
        """The product alone."""
        return Linear(self.bias, self.residual, self.activation)

    def parts(self, rest: tuple) -> tuple[tuple, tuple]:
        """Operands of the linear and of the norm, of those after the matrix."""
        cut = len(rest) - self.norms
        return rest[:cut], rest[cut:]

    def norm(self, rank: int) -> Op:
        """The norm alone."""
        return OPS["layer_norm"](axis=rank - 1, epsilon=self.epsilon)

    def result(self, x: Type, weight: Type, *rest: Type) -> Type:
        """That of the linear, which the norm keeps."""
        own, norms = self.parts(rest)
        made = self.linear().result(x, weight, *own)
        return self.norm(len(made.shape)).result(made, *norms)

    def evaluate(self, out: Type, x: np.ndarray, weight: np.ndarray, *rest: np.ndarray):
        """The norm of the sum as it is, not rounded."""
        own, norms = self.parts(rest)
        total = self.linear().evaluate(out, x, weight, *own)
        return self.norm(total.ndim).evaluate(out, total, *norms)

    def decompose(self, g, x: Value, weight: Value, *rest: Value) -> Value:
        """linear, then layer_norm, both in float32."""
        own, norms = (tuple(g.cast(v, "float32") for v in part) for part in self.parts(rest))
        wide = (g.cast(x, "float32"), g.cast(weight, "float32"), *own)
        total = g.apply(Linear, *wide, **self.linear().attributes)
        made = g.layer_norm(total, *norms, axis=total.rank - 1, epsilon=self.epsilon)
        return g.cast(made, x.dtype)

    def flops(self, out: Type, x: Type, weight: Type, *rest: Type) -> int:
        """Those of both."""
        own, norms = self.parts(rest)
        norm = self.norm(len(out.shape))
        return self.linear().flops(out, x, weight, *own) + norm.flops(out, out, *norms)

    def traffic(self, out: Type, *args: Type) -> Traffic:
        """Operands once, the result once."""
        return stream(out, *args)


class Chain(Composite):
    """Element-wise steps on operands of one shape, computed in float32 and rounded once.

    `steps` is a tuple of `(op name, attributes, places)`: a place is `("in", n)`, `("step", n)` or
    a number.  The last step is the result.
    """

    operands = ("*inputs",)
    law = "operands of one shape; each step reads operands, earlier steps or numbers"
    steps: tuple = ()
    kind: str = ""

    def result(self, *inputs: Type) -> Type:
        """The common shape, of dtype `kind`."""
        shapes = {t.shape for t in inputs}
        if len(shapes) != 1:
            raise Wrong(f"operands have shapes {sorted(map(list, shapes))}")
        return Type(inputs[0].shape, dtype(self.kind))

    def typed(self, inputs: tuple[Type, ...]) -> list[tuple[Op, list[Type]]]:
        """Each step's op and the types of its operands."""
        found: list[tuple[Op, list[Type]]] = []
        results: list[Type] = []
        for name, attributes, places in self.steps:
            known = {"in": inputs, "step": results}
            types = [known[p[0]][p[1]] if isinstance(p, tuple) else None for p in places]
            # A number has the dtype of the tensor it meets; a predicate says nothing about it.
            like = next(t for t in reversed(types) if t is not None)
            operands = [like if t is None else t for t in types]
            op = OPS[name](**dict(attributes))
            found.append((op, operands))
            results.append(op.result(*operands))
        return found

    def decompose(self, g, *inputs: Value) -> Value:
        """The steps as the ops they were."""
        done: list[Value] = []
        steps = self.typed(tuple(v.type for v in inputs))
        for (op, types), (_, _, places) in zip(steps, self.steps, strict=True):
            args = [
                (inputs if p[0] == "in" else done)[p[1]]
                if isinstance(p, tuple)
                else g.full(kind.shape, p, kind.dtype)
                for p, kind in zip(places, types, strict=True)
            ]
            done.append(g.apply(type(op), *args, **op.attributes))
        return done[-1]

    def evaluate(self, out: Type, *inputs: np.ndarray) -> np.ndarray:
        """Each step by its own meaning, without rounding between steps."""
        done: list[np.ndarray] = []
        for name, attributes, places in self.steps:
            arrays = [
                (inputs if p[0] == "in" else done)[p[1]] if isinstance(p, tuple) else None
                for p in places
            ]
            like = next(a for a in reversed(arrays) if a is not None)
            args = [
                np.full(out.shape, p, like.dtype) if a is None else a
                for a, p in zip(arrays, places, strict=True)
            ]
            # Element-wise meanings depend on the operands alone, not on the type of the result.
            done.append(OPS[name](**dict(attributes)).evaluate(out, *args))
        return done[-1]

    def flops(self, out: Type, *inputs: Type) -> int:
        """One for each step and element."""
        return len(self.steps) * count(out.shape)

    def traffic(self, out: Type, *args: Type) -> Traffic:
        """Operands once, the result once."""
        return stream(out, *args)
