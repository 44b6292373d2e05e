"""Why a program became what it is: rules that fired or refused, kernels chosen, and the reasons."""

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from opentrn.base import dtype as as_dtype
from opentrn.compiler.choose import Use
from opentrn.compiler.pipeline import PIPELINE, State, obey
from opentrn.graph import Graph, Note, from_torch
from opentrn.hw import target as find_target
from opentrn.isa import Executable

WIDTH = 100


def why(subject: Executable | State) -> str:
    """The reasons behind an executable, or in more detail behind a `State`, as plain text.

    An executable holds the counts of its kernels and rules; a state (see `compile_graph(watch=)`)
    also every note with the value and source line it is about.
    """
    if isinstance(subject, State):
        parts = [_kernels(subject.calls), _notes(subject.notes)]
        return "\n\n".join(part for part in parts if part)
    meta = subject.meta
    rows = [f"{n:5d} × {name}: {reason}" for name, reason, n in meta.get("kernels", ())]
    rules = [f"{n:5d} × {rule} {outcome}" for rule, outcome, n in meta.get("rules", ())]
    return "\n\n".join(
        _section(title, lines)
        for title, lines in (("kernels, by how often called", rows), ("rules", rules))
        if lines
    )


def explain_stages(
    model: Any, args: tuple = (), *, target: str = "trn2", dtype: str = "float32"
) -> str:
    """What each stage of the pipeline did to a graph (or torch module), as plain text.

    For each stage: what it is for, how the counts of ops changed, and what its rules did.  Raises
    what compiling would raise.
    """
    graph = model if isinstance(model, Graph) else from_torch(model, args)
    state = State(graph, find_target(target), as_dtype(dtype))
    lines = [f"{graph!r}"]
    for stage in PIPELINE:
        before, seen = state.graph.histogram(), len(state.notes)
        stage.run(state)
        obey(stage, state)
        lines += ["", f"{stage.name}: {stage.why}"]
        lines += _changes(before, state.graph.histogram())
        lines += _fired(state.notes[seen:])
    lines += ["", why(state)]
    return "\n".join(_fit(line) for line in "\n".join(lines).splitlines())


def _section(title: str, lines: Iterable[str]) -> str:
    return "\n".join(_fit(line) for line in (title, *lines))


def _fit(line: str) -> str:
    """The line, cut at a word to the width of a page."""
    if len(line) <= WIDTH:
        return line
    space = line[: len(line) - len(line.lstrip())]
    return space + textwrap.shorten(line.strip(), WIDTH - len(space), placeholder=" …")


def _changes(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """The ops whose count changed, as one or more lines."""
    names = sorted(set(before) | set(after))
    changed = [
        f"{name} {before.get(name, 0)} → {after.get(name, 0)}"
        for name in names
        if before.get(name, 0) != after.get(name, 0)
    ]
    return textwrap.wrap(", ".join(changed), WIDTH, initial_indent="  ", subsequent_indent="  ")


def _fired(notes: list[Note]) -> list[str]:
    counts: dict[str, int] = {}
    for note in notes:
        if note.outcome != "refused":
            counts[note.rule] = counts.get(note.rule, 0) + 1
    return [f"  {n:4d} × {rule}" for rule, n in sorted(counts.items(), key=lambda i: (-i[1], i[0]))]


def _kernels(calls: list[Use]) -> str:
    """Each kernel call: what it computes, and why this kernel."""
    if not calls:
        return ""
    counted: dict[tuple, int] = {}
    for use in calls:
        at = use.value.where
        place = "" if at is None else f"  ({Path(at.file).name}:{at.line})"
        key = (use.name, str(use.value.type), use.why, place)
        counted[key] = counted.get(key, 0) + 1
    rows = [
        f"{n:5d} × {name} → {kind}: {reason}{place}"
        for (name, kind, reason, place), n in counted.items()
    ]
    return _section("kernels, in the order of their first call", rows)


def _notes(notes: list[Note]) -> str:
    """Rules that fired, then those that refused with their reasons, alike ones counted."""
    counted: dict[tuple[str, str, str], int] = {}
    for note in notes:
        reason = "" if note.why.startswith("→") else f": {note.why}"
        key = (note.outcome, note.rule, reason)
        counted[key] = counted.get(key, 0) + 1
    # What changed something comes first.
    ordered = sorted(counted.items(), key=lambda item: (item[0][0] == "refused", item[0]))
    rows = [f"{n:5d} × {rule} {outcome}{reason}" for (outcome, rule, reason), n in ordered]
    return _section("rules", rows) if rows else ""


__all__ = ["explain_stages", "why"]
