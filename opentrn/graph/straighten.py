"""Programs without control flow: loops of known length copied out, branches computed and chosen.

For back ends without loops and jumps; windows at places that become known are cut and joined.  A
loop whose length is not known, or whose copies would be
too many, stays as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opentrn.graph.build import Builder
from opentrn.graph.ir import Graph, Region, Value, remake, run
from opentrn.graph.ops.control import UNKNOWN

MOST = 20_000  # values the copies of one loop may have

Held = dict[Value, Any]


def straighten(graph: Graph, most: int = MOST) -> Graph:
    """The graph with every loop of known length, of at most `most` values when copied out, and
    every branch that holds no other loop, in plain ops."""
    if not any(v.op in STRAIGHT for v in graph):
        return graph
    held: Held = {v: v for v in graph.inputs}
    outputs = _place(graph, held, most)
    named = {name: held[v] for name, v in graph.constants.items()}
    return graph.with_outputs(outputs, named)


def _place(program: Graph, held: Held, most: int) -> list[Value]:
    """The outputs of a graph or region, its inputs standing for what `held` says."""
    for value in program:
        if value in held:
            continue
        if value.op == "get_tuple_element" and isinstance(held[value.args[0]], list):
            held[value] = held[value.args[0]][value.attrs.index]
            continue
        args = tuple(held[a] for a in value.args)
        held[value] = STRAIGHT[value.op](value, args, most) if value.op in STRAIGHT else _known(
            remake(value, args))
    return [held[v] for v in program.outputs]


def _inlined(region: Region, args: list[Value], most: int) -> list[Value]:
    return _place(region, dict(zip(region.inputs, args, strict=True)), most)


def _known(value: Value) -> Value:
    """A scalar of known scalars as a constant: counters, limits, choices."""
    if value.op == "constant" or not value.args or value.attrs.regions or value.attrs.drawn:
        return value
    if any(a.op != "constant" or a.attrs.data.array is None for a in value.args):
        return value
    if getattr(value, "shape", None) != ():
        return value
    with np.errstate(all="ignore"):
        number = run(value, *(run(a) for a in value.args))
    return Builder(value.where).full((), number, value.dtype)


def _while(value: Value, args: tuple[Value, ...], most: int) -> Any:
    op = value.attrs
    times = trips(op.cond, op.body, args)
    if times == UNKNOWN or times * max(len(op.body), 1) > most:
        return remake(value, args)
    state, fixed = list(args[:len(op.body.outputs)]), list(args[len(op.body.outputs):])
    for _ in range(times):
        state = _inlined(op.body, [*state, *fixed], most)
    return state


def _if(value: Value, args: tuple[Value, ...], most: int) -> Any:
    op, pred = value.attrs, args[0]
    branches = (op.true_branch, op.false_branch)
    if any(map(_holds_loops, branches)):
        return remake(value, args)
    if pred.op == "constant":
        return _inlined(branches[0 if bool(run(pred)) else 1], list(args[1:]), most)
    yes, no = (_inlined(b, list(args[1:]), most) for b in branches)
    g = Builder(value.where)
    return [_chosen(g, pred, a, b) for a, b in zip(yes, no, strict=True)]


def _case(value: Value, args: tuple[Value, ...], most: int) -> Any:
    branches, index = value.attrs.branches, args[0]
    if any(map(_holds_loops, branches)):
        return remake(value, args)
    last = len(branches) - 1
    if index.op == "constant":
        number = int(run(index))
        chosen = branches[number if 0 <= number <= last else last]
        return _inlined(chosen, list(args[1:]), most)
    g = Builder(value.where)
    found = _inlined(branches[last], list(args[1:]), most)
    for number in range(last - 1, -1, -1):
        this = g.compare(index, g.full((), number, "int32"), direction="EQ")
        mine = _inlined(branches[number], list(args[1:]), most)
        found = [_chosen(g, this, a, b) for a, b in zip(mine, found, strict=True)]
    return found


def _dynamic_slice(value: Value, args: tuple[Value, ...], most: int) -> Value:
    starts = _corner(args[0], value.attrs.sizes, args[1:])
    if starts is None:
        return remake(value, args)
    limits = tuple(s + n for s, n in zip(starts, value.attrs.sizes, strict=True))
    return Builder(value.where).slice(args[0], starts, limits, (1,) * len(starts))


def _dynamic_update_slice(value: Value, args: tuple[Value, ...], most: int) -> Value:
    """A window at a known place, as wide as the operand on all axes but one: parts joined."""
    operand, update, *rest = args
    starts = _corner(operand, update.shape, tuple(rest))
    axes = [a for a, (n, w) in enumerate(zip(operand.shape, update.shape, strict=True)) if n != w]
    if starts is None or len(axes) > 1 or not operand.shape:
        return remake(value, args)
    if not axes:
        return update
    g, axis = Builder(value.where), axes[0]
    begin, end = starts[axis], starts[axis] + update.shape[axis]
    parts = [*_parts(g, operand, axis, 0, begin), *([update] if update.size else []),
             *_parts(g, operand, axis, end, operand.shape[axis])]
    return g.concatenate(*parts, dimension=axis) if len(parts) > 1 else parts[0]


def _corner(operand: Value, sizes: tuple[int, ...],
            starts: tuple[Value, ...]) -> tuple[int, ...] | None:
    """Where a window lies, pushed inside; None if that is not known."""
    numbers = [_number(s) for s in starts]
    if any(n is None for n in numbers):
        return None
    return tuple(min(max(n, 0), size - w) for n, size, w in  # type: ignore[type-var]
                 zip(numbers, operand.shape, sizes, strict=True))


def _parts(g: Builder, x: Value, axis: int, begin: int, end: int) -> list[Value]:
    """The elements from `begin` to `end` of an axis, as parts to join; of what is joined from
    parts itself, those parts, so that windows written in turn do not copy each other."""
    if begin >= end:
        return []
    if (begin, end) == (0, x.shape[axis]) and x.op != "concatenate":
        return [x]
    if x.op == "concatenate" and x.attrs.dimension == axis:
        found, at = [], 0
        for part in x.args:
            size = part.shape[axis]
            found += _parts(g, part, axis, max(begin - at, 0), min(end - at, size))
            at += size
        return found
    starts = [begin if a == axis else 0 for a in range(x.rank)]
    limits = [end if a == axis else n for a, n in enumerate(x.shape)]
    return [g.slice(x, starts, limits, (1,) * x.rank)]


STRAIGHT = {"while": _while, "if": _if, "case": _case, "dynamic_slice": _dynamic_slice,
            "dynamic_update_slice": _dynamic_update_slice}


def _chosen(g: Builder, pred: Value, yes: Value, no: Value) -> Value:
    return yes if yes is no else g.select(g.broadcast(pred, yes.shape), yes, no)


def _holds_loops(region: Region) -> bool:
    """Whether a loop of unknown length is inside: computed without need, it might not end."""
    return any((v.op == "while" and v.attrs.trips == UNKNOWN)
               or any(map(_holds_loops, v.attrs.regions)) for v in region)


# ------------------------------------------------------------------------------- length of a loop


def trips(cond: Region, body: Region, args: tuple[Value, ...]) -> int:
    """How often a counted loop runs: `counter < limit`, from a known begin, in known steps; of
    several such tests joined by `and`, the first to fail ends it.

    -1 if that is not known before it runs."""
    return _turns(cond.outputs[0], cond, body, args)


def _turns(test: Value, cond: Region, body: Region, args: tuple[Value, ...]) -> int:
    if test.op == "and":
        each = [_turns(part, cond, body, args) for part in test.args]
        return UNKNOWN if UNKNOWN in each else min(each)
    if test.op != "compare" or test.attrs.direction not in ("LT", "LE"):
        return UNKNOWN
    counter, limit = test.args
    if counter not in cond.inputs:
        return UNKNOWN
    place = cond.inputs.index(counter)
    if place >= len(body.outputs):
        return UNKNOWN
    step = _step(body.outputs[place], body.inputs[place])
    begin, end = _number(args[place]), _limit(limit, cond, body, args)
    if step is None or begin is None or end is None or step <= 0:
        return UNKNOWN
    last = end - begin + (1 if test.attrs.direction == "LE" else 0)
    return max(-(-last // step), 0)


def _limit(limit: Value, cond: Region, body: Region, args: tuple[Value, ...]) -> int | None:
    """The number a counter is compared with: a constant, or an operand no turn changes."""
    if limit not in cond.inputs:
        return _number(limit)
    place = cond.inputs.index(limit)
    kept = place >= len(body.outputs) or body.outputs[place] is body.inputs[place]
    return _number(args[place]) if kept else None


def _step(after: Value, before: Value) -> int | None:
    if after.op != "add" or before not in after.args:
        return None
    lhs, rhs = after.args
    return _number(rhs if lhs is before else lhs)


def _number(x: Value) -> int | None:
    if x.op != "constant" or x.shape or x.dtype.kind not in ("int", "uint"):
        return None
    return None if x.attrs.data.array is None else int(x.attrs.data.numbers())
