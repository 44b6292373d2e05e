"""The error for ops that no rule reads, the same for every framework."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

from opentrn.base import UnsupportedError, Where

ALIKE = 0.76
"""Names less alike than this are other ops, not misspelt ones."""


def near_op(name: str, known: Iterable[str]) -> str:
    """The known op of that namespace and nearly that name, overload aside; "" if there is none."""
    space = name.partition("::")[0] if "::" in name else ""
    alike = (each for each in known if each.startswith(space) and ("::" in each) == bool(space))
    bare = {_bare(each): each for each in alike}
    close = difflib.get_close_matches(_bare(name), list(bare), 1, ALIKE)
    return bare[close[0]] if close else ""


def _bare(name: str) -> str:
    """`aten::_index_put_impl.out` -> `index_put_impl`, `custom_call @mhlo.topk` -> `mhlo.topk`."""
    plain = re.split(r"::|@", name)[-1]
    return (plain.split(".")[0] if "::" in name else plain).strip("_").lower()


def unsupported(
    of: str,
    missing: Mapping[str, Sequence[Where | None]],
    total: int,
    known: Iterable[str],
    fix: str,
) -> UnsupportedError:
    """The one error that names every op without a rule, with its count: five lines in all.

    `of` says what has them ("model uses {} torch op"), `missing` are the places of each op, `total`
    counts all nodes. The place of the error is the first op's; `opentrn analyze` has those of all.
    """
    count, known = sum(map(len, missing.values())), list(known)
    rows = []
    for name, places in sorted(missing.items(), key=lambda item: (-len(item[1]), item[0])):
        close = near_op(name, known)
        rows.append(f"{len(places)} × {name}" + (f" (there is {close})" if close else ""))
    plural = "" if len(missing) == 1 else "s"
    has = "that has" if len(missing) == 1 else "that have"
    return UnsupportedError(
        f"this {of.format(len(missing))}{plural} {has} no rule ({count} of {total} nodes): "
        f"{', '.join(rows)}",
        code="graph.unsupported_op", at=next(iter(missing.values()))[0], fix=fix,
    )  # fmt: skip
