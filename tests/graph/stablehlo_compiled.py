"""openxla/stablehlo's test vectors through the compiler, on a simulated trn2.

    python -m tests.graph.stablehlo_compiled

prints how many run and give what the vector expects (whole numbers exactly, floats within the
precision of their dtype), how many are refused and why, each that runs and gives something else,
and for each op in how many files of those the chip has types for it runs.  A vector's arrays become
inputs of its program, so that nothing is computed ahead of time.
"""

import collections
import re
import sys

import numpy as np

from opentrn import compiler, runtime
from opentrn.base import TrnError
from opentrn.graph import Graph, evaluate, g, remake, straighten, topological
from tests.graph.stablehlo_vectors import vectors, with_checks

TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
LACKS, NARROW = "not on the chip", "as 32 bits"
# What is refused of files with int64, which runs as int32: shifts, which are about the other half.
REFUSED = {
    "shift_left_int64_20_20_int64_20_20.mlir", "shift_right_logical_int64_20_20_int64_20_20.mlir",
}  # fmt: skip
NOT_ON_CHIP = ("complex64", "complex128", "float64", "uint64")


def with_inputs(outputs):
    """The program of some values with every known array an input, and the arrays."""
    held, inputs, arrays = {}, [], []
    for value in topological(outputs):
        if value.op == "constant" and value.size > 1:
            held[value] = g.input(f"x{len(inputs)}", value.shape, value.dtype)
            inputs.append(held[value])
            arrays.append(value.attrs.data.numbers())
        else:
            held[value] = remake(value, tuple(held[a] for a in value.args))
    return Graph(inputs, [held[v] for v in outputs]), arrays


def agrees(got, want):
    """Whether a result of the device is the expected one."""
    got = got.reshape(want.shape)
    if want.dtype.kind in "iub":
        return np.array_equal(got, want)
    tolerance = TOLERANCE.get(str(want.dtype), 1e-2)
    return np.allclose(got.astype(float), want.astype(float), rtol=tolerance, atol=tolerance,
                       equal_nan=True)


def has_int64(text):
    """Whether a program that is compared has numbers of int64."""
    graph, _ = with_checks(text)
    return any(str(getattr(v, "dtype", "")) == "int64" for v in topological(graph.outputs[0::2]))


def outcome(text):
    """("passes" | "wrong" | "refused" | "not on the chip", the reason)."""
    graph, _ = with_checks(text)
    outputs, expected = graph.outputs[0::2], graph.outputs[1::2]
    kinds = {str(v.dtype) for v in topological(outputs) if hasattr(v, "dtype")}
    if kinds & set(NOT_ON_CHIP):
        return LACKS, ""
    program, arrays = with_inputs(outputs)
    try:
        made = compiler.compile(straighten(program), integer_products=True)
        found = runtime.load(made)(*arrays)
    except TrnError as error:
        return "refused", " ".join(error.what.splitlines()[1:2]).strip()[:90] or error.code
    found = found if isinstance(found, tuple) else (found,)
    wanted = evaluate(Graph([], expected))
    good = all(map(agrees, found, wanted))
    return ("passes", "") if good else ("wrong", "")


def main():
    """Print the counts and the reasons."""
    counts, reasons, lines = collections.Counter(), collections.Counter(), []
    files, passed = collections.Counter(), collections.Counter()
    for name, text in vectors().items():
        kind, why = outcome(text)
        counts[f"{kind}, int64 {NARROW}" if kind != LACKS and has_int64(text) else kind] += 1
        reasons[why] += bool(why)
        if kind != LACKS:
            used = set(re.findall(r'"?((?:stablehlo|chlo)\.\w+)', text))
            files.update(used)
            passed.update(used if kind == "passes" else ())
        if kind == "wrong":
            lines.append(f"wrong: {name}")
    lines += [f"{n:5d} refused: {why}" for why, n in reasons.most_common() if why]
    lines += [f"{n:5d} {kind}" for kind, n in counts.most_common()]
    lines += [f"{op} {passed[op]} of {n}" for op, n in sorted(files.items())]
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
