"""Fusions: matrix products with what follows them on the way out of PSUM."""

from opentrn.compiler.fused import activation_of
from opentrn.graph import Builder, Pattern, PatternBuilder, Rule, Value, no


class MatrixToLinear(Rule):
    """dot_general(x, w) with a matrix w, over the last axis of x → linear(x, w)"""

    tolerance = 1e-5

    def find(p: PatternBuilder, x: Pattern, w: Pattern) -> Pattern:
        return p.dot_general(x, w, bind="product")

    def when(x: Value, w: Value, product: Value) -> bool | no:
        d = product.attrs
        if w.rank != 2 or d.lhs_batch:
            return no("the right operand is not a matrix shared by all rows")
        if d.lhs_contracting != (x.rank - 1,):
            return no("the product is not over the last axis of the left operand")
        if x.rank < 2 or w.dtype != x.dtype:
            return no("the operands differ in dtype, or the left is a vector")
        if product.dtype not in (x.dtype, "float32", "bfloat16", "float16"):
            return no("not to a float of the chip")
        return x.dtype.kind == "float" or no("the operands are not floats")

    def make(g: Builder, x: Value, w: Value, product: Value) -> Value:
        turned = w if product.attrs.rhs_contracting == (0,) else g.transpose(w, (1, 0))
        return g.linear(x, turned, kind="" if product.dtype == x.dtype else str(product.dtype))

    def sample(g: Builder) -> tuple[Value, ...]:
        x, w = g.input("x", (2, 3, 4)), g.input("w", (5, 4))
        narrow, thin = g.cast(x, "bfloat16"), g.cast(w, "bfloat16")
        return (
            g.dot_general(narrow, thin, lhs_contracting=2, rhs_contracting=1, dtype="float32"),
            g.dot_general(x, w, lhs_contracting=2, rhs_contracting=1),
            g.matmul(g.input("y", (3, 4)), g.input("v", (4, 5))),
        )

    def refuse(g: Builder) -> tuple[Value, ...]:
        x = g.input("x", (3, 3))
        return (
            g.matmul(g.input("a", (2, 3, 3)), g.input("b", (2, 3, 3))),
            g.dot_general(x, g.input("w", (3, 3)), lhs_contracting=0, rhs_contracting=0),
        )


class FuseBias(Rule):
    """linear(x, w) + bias → linear(x, w, bias): saves a trip to HBM and back"""

    private = True
    tolerance = 1e-5

    def find(p: PatternBuilder, x: Pattern, w: Pattern, b: Pattern) -> Pattern:
        return p.linear(x, w, activation="", kind="") + p.broadcast_in_dim(b, bind="spread")

    def when(x: Value, b: Value, spread: Value) -> bool | no:
        row = b.shape == spread.shape[-1:] and spread.attrs.dimensions == (spread.rank - 1,)
        return row or no(
            f"the addend is {list(b.shape)} over axes {spread.attrs.dimensions}, "
            "a bias is one row over the last axis"
        )

    def make(g: Builder, x: Value, w: Value, b: Value) -> Value:
        return g.linear(x, w, b, bias=True)

    def sample(g: Builder) -> Value:
        y = g.linear(g.input("x", (2, 3, 4)), g.input("w", (4, 5)))
        return y + g.broadcast(g.input("b", (5,)), y.shape)

    def refuse(g: Builder) -> tuple[Value, ...]:
        y = g.linear(g.input("x", (2, 5, 4)), g.input("w", (4, 5)))
        return (
            y + g.broadcast_in_dim(g.input("b", (5,)), y.shape, (1,)),
            y + g.broadcast_in_dim(g.input("one", (1,)), y.shape, (2,)),
        )


def _sample_linear(g: Builder, bias: bool, **more) -> Value:
    x, w = g.input("x", (2, 3, 4)), g.input("w", (4, 5))
    return g.linear(x, w, g.input("b", (5,)), bias=True, **more) if bias else g.linear(x, w, **more)


def activation_rule(op: str, bias: bool) -> type[Rule]:
    """The rule `op(linear(x, w[, b])) → linear(…, activation)`: applied on the way out of PSUM."""

    def pattern(p: PatternBuilder, *parts: Pattern) -> Pattern:
        return getattr(p, op)(p.linear(*parts, bind="y"), bind="outer")

    if bias:

        def find(p: PatternBuilder, x: Pattern, w: Pattern, b: Pattern) -> Pattern:
            return pattern(p, x, w, b)
    else:

        def find(p: PatternBuilder, x: Pattern, w: Pattern) -> Pattern:
            return pattern(p, x, w)

    def when(y: Value) -> bool | no:
        a = y.attrs
        plain = not (a.activation or a.residual or a.kind)
        return plain or no("the linear already ends in an activation or a residual")

    def make(g: Builder, y: Value, outer: Value) -> Value:
        return g.linear(*y.args, bias=y.attrs.bias, activation=activation_of(outer))

    def sample(g: Builder) -> Value:
        return getattr(g, op)(_sample_linear(g, bias))

    def refuse(g: Builder) -> Value:
        return getattr(g, op)(_sample_linear(g, bias, activation="tanh"))

    text = f"{op}(linear(x, w{', b' * bias})) → linear(…, activation): on the way out of PSUM"
    parts = {"find": find, "when": when, "make": make, "sample": sample, "refuse": refuse}
    name = f"Fuse{op.title()}{'OfBias' * bias}"
    more = {"__doc__": text, "__module__": __name__, "private": True, "tolerance": 1e-5}
    return type(name, (Rule,), parts | more)


ACTIVATION_RULES = tuple(
    activation_rule(op, bias) for op in ("gelu", "silu", "tanh", "logistic") for bias in (0, 1)
)


def _takes_residual(y: Value, r: Value) -> bool | no:
    if y.attrs.residual or y.attrs.kind:
        return no("the linear already adds a residual or ends in another dtype")
    return r.op != "broadcast_in_dim" or no("the addend is a broadcast, not a whole tensor")


class FuseResidual(Rule):
    """linear(x, w) + r → linear(x, w, residual): the sum is made on the way out of PSUM"""

    private = True
    tolerance = 1e-5

    def find(p: PatternBuilder, x: Pattern, w: Pattern, r: Pattern) -> Pattern:
        return p.linear(x, w, bind="y") + r

    def when(y: Value, r: Value) -> bool | no:
        return _takes_residual(y, r)

    def make(g: Builder, y: Value, r: Value) -> Value:
        return g.linear(*y.args, r, residual=True, activation=y.attrs.activation)

    def sample(g: Builder) -> Value:
        return g.input("r", (2, 3, 5)) + _sample_linear(g, False, activation="silu")

    def refuse(g: Builder) -> Value:
        y = _sample_linear(g, False)
        return y + g.broadcast(g.input("c", (3, 1)), y.shape)


class FuseResidualOfBias(Rule):
    """linear(x, w, b) + r → linear(x, w, b, residual): the sum is made on the way out of PSUM"""

    private = True
    tolerance = 1e-5

    def find(p: PatternBuilder, x: Pattern, w: Pattern, b: Pattern, r: Pattern) -> Pattern:
        return p.linear(x, w, b, bias=True, bind="y") + r

    def when(y: Value, r: Value) -> bool | no:
        return _takes_residual(y, r)

    def make(g: Builder, y: Value, r: Value) -> Value:
        return g.linear(*y.args, r, bias=True, residual=True, activation=y.attrs.activation)

    def sample(g: Builder) -> Value:
        return g.input("r", (2, 3, 5)) + _sample_linear(g, True)

    def refuse(g: Builder) -> Value:
        y = _sample_linear(g, True)
        return y + g.broadcast(g.input("c", (3, 1)), y.shape)


class FuseConvert(Rule):
    """convert(linear(…)) → linear in the other dtype: rounded once, on the way out of PSUM"""

    tolerance = 2.0**-7

    def find(p: PatternBuilder) -> Pattern:
        return p.convert(bind="outer")

    def when(outer: Value) -> bool | no:
        y = outer.args[0]
        if y.op != "linear" or y.attrs.kind:
            return no("the operand is not a linear, or one that is converted already")
        return outer.dtype in ("float32", "bfloat16", "float16") or no("not to a float of the chip")

    def make(g: Builder, outer: Value) -> Value:
        y = outer.args[0]
        return g.apply(type(y.attrs), *y.args, **y.attrs.attributes | {"kind": str(outer.dtype)})

    def sample(g: Builder) -> Value:
        x, w = g.input("x", (3, 4), "bfloat16"), g.input("w", (4, 5), "bfloat16")
        return g.convert(g.linear(x, w), "float32")

    def refuse(g: Builder) -> tuple[Value, ...]:
        x, y = g.input("x", (3, 4)), _sample_linear(g, True)
        return g.convert(x, "bfloat16"), g.convert(y, "int32")


LINEAR = (MatrixToLinear, FuseBias, *ACTIVATION_RULES, FuseResidual, FuseResidualOfBias)
# After the others: a linear in another dtype takes nothing more.
LAST = (FuseConvert,)

__all__ = ["LAST", "LINEAR"]
