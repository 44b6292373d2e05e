"""openxla/stablehlo's test vectors: where they are, and each one's own check.

The data is not part of this repository.  OPENTRN_STABLEHLO names a folder of `.mlir` files, the
archive `testdata.tar.xz` or the folder it lies in; else `../shared/stablehlo/testdata.tar.xz`
beside the checkout is used.  Run as a program, this prints the table of docs/conformance.md.
"""

import collections
import functools
import os
import re
import sys
import tarfile
from pathlib import Path

import numpy as np

from opentrn.graph import Graph, evaluate, from_stablehlo

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "stablehlo" / "testdata.tar.xz"
ULPS, ALMOST = 3, 1e-3  # of check.expect_close and check.expect_almost_eq, as upstream runs them
CHECKS = ("check.expect_eq", "check.expect_close", "check.expect_almost_eq")


@functools.cache
def vectors():
    """File name -> text of each vector; empty where there is no data."""
    place = Path(os.environ.get("OPENTRN_STABLEHLO") or BESIDE)
    if (place / "testdata.tar.xz").is_file():
        place = place / "testdata.tar.xz"
    if place.is_dir():
        return {p.name: p.read_text() for p in sorted(place.glob("*.mlir"))}
    if not place.is_file():
        return {}
    with tarfile.open(place) as archive:
        members = [m for m in archive.getmembers() if m.isfile() and m.name.endswith(".mlir")]
        return {Path(m.name).name: archive.extractfile(m).read().decode() for m in members}


def with_checks(text):
    """The graph whose outputs are the pairs its checks compare, and the names of the checks."""
    found = []

    def rule_of(name):
        def rule(call):
            found.append((name, *call.args))
            return ()
        return rule
    graph = from_stablehlo(text, custom_calls={name: rule_of(name) for name in CHECKS})
    pairs = [value for _, *both in found for value in both]
    return Graph(graph.inputs, pairs), [name for name, *_ in found]


def ulps(got, want):
    """How many numbers lie between two arrays of floats, element by element; inf where one of two
    is not finite and the other something else."""
    if got.dtype.kind == "c":
        return np.maximum(ulps(got.real.copy(), want.real.copy()),
                          ulps(got.imag.copy(), want.imag.copy()))
    held = np.dtype(f"i{got.dtype.itemsize}")
    lowest = -(1 << 8 * held.itemsize - 1)
    a, b = (np.ascontiguousarray(x).view(held).astype(object) for x in (got, want))
    a, b = (np.where(x < 0, lowest - x, x) for x in (a, b))
    wide, other = got.astype(np.float64), want.astype(np.float64)
    away = np.where(np.isnan(wide) & np.isnan(other) | (wide == other), 0.0, np.inf)
    both = np.isfinite(wide) & np.isfinite(other)
    return np.where(both, np.abs(a - b).astype(np.float64), away)


def passes(name, got, want, almost=ALMOST):
    """Whether two arrays pass a check."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return False
    if name == "check.expect_eq":
        return bool(np.array_equal(got, want))
    if name == "check.expect_close":
        return not got.size or bool(ulps(got, want).max() <= ULPS)
    a, b = got.astype(np.complex128), want.astype(np.complex128)
    with np.errstate(invalid="ignore"):
        near = (np.abs(a - b) <= almost) | (a == b)
    return bool((near | np.isnan(a) & np.isnan(b)).all())


def verdict(text):
    """"" for a vector that passes, else what is wrong."""
    graph, names = with_checks(text)
    arrays = evaluate(graph)
    failed = [name for i, name in enumerate(names)
              if not passes(name, arrays[2 * i], arrays[2 * i + 1])]
    if not names:
        return "it checks nothing"
    return f"fails {', '.join(failed)}" if failed else ""


def table():
    """Rows of docs/conformance.md: each op, the files that use it, and how many of them pass."""
    files, passed = collections.Counter(), collections.Counter()
    for text in vectors().values():
        used = {op for op in re.findall(r'"?((?:stablehlo|chlo)\.\w+)', text)
                if op not in ("stablehlo.custom_call", "stablehlo.return")}
        good = verdict(text) == ""
        for op in used:
            files[op] += 1
            passed[op] += good
    for op, count in sorted(files.items()):
        yield f"| `{op}` | {count} | {passed[op]} |"


if __name__ == "__main__":
    sys.stdout.write("\n".join(["| op | files | passed |", "|---|---|---|", *table(), ""]))
