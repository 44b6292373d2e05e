"""Masks that only hide later keys, as frameworks spell them out: the kernels skip those keys."""

import numpy as np

from opentrn.graph import Builder, Pattern, PatternBuilder, Rule, Value, no, splat_of

# A score this much lower than the others of its row has an exponential of exactly 0.
HIDDEN = -1e30


def hides_later_keys(mask: Value) -> bool:
    """Whether a mask, [..., T, T] with leading sizes of 1, shows key s to query t where s ≤ t only,
    and adds nothing there."""
    rows, columns = mask.shape[-2:]
    if rows != columns or rows < 2 or mask.size != rows * columns:
        return False
    shown = _shown(mask)
    return shown is not None and np.array_equal(shown.reshape(rows, rows), np.tri(rows, dtype=bool))


def _shown(mask: Value) -> np.ndarray | None:
    """Where a mask known in advance shows keys, if it hides all others and adds nothing."""
    if mask.op == "select":
        where, yes, no_ = mask.args
        known = where.op == "constant" and where.attrs.data.array is not None
        low = splat_of(no_)
        hides = known and splat_of(yes) == 0 and low is not None and low <= HIDDEN
        return where.attrs.data.array if hides else None
    if mask.op != "constant" or mask.attrs.data.array is None:
        return None
    array = mask.attrs.data.array
    if array.dtype == bool:
        return array
    shown = array == 0
    return shown if (shown | (array <= HIDDEN)).all() else None


def _rule(op: str, count: int) -> type[Rule]:
    """The rule for an op whose mask follows `count` operands."""

    def find(p: PatternBuilder) -> Pattern:
        return getattr(p, op)(bind="whole")

    def when(whole: Value) -> bool | no:
        if len(whole.args) == count or whole.attrs.causal:
            return no("it has no mask, or hides later keys already")
        mask = whole.args[-1]
        return hides_later_keys(mask) or no("the mask is not known to be that of causality")

    def make(g: Builder, whole: Value) -> Value:
        attributes = whole.attrs.attributes | {"causal": True}
        return g.apply(type(whole.attrs), *whole.args[:count], **attributes)

    def built(g: Builder, mask: Value) -> Value:
        q = g.input("q", (1, 2, 4, 8), str(mask.dtype) if mask.dtype.kind == "float" else "float32")
        others = [g.input(f"x{n}", q.shape, str(q.dtype)) for n in range(count - 1)]
        return getattr(g, op)(q, *others, mask)

    def sample(g: Builder) -> tuple[Value, ...]:
        shown = np.tri(4, dtype=bool).reshape(1, 1, 4, 4)
        low = np.where(shown, 0, np.finfo(np.float32).min).astype(np.float32)
        chosen = g.select(g.constant(shown), g.broadcast(g.constant(np.float32(0)), shown.shape),
                          g.broadcast(g.constant(np.float32(-np.inf)), shown.shape))  # fmt: skip
        return tuple(built(g, m) for m in (g.constant(shown), g.constant(low), chosen))

    def refuse(g: Builder) -> tuple[Value, ...]:
        window = np.tri(4, dtype=bool) & ~np.tri(4, k=-2, dtype=bool)
        faint = np.where(np.tri(4, dtype=bool), 0, -10).astype(np.float32)
        masks = [m.reshape(1, 1, 4, 4) for m in (window, np.tri(4, k=1, dtype=bool), faint)]
        given = [g.constant(m) for m in masks]
        return tuple(built(g, m) for m in (*given, g.input("m", (1, 1, 4, 4), "bool")))

    doc = f"{op} with the mask of causality → causal: keys that nobody sees are not multiplied"
    parts = {"find": find, "when": when, "make": make, "sample": sample, "refuse": refuse}
    name = f"Causal{op.title().replace('_', '')}"
    return type(name, (Rule,), {**parts, "__doc__": doc, "__module__": __name__, "tolerance": 1e-5})


MASKS = (_rule("attention", 3), _rule("attention_gradient", 5))

__all__ = ["MASKS"]
