"""ONNX rules: RNN, GRU and LSTM, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opentrn.graph.importers.onnx_call import Node, onnx_op
from opentrn.graph.importers.onnx_rules_shape import cut
from opentrn.graph.ir import Value

MOST_STEPS = 4096
State = tuple[Value, ...]
Activate = Callable[[Value], Value]


def _activation(n: Node, name: str, alpha: float | None, beta: float | None) -> Activate:
    g = n.g
    a = {"leakyrelu": 0.01, "thresholdedrelu": 1.0, "elu": 1.0, "hardsigmoid": 0.2,
         "affine": 1.0, "scaledtanh": 1.0}.get(name, 0.0) if alpha is None else alpha
    b = {"hardsigmoid": 0.5, "scaledtanh": 1.0}.get(name, 0.0) if beta is None else beta

    def below(x: Value, other: Value) -> Value:
        return g.select(g.compare(x, g.like(x, 0.0), direction="LT"), other, x)

    table: dict[str, Activate] = {
        "sigmoid": g.logistic, "tanh": g.tanh, "relu": lambda x: g.maximum(x, g.like(x, 0.0)),
        "affine": lambda x: x * a + b, "leakyrelu": lambda x: below(x, x * a),
        "elu": lambda x: below(x, g.exponential_minus_one(x) * a),
        "scaledtanh": lambda x: g.tanh(x * b) * a, "softplus": g.softplus,
        "softsign": lambda x: x / (g.abs(x) + 1.0),
        "hardsigmoid": lambda x: g.minimum(g.maximum(x * a + b, g.like(x, 0.0)), g.like(x, 1.0)),
        "thresholdedrelu": lambda x: g.select(
            g.compare(x, g.like(x, a), direction="GT"), x, g.like(x, 0.0)),
    }
    if name not in table:
        raise n.refuse(f"there is no activation {name}")
    found, edge = table[name], n.attr("clip")
    if edge is None:
        return found
    return lambda x: found(g.minimum(g.maximum(x, g.like(x, -edge)), g.like(x, edge)))


class Recurrent:
    """What the three ops share: directions, layouts, lengths of samples, first states."""

    def __init__(self, n: Node, gates: int, activations: Sequence[str], states: int) -> None:
        self.n, self.gates = n, gates
        self.batch_first = bool(n.attr("layout", 0))
        x = n.x
        self.x = n.g.transpose(x, (1, 0, 2)) if self.batch_first else x
        self.hidden = n.arg(2).shape[-1]
        direction = n.attr("direction")
        if direction not in ("forward", "reverse", "bidirectional"):
            raise n.refuse(f"`direction` is {direction!r}")
        self.backwards = {"forward": [False], "reverse": [True]}.get(direction, [False, True])
        given = n.attributes.get("activations")
        names = n.attr("activations") if given else list(activations) * len(self.backwards)
        alphas, betas = n.attr("activation_alpha") or [], n.attr("activation_beta") or []
        taking = ("affine", "leakyrelu", "elu", "scaledtanh", "hardsigmoid", "thresholdedrelu")
        a, b = iter(alphas), iter(betas)
        self.functions = [
            _activation(n, w, next(a, None) if w in taking else None,
                        next(b, None) if w in taking[3:5] + ("affine",) else None)
            for w in map(str.lower, names)]
        if len(self.functions) != len(activations) * len(self.backwards):
            raise n.refuse(f"{len(names)} activations for {len(self.backwards)} directions")
        self.each = len(activations)
        self.states = states

    def part(self, index: int, way: int) -> Value | None:
        """A weight of one direction; the first axis counts directions."""
        if not self.n.has(index):
            return None
        whole = self.n.arg(index)
        return self.n.g.reshape(cut(self.n, whole, 0, way, way + 1), whole.shape[1:])

    def gate(self, rows: Value | None, gate: int) -> Value | None:
        """One gate's rows of a stacked weight."""
        if rows is None:
            return None
        return cut(self.n, rows, 0, gate * self.hidden, (gate + 1) * self.hidden)

    def first(self, index: int, way: int) -> Value:
        """A first state [batch, hidden], 0 where none is given."""
        n = self.n
        if not n.has(index):
            return n.g.full((self.x.shape[1], self.hidden), 0.0, self.x.dtype)
        whole = n.g.transpose(n.arg(index), (1, 0, 2)) if self.batch_first else n.arg(index)
        return n.g.reshape(cut(n, whole, 0, way, way + 1), whole.shape[1:])

    def linear(self, x: Value, weight: Value, *biases: Value | None) -> Value:
        """x · weightᵀ + the biases"""
        y = self.n.g.dot_general(x, weight, lhs_contracting=-1, rhs_contracting=-1)
        for bias in biases:
            y = y if bias is None else y + self.n.g.broadcast(bias, y.shape)
        return y

    def run(self, step: Callable[[int, Value, State, Sequence[Activate]], State],
            first: Callable[[int], State]) -> tuple[Value, ...]:
        """(all states [time, direction, batch, hidden], the last of each state)."""
        n, times = self.n, self.x.shape[0]
        if not 0 < times <= MOST_STEPS:
            raise n.refuse(f"there are {times} steps, 1 to {MOST_STEPS} are built")
        every, last = [], []
        for way, backwards in enumerate(self.backwards):
            functions = self.functions[way * self.each:(way + 1) * self.each]
            state, seen = first(way), [None] * times
            for t in range(times - 1, -1, -1) if backwards else range(times):
                x = n.g.reshape(cut(n, self.x, 0, t, t + 1), self.x.shape[1:])
                new = step(way, x, state, functions)
                state, seen[t] = self._ended(t, state, new)
            every.append([n.g.reshape(s, (1, 1, *s.shape)) for s in seen])
            last.append([n.g.reshape(s, (1, *s.shape)) for s in state])
        ways = [n.g.concatenate(*rows, dimension=0) for rows in every]
        states = [n.g.concatenate(*each, dimension=0) for each in zip(*last, strict=True)]
        return self._laid_out(n.g.concatenate(*ways, dimension=1), states)

    def _ended(self, t: int, old: State, new: State) -> tuple[State, Any]:
        """The state after a step, and what the step gives: samples that have ended keep the
        state and give 0."""
        n = self.n
        if not n.has(4):
            return new, new[0]
        goes_on = n.g.compare(n.arg(4), n.g.like(n.arg(4), t), direction="GT")
        wide = n.g.broadcast_in_dim(goes_on, shape=new[0].shape, dimensions=(0,))
        kept = tuple(n.g.select(wide, b, a) for a, b in zip(old, new, strict=True))
        return kept, n.g.select(wide, new[0], n.g.like(new[0], 0.0))

    def _laid_out(self, every: Value, states: list[Value]) -> tuple[Value, ...]:
        if not self.batch_first:
            return every, *states
        turned = [self.n.g.transpose(s, (1, 0, 2)) for s in states]
        return self.n.g.transpose(every, (2, 0, 1, 3)), *turned


@onnx_op("RNN")
def rnn(n: Node) -> tuple[Value, ...]:
    """h' = f(x·Wᵀ + h·Rᵀ + b)"""
    r = Recurrent(n, 1, ("tanh",), 1)

    def step(way: int, x: Value, state: State, functions: Sequence[Activate]) -> State:
        b = r.part(3, way)
        new = r.linear(x, r.part(1, way), r.gate(b, 0)) + r.linear(
            state[0], r.part(2, way), r.gate(b, 1))
        return (functions[0](new),)

    return r.run(step, lambda way: (r.first(5, way),))


@onnx_op("GRU")
def gru(n: Node) -> tuple[Value, ...]:
    """h' = (1 - z)·f(new) + z·h with the gates z and r."""
    r = Recurrent(n, 3, ("sigmoid", "tanh"), 1)

    def step(way: int, x: Value, state: State, functions: Sequence[Activate]) -> State:
        w, u, b = r.part(1, way), r.part(2, way), r.part(3, way)
        (h,), (f, new) = state, functions

        def both(gate: int, other: Value) -> Value:
            return r.linear(x, r.gate(w, gate), r.gate(b, gate)) + r.linear(
                other, r.gate(u, gate), r.gate(b, gate + 3))

        z, reset = f(both(0, h)), f(both(1, h))
        if n.attr("linear_before_reset", 0):
            inner = r.linear(x, r.gate(w, 2), r.gate(b, 2)) + reset * r.linear(
                h, r.gate(u, 2), r.gate(b, 5))
        else:
            inner = both(2, reset * h)
        return ((1.0 - z) * new(inner) + z * h,)

    return r.run(step, lambda way: (r.first(5, way),))


@onnx_op("LSTM")
def lstm(n: Node) -> tuple[Value, ...]:
    """c' = f·c + i·g(new), h' = o·h(c') with the gates i, o, f; peepholes where given."""
    r = Recurrent(n, 4, ("sigmoid", "tanh", "tanh"), 2)

    def step(way: int, x: Value, state: State, functions: Sequence[Activate]) -> State:
        w, u, b, p = (r.part(i, way) for i in (1, 2, 3, 7))
        (h, c), (f, new, out) = state, functions

        def gate(place: int, peep: int | None, seen: Value) -> Value:
            y = r.linear(x, r.gate(w, place), r.gate(b, place)) + r.linear(
                h, r.gate(u, place), r.gate(b, place + 4))
            hole = r.gate(p, peep) if peep is not None else None
            return y if hole is None else y + n.g.broadcast(hole, y.shape) * seen

        enter = f(gate(0, 0, c))
        forget = 1.0 - enter if n.attr("input_forget", 0) else f(gate(2, 2, c))
        cell = forget * c + enter * new(gate(3, None, c))
        return f(gate(1, 1, cell)) * out(cell), cell

    return r.run(step, lambda way: (r.first(5, way), r.first(6, way)))
