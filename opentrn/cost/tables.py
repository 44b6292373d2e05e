"""Tables for people: columns aligned, as wide as the terminal, or in a file as their words are."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from io import StringIO

UNBOUND = 4000
"""Columns of characters where no terminal sets a width: nothing is wrapped."""


def table_text(
    head: Sequence[str], rows: Iterable[Sequence[object]], left: Collection[int] = (0,)
) -> str:
    """Rows of cells under a head, as lines without trailing spaces.

    Columns named in `left` are aligned to the left, all others to the right. On a terminal cells
    are wrapped at its width; in a pipe or a file no line is broken, for `grep`.
    """
    from rich.box import SIMPLE_HEAD  # slow to import, and not every command prints a table
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for place, title in enumerate(head):
        side = "left" if place in left else "right"
        table.add_column(title, justify=side, no_wrap=place == 0, overflow="fold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    width = None if sys.stdout.isatty() else UNBOUND
    console = Console(file=StringIO(), width=width, markup=False, highlight=False, emoji=False)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines() if line.strip())
