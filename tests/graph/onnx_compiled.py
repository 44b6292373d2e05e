"""ONNX's node tests through the compiler, on a simulated trn2.

    python -m tests.graph.onnx_compiled

prints how many run and give what the case expects (whole numbers exactly, floats within the case's
tolerance and the precision of their dtype), how many are refused and why, and each that runs and
gives something else.  Cases that `graph.evaluate` does not pass, and those with numbers the chip
has not, are counted apart.
"""

import collections
import sys

import numpy as np

from opentrn import compiler, runtime
from opentrn.base import TrnError
from opentrn.graph import straighten
from tests.graph.onnx_nodes import built, cases, differs, flat, run

NOT_ON_CHIP = ("complex64", "complex128", "float64", "uint64")
RELATIVE = 2e-5
"""Of float32 results: engines' functions are approximations, sums are taken in another order."""
LACKS, UNREAD = "not on the chip", "not read"


def outcome(case):
    """("passes" | "wrong" | "refused" | …, the reason)."""
    for inputs, expected in case.data_sets:
        try:
            graph, given = built(case.model, inputs)
        except TrnError:
            return UNREAD, ""
        kinds = {str(v.dtype) for v in graph if hasattr(v, "dtype")}
        if kinds & set(NOT_ON_CHIP) or any(v.dtype.bits < 8 and v.dtype.kind != "bool"
                                           for v in graph if hasattr(v, "dtype")):
            return LACKS, ""
        try:
            model = runtime.load(compiler.compile(straighten(graph), integer_products=True))
            found = model(*given)
        except TrnError as error:
            return "refused", f"{error.code}: {' '.join(error.what.split())[:160]}"
        found = found if isinstance(found, tuple) else (found,)
        wanted = [np.asarray(w) for w in flat(expected)]
        case.rtol, case.atol = max(case.rtol, RELATIVE), max(case.atol, RELATIVE)
        for have, want in zip(found, wanted, strict=True):
            why = differs(have.reshape(want.shape).astype(want.dtype), want, case)
            if why:
                return "wrong", why
    return "passes", ""


def main(*names):
    """Run the cases whose name holds one of `names` (none: all), and print what came of them."""
    counts, reasons = collections.Counter(), collections.defaultdict(list)
    for name, case in sorted(cases().items()):
        if names and not any(part in name for part in names):
            continue
        kind, why = outcome(case) if run(case) == "passed" else (UNREAD, "")
        counts[kind] += 1
        if kind in ("wrong", "refused"):
            reasons[f"{kind}: {why}"].append(name)
    for why, which in sorted(reasons.items(), key=lambda item: -len(item[1])):
        print(f"{len(which):4d} {why}: {', '.join(which[:6])}")
    print(dict(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
