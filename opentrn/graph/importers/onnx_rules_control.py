"""ONNX rules: branches and loops.

A branch whose condition is known is taken beforehand.  A loop stays a loop where its state keeps
its types; else its turns are built one by one, which needs their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from opentrn.base import TrnError
from opentrn.graph.importers.onnx_call import Node, onnx_op
from opentrn.graph.ir import Region, Value, region_input, remake, topological
from opentrn.graph.ops.define import Type

MOST_TURNS = 512
"""Turns of a loop that are built one by one."""


def closed(made: Sequence[tuple[list[Value], list[Value]]],
           captured: dict[Value, Value]) -> tuple[list[Region], list[Value]]:
    """The regions of (inputs, outputs), which also take what they captured; and that."""
    rest = list(captured.values())
    return [Region([*own, *rest], outputs) for own, outputs in made], list(captured)


@onnx_op("If")
def if_(n: Node) -> tuple[Any, ...]:
    """One of two graphs, by a condition."""
    known = n.importer.known(n.x)
    branches = n.graph("then_branch"), n.graph("else_branch")
    if known is not None:
        if known.size != 1:
            raise n.refuse("its condition is not one bool")
        taken = branches[0] if known.reshape(()) else branches[1]
        return tuple(n.importer.inside(taken, n.scope, []))
    captured: dict[Value, Value] = {}
    made = [n.importer.region(b, n.scope, [], captured) for b in branches]
    if not all(isinstance(v, Value) for _, outputs in made for v in outputs):
        raise n.unknown(0, "its branches give sequences or nothing")
    regions, rest = closed(made, captured)
    if regions[0].gives != regions[1].gives:
        raise n.unknown(0, "its branches give other types")
    whole = n.g.if_(n.g.reshape(n.x, ()), *rest, true_branch=regions[0], false_branch=regions[1])
    return tuple(n.g.get_tuple_element(whole, i) for i in range(len(regions[0].gives)))


# -------------------------------------------------------------------------------------------- loops


@onnx_op("Loop")
def loop(n: Node) -> tuple[Any, ...]:
    """A graph run again and again: at most M times, as long as its condition holds."""
    most = n.importer.known(n.arg(0)) if n.has(0) else None
    begins = n.importer.known(n.arg(1)) if n.has(1) else np.asarray(True)
    if begins is not None and not begins.reshape(()):
        most = np.asarray(0)
    state = list(n.args[2:])
    if all(isinstance(v, Value) for v in state):
        made = _looped(n, most, state)
        if made is not None:
            return made
    return _unrolled(n, most, state)


def _looped(n: Node, most: np.ndarray | None, state: list[Value]) -> tuple[Value, ...] | None:
    """The loop as one op, None if its state changes type or it needs the number of its turn."""
    body = n.graph("body")
    captured: dict[Value, Value] = {}
    truth, number = Type((), n.kind(9)), Type((), n.kind(7))
    counted = n.importer.counted
    try:
        own, outputs = n.importer.region(
            body, n.scope, [number, truth, *(v.type for v in state)], captured)
    except TrnError as problem:
        n.importer.counted = counted
        if problem.code in ("graph.onnx_unknown", "graph.onnx_use"):
            return None
        raise
    if not all(isinstance(v, Value) for v in outputs):
        return None
    goes_on, kept, seen = outputs[0], outputs[1:1 + len(state)], outputs[1 + len(state):]
    if [v.type for v in kept] != [v.type for v in state]:
        return None
    always = goes_on is own[1] or _is_true(n, goes_on)
    turns = int(most.reshape(())) if most is not None and always else None
    if seen and turns is None:
        raise n.unknown(0, "it collects something each turn")
    return _while(n, own, [goes_on, *kept], seen, captured, state, turns)


def _is_true(n: Node, value: Value) -> bool:
    found = n.importer.known(value)
    return found is not None and bool(found.reshape(()))


def _while(n: Node, own: list[Value], kept: list[Value], seen: list[Value],
           captured: dict[Value, Value], state: list[Value],
           turns: int | None) -> tuple[Value, ...]:
    """A `while` over (turn, condition, state…, collected…)."""
    g = n.g
    room = [(max(turns or 0, 0), *v.shape) for v in seen]
    begins = g.reshape(n.arg(1), ()) if n.has(1) else g.full((), True, "bool")
    first = [g.constant(np.int64(0)), begins, *state,
             *(g.full(s, 0, v.dtype) for s, v in zip(room, seen, strict=True))]
    limit = n.arg(0) if n.has(0) else None
    extra = [] if limit is None else [g.reshape(limit, ())]
    # Own inputs keep their places; collected arrays and the limit come after them, and what the
    # body captured last: its region inputs are numbered anew.
    types = [*(v.type for v in first), *(v.type for v in captured), *(v.type for v in extra)]
    ins = [region_input(i, t) for i, t in enumerate(types)]
    held = dict(zip([*own, *captured.values()],
                    [*ins[:len(own)], *ins[len(first):len(first) + len(captured)]], strict=True))
    outs = _renamed([*kept, *seen], held)
    turn = ins[0]
    store = [_stored(n, into, turn, value) for into, value in
             zip(ins[len(own):len(first)], outs[len(kept):], strict=True)]
    body = Region(ins, [turn + 1, g.reshape(outs[0], ()), *outs[1:len(kept)], *store])
    goes = ins[1]
    if limit is not None:
        goes = g.and_(goes, g.compare(turn, ins[-1], direction="LT"))
    whole = g.while_(*first, *captured, *extra, cond=Region(ins, [goes]), body=body,
                     trips=-1 if turns is None else max(turns, 0))
    return tuple(g.get_tuple_element(whole, i) for i in range(2, len(first)))


def _renamed(outputs: list[Value], held: dict[Value, Value]) -> list[Value]:
    """Values of a region with other values in the place of its inputs."""
    for value in topological(outputs):
        if value not in held:
            held[value] = remake(value, tuple(held[a] for a in value.args))
    return [held[v] for v in outputs]


def _stored(n: Node, into: Value, turn: Value, value: Value) -> Value:
    """An array with a value written at a turn's place."""
    nothing = n.g.constant(np.int64(0))
    return n.g.dynamic_update_slice(into, n.g.reshape(value, (1, *value.shape)), turn,
                                    *[nothing] * value.rank)


def _unrolled(n: Node, most: np.ndarray | None, state: list[Any]) -> tuple[Any, ...]:
    """Turn after turn in place; the condition has to be known each time."""
    body, turn, collected = n.graph("body"), 0, []
    if n.has(0) and most is None:
        raise n.unknown(0, "its state changes type")
    limit = None if most is None else int(most.reshape(()))
    goes_on: Value = n.arg(1) if n.has(1) else n.g.full((), True, "bool")
    while limit is None or turn < limit:
        known = n.importer.known(goes_on)
        if known is None or turn >= MOST_TURNS:
            if known is None:
                raise n.unknown(1, "its state changes type")
            raise n.refuse(f"its state changes type, and it runs more than {MOST_TURNS} times")
        if not known.reshape(()):
            break
        given = [n.g.constant(np.int64(turn)), goes_on, *state]
        made = n.importer.inside(body, n.scope, given)
        goes_on, state, seen = made[0], made[1:1 + len(state)], made[1 + len(state):]
        collected.append(seen)
        turn += 1
    rows = [n.g.concatenate(*(n.g.reshape(v, (1, *v.shape)) for v in each), dimension=0)
            for each in zip(*collected, strict=True)]
    if not collected and len(n.proto.output) > len(state):
        raise n.refuse("it never runs, so the shape of what it collects is not known")
    return (*state, *rows)


@onnx_op("Scan")
def scan(n: Node) -> tuple[Value, ...]:
    """A graph run over the slices of arrays, carrying a state."""
    if n.opset < 9:
        raise n.refuse("version 8 of it has batches and lengths", "export with opset 9 or newer")
    count, body = n.attr("num_scan_inputs"), n.graph("body")
    values = n.values
    state, rows = values[:len(values) - count], values[len(values) - count:]
    axes = n.attr("scan_input_axes") or [0] * count
    turned = n.attr("scan_input_directions") or [0] * count
    rows = [_front(n, v, a, bool(d)) for v, a, d in zip(rows, axes, turned, strict=True)]
    turns = rows[0].shape[0]
    if any(v.shape[0] != turns for v in rows):
        raise n.refuse("its inputs have other lengths")
    types = [*(v.type for v in state), *(Type(v.shape[1:], v.dtype) for v in rows)]
    captured: dict[Value, Value] = {}
    own, outputs = n.importer.region(body, n.scope, types, captured)
    kept, seen = outputs[:len(state)], outputs[len(state):]
    made = _scanned(n, own, [state, rows], kept, seen, captured)
    axes = n.attr("scan_output_axes") or [0] * len(seen)
    back = n.attr("scan_output_directions") or [0] * len(seen)
    laid = [_back(n, v, a, bool(d)) for v, a, d in
            zip(made[len(state):], axes, back, strict=True)]
    return (*made[:len(state)], *laid)


def _scanned(n: Node, own: list[Value], given: list[list[Value]], kept: list[Value],
             seen: list[Value], captured: dict[Value, Value]) -> list[Value]:
    """A `while` over (turn, state…, collected…), reading one slice of each row a turn."""
    g, (state, rows) = n.g, given
    turns = rows[0].shape[0]
    first = [g.constant(np.int64(0)), *state,
             *(g.full((turns, *v.shape), 0, v.dtype) for v in seen)]
    types = [v.type for v in (*first, *rows, *captured)]
    ins = [region_input(i, t) for i, t in enumerate(types)]
    turn, carried = ins[0], ins[1:1 + len(state)]
    slices = [_slice(n, v, turn) for v in ins[len(first):len(first) + len(rows)]]
    held = dict(zip([*own, *captured.values()],
                    [*carried, *slices, *ins[len(first) + len(rows):]], strict=True))
    outs = _renamed([*kept, *seen], held)
    store = [_stored(n, into, turn, value) for into, value in
             zip(ins[1 + len(state):len(first)], outs[len(kept):], strict=True)]
    goes = g.compare(turn, g.constant(np.int64(turns)), direction="LT")
    whole = g.while_(*first, *rows, *captured, cond=Region(ins, [goes]),
                     body=Region(ins, [turn + 1, *outs[:len(kept)], *store]), trips=turns)
    return [g.get_tuple_element(whole, i) for i in range(1, len(first))]


def _slice(n: Node, x: Value, turn: Value) -> Value:
    nothing = n.g.constant(np.int64(0))
    part = n.g.dynamic_slice(x, turn, *[nothing] * (x.rank - 1), sizes=(1, *x.shape[1:]))
    return n.g.reshape(part, x.shape[1:])


def _front(n: Node, x: Value, axis: int, backwards: bool) -> Value:
    axis = n.inside(axis, x.rank, "scan_input_axes")
    x = n.g.transpose(x, (axis, *(a for a in range(x.rank) if a != axis)))
    return n.g.reverse(x, (0,)) if backwards else x


def _back(n: Node, x: Value, axis: int, backwards: bool) -> Value:
    axis = n.inside(axis, x.rank, "scan_output_axes")
    x = n.g.reverse(x, (0,)) if backwards else x
    order = list(range(1, x.rank))
    order.insert(axis, 0)
    return n.g.transpose(x, tuple(order))

