"""The node tests that come with the package `onnx`: one small model for each use of an op.

`python -m tests.graph.onnx_nodes` runs all and prints the table of docs/conformance.md; each
model's own expected outputs and tolerances decide.
"""

import collections
import functools
import sys
import warnings

import numpy as np

from opentrn.base import TrnError
from opentrn.graph import evaluate, from_onnx

SMALL = ("int4", "uint4", "int2", "uint2")
LOOSE = {"float16": 2**-9, "bfloat16": 2**-6}
"""Relative tolerance of 16-bit floats: two units in the last place, because the expected numbers
were rounded after every operation of NumPy."""


@functools.cache
def cases():
    """Name -> test case of the package."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return {case.name: case for case in collect_testcases(None)}


def stored():
    """Name -> test case of the models that lie in the package with inputs and outputs."""
    import os
    from types import SimpleNamespace

    import onnx

    home, found = os.path.join(os.path.dirname(onnx.__file__), "backend", "test", "data"), {}
    for kind in ("simple", "pytorch-operator", "pytorch-converted"):
        for name in sorted(os.listdir(os.path.join(home, kind))):
            folder = os.path.join(home, kind, name)
            sets = []
            for each in sorted(os.listdir(folder)):
                inside = os.path.join(folder, each)
                if os.path.isdir(inside):
                    sets.append([_tensors(inside, word) for word in ("input", "output")])
            found[f"{kind}/{name}"] = SimpleNamespace(
                name=name, rtol=1e-3, atol=1e-5, data_sets=sets,
                model=onnx.load(os.path.join(folder, "model.onnx")))  # fmt: skip
    return found


def light():
    """Name -> path of the image models whose weights are made when they run."""
    import os

    import onnx

    folder = os.path.join(os.path.dirname(onnx.__file__), "backend", "test", "data", "light")
    return {n: os.path.join(folder, n) for n in sorted(os.listdir(folder)) if n.endswith(".onnx")}


def _tensors(folder, word):
    import os

    import onnx

    count = sum(name.startswith(f"{word}_") for name in os.listdir(folder))
    found = []
    for i in range(count):
        with open(os.path.join(folder, f"{word}_{i}.pb"), "rb") as file:
            found.append(onnx.TensorProto.FromString(file.read()))
    return found


def ops_of(model):
    """The ops a model names, those of its inner graphs too."""
    found, stack = set(), [model.graph]
    while stack:
        for node in stack.pop().node:
            found.add(f"{node.domain}.{node.op_type}" if node.domain else node.op_type)
            stack += [a.g for a in node.attribute if a.HasField("g")]
    return found


def subject(case):
    """The op a case is about: the one its name says, or the only one of its model."""
    ops = ops_of(case.model)
    plain = case.name.removeprefix("test_").replace("_", "").lower()
    named = [op for op in ops if plain.startswith(op.rpartition(".")[2].lower())]
    return max(named or sorted(ops), key=len)


def run(case):
    """What comes of a case: "passed", "refused: why" or "wrong: why"."""
    for inputs, expected in case.data_sets:
        try:
            graph, given = built(case.model, inputs)
            found = evaluate(graph, given)
        except TrnError as error:
            return f"refused: {error.code}: {error.what.splitlines()[-1].strip()}"
        wanted = list(flat(expected))
        if len(found) != len(wanted):
            return f"wrong: {len(found)} outputs, not {len(wanted)}"
        for name, have, want in zip(graph.output_names, found, wanted, strict=True):
            why = differs(have, want, case)
            if why:
                return f"wrong: {name} {why}"
    return "passed"


def built(model, inputs):
    """(graph, its inputs) for a case's inputs; what must be known beforehand is fixed."""
    weights = {w.name for w in model.graph.initializer}
    names = [i.name for i in model.graph.input if i.name and i.name not in weights]
    held = dict(zip(names, inputs, strict=True))
    shapes, fixed = {}, {}
    for name, value in held.items():
        value = array(value)
        if isinstance(value, np.ndarray) or np.isscalar(value):
            held[name] = value = np.asarray(value)
            shapes[name] = held[name].shape
        else:
            fixed[name] = [array(each) for each in value] if value is not None else None
    while True:
        free = {k: v for k, v in shapes.items() if k not in fixed}
        try:
            graph = from_onnx(model, shapes=free, fixed=fixed)
        except TrnError as error:
            name = next((n for n in free if f"(`{n}`)" in error.what), None)
            if error.code != "graph.onnx_unknown" or name is None:
                name = name or first_whole(free, held) if error.code == "graph.onnx_unknown" else ""
            if not name:
                raise
            fixed[name] = held[name]
            continue
        return graph, [held_as(held[v.attrs.label]) for v in graph.inputs]


def held_as(value):
    """Integers of less than a byte as graphs hold them."""
    return value.astype(value.dtype.name.rstrip("24") + "8") if value.dtype.name in SMALL else value


def array(value):
    """A tensor as an array: cases give some as the messages files hold."""
    if type(value).__name__ == "TensorProto":
        from onnx import numpy_helper

        return numpy_helper.to_array(value)
    return value


def flat(values):
    """Arrays of outputs, sequences one by one."""
    for value in values:
        if isinstance(value, list):
            yield from flat(value)
        else:
            yield array(value)


def first_whole(free, held):
    """An input of whole numbers, or a scalar, which a shape may be computed from."""
    whole = [n for n in free if held[n].dtype.kind in "iub"]
    return next(iter([*whole, *(n for n in free if not held[n].ndim)]), None)


def differs(have, want, case):
    """How a result differs from what the case expects, "" if it does not."""
    want = held_as(np.asarray(want))
    if have.shape != want.shape or have.dtype != want.dtype:
        return f"is {have.dtype}{list(have.shape)}, not {want.dtype}{list(want.shape)}"
    if want.dtype.kind in "iub":
        fine = np.array_equal(have, want)
    else:
        kind = np.complex128 if want.dtype.kind == "c" else np.float64
        rtol = max(case.rtol, LOOSE.get(want.dtype.name, 0))
        atol = case.atol
        if case.name.startswith(("test_dft", "test_stft")):  # zeros are sums that cancel
            atol = 2**-22 * np.abs(want).max()
        fine = np.allclose(have.astype(kind), want.astype(kind), rtol, atol, equal_nan=True)
    return "" if fine else "has other numbers"


def table():
    """Results by name."""
    return {name: run(case) for name, case in sorted(cases().items())}


def main():
    """Run all; print refusals, then the counts."""
    results = table()
    passed, every = collections.Counter(), collections.Counter()
    for name, told in results.items():
        op = subject(cases()[name])
        every[op] += 1
        passed[op] += told == "passed"
        if told != "passed":
            print(f"{name}: {told}")
    print(", ".join(f"`{op}` {passed[op]}" + (f" of {n}" if passed[op] < n else "")
                    for op, n in sorted(every.items())))
    kinds = collections.Counter(told.partition(":")[0] for told in results.values())
    print(dict(kinds), "of", len(results))


if __name__ == "__main__":
    sys.exit(main())
