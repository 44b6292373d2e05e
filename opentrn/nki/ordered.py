"""Pairs of engines that touch one SBUF tile inside a no_reorder block.

The NKI scheduling guide says that instructions of a no_reorder block run in program order.  Users
report wrong results where two engines touch one SBUF tile inside such a block, as if nothing
ordered the two; the vendor has not said so.  Until it is settled, each such pair is a finding.
"""

from collections.abc import Iterator
from itertools import product

from opentrn.base import declare, explanation
from opentrn.isa import Buffer, Instruction, View
from opentrn.sim import Finding

declare(
    "nki.unordered_pair",
    "Two engines touch one SBUF tile inside a no_reorder block.",
    rule="a no_reorder block keeps program order; users report that accesses of two engines to one "
    "SBUF tile inside it are not ordered",
    fix="leave the two outside the block, or give both the same engine",
    fault="unpredictable",
)

ENGINES = ("tensor", "vector", "scalar", "gpsimd")
_LOOKED_AT = 4000  # pairs of accesses compared for one tile

Access = tuple[int, Instruction, View, bool]


def unordered_pairs(block: list[Instruction]) -> list[Finding]:
    """Findings `nki.unordered_pair` of one block, one for each pair of lines, in program order."""
    touched: dict[Buffer, list[Access]] = {}
    for number, one in enumerate(block):
        if one.engine in ENGINES:
            for views, writes in ((one.writes(), True), (one.reads(), False)):
                for view in views:
                    if view.buffer.space == "sbuf":
                        access = (number, one, view, writes)
                        touched.setdefault(view.buffer, []).append(access)
    found: dict[tuple, Finding] = {}
    for accesses in touched.values():
        for a, b in _conflicts(accesses):
            lines = (a[1].where, b[1].where)
            if lines not in found or (a[3] and not b[3]):  # what is written and then read
                found[lines] = _finding(a, b)
    return list(found.values())


def _conflicts(accesses: list[Access]) -> Iterator[tuple[Access, Access]]:
    for looked, (a, b) in enumerate(product(accesses, accesses)):
        if looked > _LOOKED_AT:
            return
        apart = a[0] < b[0] and a[1].engine != b[1].engine and (a[3] or b[3])
        if apart and a[2].overlaps(b[2]):
            yield a, b


def _finding(a: Access, b: Access) -> Finding:
    told = []
    for _, one, view, writes in (a, b):
        verb = "writes" if writes else "reads"
        name = view.buffer.name or "it"
        told.append(f"{one.opcode} on {one.engine} {verb} {name} at {one.where}")
    known = explanation("nki.unordered_pair")
    what = f"an unordered pair in a no_reorder block: {told[0]}, and {told[1]}"
    return Finding("nki.unordered_pair", what, b[1].where, known.rule, known.fix)
