"""Rewrite rules that prove themselves, and passes with a law of what may exist before and after.

A rule is written as one would build the thing: `find` spells the pattern (its parameters are the
holes), `when` guards it, `make` builds the replacement, `sample` is a program it must rewrite into
one that computes the same, `refuse` one it must leave alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from opentrn.base import Bug, UsageError, Where, declare
from opentrn.graph import carriers
from opentrn.graph.build import Builder
from opentrn.graph.evaluate import evaluate
from opentrn.graph.ir import Graph, Value, relocate, remake, topological
from opentrn.graph.ops.define import OPS

declare("graph.law", "a graph holds an op that the pass at hand does not allow before it",
        "each pass lists the ops that may exist before and after it",
        "run the passes in the order of the pipeline")

MOST_SWEEPS = 64

Bindings = dict[str, Value]


class no:
    """A polite refusal: false, with a reason."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __bool__(self) -> bool:
        return False


class Pattern:
    """What a value may look like; patterns combine with the operators values have."""

    def __add__(self, other: Any) -> Pattern:
        return Node("add", (self, pattern(other)))

    def __radd__(self, other: Any) -> Pattern:
        return Node("add", (pattern(other), self))

    def __sub__(self, other: Any) -> Pattern:
        return Node("subtract", (self, pattern(other)))

    def __mul__(self, other: Any) -> Pattern:
        return Node("multiply", (self, pattern(other)))

    def __rmul__(self, other: Any) -> Pattern:
        return Node("multiply", (pattern(other), self))

    def __truediv__(self, other: Any) -> Pattern:
        return Node("divide", (self, pattern(other)))

    def __rtruediv__(self, other: Any) -> Pattern:
        return Node("divide", (pattern(other), self))

    def __neg__(self) -> Pattern:
        return Node("negate", (self,))


@dataclass(frozen=True)
class Hole(Pattern):
    """Any value; the same value wherever the hole is repeated."""

    name: str


@dataclass(frozen=True)
class Splat(Pattern):
    """An array that holds one number everywhere: `number`, or any if `number` is None."""

    number: float | None = None
    bind: str = ""


@dataclass(frozen=True)
class Node(Pattern):
    """An op on matching operands; attributes left out may be anything, and so may the operands
    when none is given (for ops that take any number of them)."""

    op: str
    args: tuple[Pattern, ...]
    attributes: dict[str, Any] = field(default_factory=dict, hash=False)
    bind: str = ""


def pattern(x: Any) -> Pattern:
    """A pattern as it is; a Python number as a splat of it."""
    return x if isinstance(x, Pattern) else Splat(float(x))


class PatternBuilder:
    """`p.add(x, y)` matches `add`, `p.reduce(x, kind="add", bind="total")` names what it found."""

    def __getattr__(self, name: str) -> Callable[..., Pattern]:
        op = name.rstrip("_")
        if op not in OPS:
            raise AttributeError(f"no graph op `{name}`")

        def build(*args: Any, bind: str = "", **attributes: Any) -> Pattern:
            return Node(op, tuple(map(pattern, args)), attributes, bind)
        return build

    def splat(self, bind: str = "", number: float | None = None) -> Pattern:
        """One number everywhere, bound to a name."""
        return Splat(number, bind)


def splat_of(value: Value) -> float | None:
    """The real number a value holds everywhere, or None if it is not known to hold one."""
    while value.op in ("broadcast_in_dim", "reshape") and value.args:
        value = value.args[0]
    if value.op != "constant" or value.attrs.data.array is None or value.size == 0:
        return None
    flat = value.attrs.data.array.reshape(-1)
    if flat[0] != flat[-1] or not bool((flat == flat[0]).all()):
        return None
    return float(flat[0].real) if flat[0].imag == 0 else None


def match(shape: Pattern, value: Value, got: Bindings) -> Iterator[Bindings]:
    """Every way the pattern fits the value, as holes and binds by name."""
    if isinstance(shape, Hole):
        yield from _bound(shape.name, value, got)
    elif isinstance(shape, Splat):
        number = splat_of(value)
        if number is not None and shape.number in (None, number):
            yield from _bound(shape.bind, value, got)
    elif isinstance(shape, Node) and shape.op == value.op and _attributes_fit(shape, value):
        for inner in _bound(shape.bind, value, got):
            yield from _match_args(shape, value, inner)


def _bound(name: str, value: Value, got: Bindings) -> Iterator[Bindings]:
    if not name:
        yield got
    elif got.get(name, value) is value:
        yield {**got, name: value}


def _attributes_fit(shape: Node, value: Value) -> bool:
    return all(getattr(value.attrs, k) == v for k, v in shape.attributes.items())


def _match_args(shape: Node, value: Value, got: Bindings) -> Iterator[Bindings]:
    if not shape.args:
        yield got
        return
    if len(shape.args) != len(value.args):
        return
    orders = [value.args]
    if type(value.attrs).commutative and value.args[0] is not value.args[1]:
        orders.append(value.args[::-1])
    for args in orders:
        found: Iterable[Bindings] = [got]
        for part, arg in zip(shape.args, args, strict=True):
            found = [more for sofar in found for more in match(part, arg, sofar)]
        yield from found


RULES: list[type[Rule]] = []


class Rule:
    """find → when → make, with `sample` and `refuse` to prove it.

    `find(p, holes…)` returns the pattern; `when` and `make` take, by name, any holes and binds of
    the pattern; `make`'s first parameter is the builder.  `when` returns True or `no("why")`.
    `sample(g)` and `refuse(g)` return the root of a program (refuse: or several).  `private` rules
    only fire if nothing else reads the values between root and holes.  `tolerance` bounds the
    relative difference the proof allows."""

    private: ClassVar[bool] = False
    tolerance: ClassVar[float] = 1e-6
    pattern: ClassVar[Node]
    holes: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls) -> None:
        missing = [name for name in ("find", "make", "sample") if name not in vars(cls)]
        if not cls.__doc__:
            missing.append("a docstring")
        if "when" in vars(cls) and "refuse" not in vars(cls):
            missing.append("refuse, since it has a guard")
        if missing:
            raise Bug(f"rule {cls.__name__}: write {', '.join(missing)}")
        cls.holes = tuple(inspect.signature(cls.find).parameters)[1:]
        found = cls.find(PatternBuilder(), *map(Hole, cls.holes))
        if not isinstance(found, Node):
            raise Bug(f"rule {cls.__name__}: a pattern begins with an op")
        cls.pattern = found
        RULES.append(cls)

    @classmethod
    def attempt(cls, value: Value, users: dict[Value, int] | None = None) -> Value | no | None:
        """The replacement, a refusal with its reason, or None if the pattern does not fit."""
        refusal: no | None = None
        for got in match(cls.pattern, value, {}):
            allowed = cls._allowed(value, got, users)
            if allowed:
                new = _call(cls.make, got, Builder(value.where))
                relocate([new], value.where)
                return new
            refusal = allowed if isinstance(allowed, no) else no("its guard said no")
        return refusal

    @classmethod
    def _allowed(cls, value: Value, got: Bindings, users: dict[Value, int] | None) -> bool | no:
        if cls.private and users is not None and not _is_private(value, cls, got, users):
            return no("something else reads a value inside")
        return _call(cls.when, got) if "when" in vars(cls) else True


def _call(function: Callable[..., Any], got: Bindings, *first: Any) -> Any:
    names = list(inspect.signature(function).parameters)[len(first):]
    return function(*first, *(got[n] for n in names))


def _is_private(root: Value, rule: type[Rule], got: Bindings, users: dict[Value, int]) -> bool:
    """Whether every value between the root and the holes is read only from inside."""
    leaves = {got[h] for h in rule.holes}
    inside: dict[Value, int] = {}
    stack = [root]
    while stack:
        for arg in stack.pop().args:
            if arg in leaves or splat_of(arg) is not None:
                continue
            if arg not in inside:
                stack.append(arg)
            inside[arg] = inside.get(arg, 0) + 1
    return all(users.get(v, 0) <= count for v, count in inside.items())


@dataclass(frozen=True)
class Note:
    """What a rule did to a node, or why it did not."""

    rule: str
    value: str
    outcome: str
    why: str
    where: Where | None

    def __str__(self) -> str:
        return f"{self.rule} {self.outcome} {self.value}: {self.why}  ({self.where})"


def rewrite(graph: Graph, rules: Sequence[type[Rule]], notes: list[Note] | None = None) -> Graph:
    """The graph with the rules applied wherever they fit, until none does.

    Raises Bug if rules undo each other for ever."""
    notes = [] if notes is None else notes
    seen: set[tuple[str, Value]] = set()
    by_op: dict[str, list[type[Rule]]] = {}
    for rule in rules:
        by_op.setdefault(rule.pattern.op, []).append(rule)
    for _ in range(MOST_SWEEPS):
        after = _sweep(graph, by_op, notes, seen)
        if after.outputs == graph.outputs:
            return after
        graph = after
    raise Bug(f"rules {', '.join(r.__name__ for r in rules)} never come to rest")


def _sweep(graph: Graph, by_op: dict[str, list[type[Rule]]], notes: list[Note],
           seen: set[tuple[str, Value]]) -> Graph:
    users = {v: len(u) for v, u in graph.users().items()}
    for output in graph.outputs:
        users[output] += 1

    def change(value: Value, args: tuple[Value, ...]) -> Value:
        new = remake(value, args)
        for rule in by_op.get(new.op, ()):
            result = rule.attempt(new, users if new is value else None)
            if isinstance(result, Value):
                notes.append(Note(rule.__name__, repr(new), "rewrote", f"→ {result!r}", new.where))
                return result
            if result is not None and (rule.__name__, new) not in seen:
                seen.add((rule.__name__, new))
                notes.append(Note(rule.__name__, repr(new), "refused", result.why, new.where))
        return new
    return graph.rebuild(change)


class Pass:
    """A named step: rules (or any Graph → Graph function), and the ops allowed before and after.

    A law is the list of allowed op names; None allows all."""

    def __init__(self, name: str, rules: Sequence[type[Rule]] | Callable[[Graph], Graph],
                 before: Iterable[str] | None = None, after: Iterable[str] | None = None) -> None:
        self.name = name
        self.rules = rules
        self.before = None if before is None else frozenset(before)
        self.after = None if after is None else frozenset(after)

    def __call__(self, graph: Graph, notes: list[Note] | None = None) -> Graph:
        """The graph after this step.  Raises UsageError `graph.law` for what may not exist
        before, Bug for what may not exist after."""
        for value in _outlaws(graph, self.before):
            raise UsageError(f"pass {self.name}: `{value!r}` may not exist before it",
                             code="graph.law", at=value.where)
        after = self.rules(graph) if callable(self.rules) else rewrite(graph, self.rules, notes)
        for value in _outlaws(after, self.after):
            raise Bug(f"pass {self.name}: `{value!r}` may not exist after it ({value.where})")
        return after


def _outlaws(graph: Graph, law: frozenset[str] | None) -> Iterator[Value]:
    if law is not None:
        yield from (v for v in graph if v.op not in law)


def prove(rule: type[Rule], seed: int = 0) -> None:
    """Run a rule's samples: it must rewrite `sample` into a program of the same type that computes
    the same numbers, and refuse every `refuse`.  Raises Bug with what went wrong."""
    g = Builder()
    for old in _several(rule.sample(g)):
        new = rule.attempt(old)
        if not isinstance(new, Value):
            raise Bug(f"rule {rule.__name__} does not fire on its sample: "
                      f"{new.why if new is not None else 'the pattern does not fit'}")
        if new.type != old.type:
            raise Bug(f"rule {rule.__name__} changes {old.type} to {new.type}")
        _prove_equal(rule, old, new, seed)
    for value in _several(rule.refuse(g)) if hasattr(rule, "refuse") else ():
        if not isinstance(rule.attempt(value), no):
            raise Bug(f"rule {rule.__name__} does not refuse what it should: {value!r}")


def _several(roots: Any) -> tuple[Value, ...]:
    return roots if isinstance(roots, tuple) else (roots,)


def _prove_equal(rule: type[Rule], old: Value, new: Value, seed: int) -> None:
    leaves = [v for v in Graph(_inputs(old, new), (old, new)) if v.op == "input"]
    random = np.random.default_rng(seed)
    arrays = {v.attrs.label: random_array(v, random) for v in leaves}
    before, after = evaluate(Graph(leaves, (old, new)), arrays)
    a, b = (carriers.enter(x, old.dtype).astype(np.float64) for x in (before, after))
    if not np.allclose(a, b, rtol=rule.tolerance, atol=rule.tolerance, equal_nan=True):
        worst = np.nanmax(np.abs(a - b))
        raise Bug(f"rule {rule.__name__} changes the numbers, by up to {worst:.3g}")


def _inputs(*roots: Value) -> list[Value]:
    return [v for v in topological(roots) if v.op == "input"]


def random_array(value: Value, random: np.random.Generator) -> np.ndarray:
    """Numbers for an input: normal floats, integers of 0…3, coin flips for bool."""
    kind = value.dtype
    if kind.kind == "bool":
        return random.integers(0, 2, value.shape).astype(np.bool_)
    if kind.kind in ("int", "uint"):
        return random.integers(0, 4, value.shape).astype(carriers.storage(kind))
    normal = carriers.settle(random.normal(size=value.shape), kind)
    return carriers.leave(normal, kind)
