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
        if x.rank < 2 or product.dtype != x.dtype or w.dtype != x.dtype:
            return no("the operands and the result differ in dtype, or the left is a vector")
        return x.dtype.kind == "float" or no("the operands are not floats")

    def make(g: Builder, x: Value, w: Value, product: Value) -> Value:
        turned = w if product.attrs.rhs_contracting == (0,) else g.transpose(w, (1, 0))
        return g.linear(x, turned)

    def sample(g: Builder) -> tuple[Value, ...]:
        x, w = g.input("x", (2, 3, 4)), g.input("w", (5, 4))
        return (
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
        return p.linear(x, w, activation="") + p.broadcast_in_dim(b, bind="spread")

    def when(x: Value, b: Value, spread: Value) -> bool | no:
        row = b.rank == 1 and spread.attrs.dimensions == (spread.rank - 1,)
        return row or no(f"the addend is {list(b.shape)} over axes {spread.attrs.dimensions}, "
                         "a bias is one row over the last axis")

    def make(g: Builder, x: Value, w: Value, b: Value) -> Value:
        return g.linear(x, w, b, bias=True)

    def sample(g: Builder) -> Value:
        y = g.linear(g.input("x", (2, 3, 4)), g.input("w", (4, 5)))
        return y + g.broadcast(g.input("b", (5,)), y.shape)

    def refuse(g: Builder) -> Value:
        y = g.linear(g.input("x", (2, 5, 4)), g.input("w", (4, 5)))
        return y + g.broadcast_in_dim(g.input("b", (5,)), y.shape, (1,))


def _activated(g: Builder, y: Value, outer: Value) -> Value:
    a = y.attrs
    return g.linear(*y.args, bias=a.bias, residual=False, activation=activation_of(outer))


def _free_of(y: Value) -> bool | no:
    plain = not y.attrs.activation and not y.attrs.residual
    return plain or no("the linear already ends in an activation or a residual")


class FuseGelu(Rule):
    """gelu(linear(x, w, b)) → linear(…, activation=gelu)"""

    private = True
    tolerance = 1e-5

    def find(p: PatternBuilder, x: Pattern, w: Pattern, b: Pattern) -> Pattern:
        return p.gelu(p.linear(x, w, b, bind="y"), bind="outer")

    def when(y: Value) -> bool | no:
        return _free_of(y)

    def make(g: Builder, y: Value, outer: Value) -> Value:
        return _activated(g, y, outer)

    def sample(g: Builder) -> Value:
        x, w, b = g.input("x", (2, 3, 4)), g.input("w", (4, 5)), g.input("b", (5,))
        return g.gelu(g.linear(x, w, b, bias=True))

    def refuse(g: Builder) -> Value:
        x, w, b = g.input("x", (2, 3, 4)), g.input("w", (4, 5)), g.input("b", (5,))
        return g.gelu(g.linear(x, w, b, bias=True, activation="tanh"))


class FuseSilu(Rule):
    """silu(linear(x, w)) → linear(…, activation=silu)"""

    private = True
    tolerance = 1e-5

    def find(p: PatternBuilder, x: Pattern, w: Pattern) -> Pattern:
        return p.silu(p.linear(x, w, bind="y"), bind="outer")

    def when(y: Value) -> bool | no:
        return _free_of(y)

    def make(g: Builder, y: Value, outer: Value) -> Value:
        return _activated(g, y, outer)

    def sample(g: Builder) -> Value:
        return g.silu(g.linear(g.input("x", (2, 3, 4)), g.input("w", (4, 5))))

    def refuse(g: Builder) -> Value:
        x, w = g.input("x", (2, 3, 4)), g.input("w", (4, 5))
        return g.silu(g.linear(x, w, activation="tanh"))


class FuseResidual(Rule):
    """linear(x, w, b) + r → linear(…, residual): the sum is made on the way out of PSUM"""

    private = True
    tolerance = 1e-5

    def find(p: PatternBuilder, x: Pattern, w: Pattern, b: Pattern, r: Pattern) -> Pattern:
        return p.linear(x, w, b, bind="y") + r

    def when(y: Value, r: Value) -> bool | no:
        if not y.attrs.bias or y.attrs.residual:
            return no("the linear already adds a residual")
        return r.op != "broadcast_in_dim" or no("the addend is a broadcast, not a whole tensor")

    def make(g: Builder, y: Value, r: Value) -> Value:
        return g.linear(*y.args, r, bias=True, residual=True, activation=y.attrs.activation)

    def sample(g: Builder) -> Value:
        x, w, b = g.input("x", (2, 3, 4)), g.input("w", (4, 5)), g.input("b", (5,))
        return g.input("r", (2, 3, 5)) + g.linear(x, w, b, bias=True)

    def refuse(g: Builder) -> Value:
        x, w, b = g.input("x", (2, 3, 4)), g.input("w", (4, 5)), g.input("b", (5,))
        y = g.linear(x, w, b, bias=True)
        return y + g.broadcast(g.input("c", (3, 1)), y.shape)


LINEAR = (MatrixToLinear, FuseBias, FuseGelu, FuseSilu, FuseResidual)

__all__ = ["LINEAR"]
