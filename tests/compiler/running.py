"""Run an executable instruction by instruction, and graphs of one op on the chip."""

import numpy as np

from opentrn import compiler, sim
from opentrn.graph import Graph, evaluate, g
from opentrn.hw import target


def run(executable, arrays) -> list[np.ndarray]:
    """The outputs of an executable, computed by every instruction of its program."""
    program = executable.program
    given = [
        np.asarray(a).astype(b.dtype.storage).reshape(b.shape)
        for a, b in zip(arrays, program.inputs, strict=True)
    ]
    return sim.Replay(program, target(executable.target))(given)


def graph_of(*outputs) -> Graph:
    """The graph of some values; its inputs are those they need, by name."""
    inputs = {}
    stack = list(outputs)
    while stack:
        value = stack.pop()
        if value.op == "input":
            inputs[value.attrs.label] = value
        stack += value.args
    return Graph([inputs[name] for name in sorted(inputs)], outputs)


def on_chip(build, *arrays, dtype="float32", chip="trn2", **options) -> tuple[list, list]:
    """(what the chip computes, what the graph means) for `build(inputs…)` on these arrays."""
    inputs = [g.input(f"in{n:02}", a.shape, str(a.dtype)) for n, a in enumerate(arrays)]
    made = build(*inputs)
    graph = Graph(inputs, made if isinstance(made, tuple) else (made,))
    executable = compiler.compile(graph, target=chip, dtype=dtype, **options)
    wanted = evaluate(graph, arrays)
    found = run(executable, arrays)
    return [f.reshape(w.shape) for f, w in zip(found, wanted, strict=True)], wanted


def normal(*shape, seed=0) -> np.ndarray:
    """Standard normal float32 numbers."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def whole(*shape, low=-9, high=9, seed=0, kind=np.int32) -> np.ndarray:
    """Integers from low to high."""
    return np.random.default_rng(seed).integers(low, high + 1, shape).astype(kind)
