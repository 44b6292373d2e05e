"""Finding, among many recorded accesses to one buffer, those that share a byte with a new one.

Each access is a box: rows × bytes (partitions on chip; in HBM rows of the view's own pitch).  Most
boxes are dense, and then comparing boxes is exact; for the others the views decide.  Many records
are kept in a grid of cells, so that a tensor written tile by tile costs the same for each tile.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from opentrn.isa import View

_FEW = 12  # up to so many records are compared one by one
_SPAN = 64  # a box over more cells than this is compared with everything


class Box(NamedTuple):
    """The region of an access: rows [r0, r1) × bytes [c0, c1).

    `exact`: every byte of the box is accessed.  `covers`: and surely so, so that a write replaces
    what was there.  `key` names the region within its buffer; `whole` is the whole buffer.
    """

    r0: int
    r1: int
    c0: int
    c1: int
    exact: bool
    covers: bool
    whole: bool
    key: Any
    view: View | None


class Record:
    """One access others may have to wait for: instance number, stream, kind of wait, region.

    `waited` has the bit of every stream of which an instruction already waits for it: later ones
    of that stream start later still.  `passed`: a write to the buffer comes after it.
    """

    __slots__ = ("box", "kind", "number", "passed", "stream", "waited")

    def __init__(self, number: int, stream: int, kind: int, box: Box | None):
        self.number, self.stream, self.kind, self.box = number, stream, kind, box
        self.waited, self.passed = 0, False


WHOLE = Box(0, 1 << 60, 0, 1 << 60, True, True, True, None, None)


class Shapes:
    """Boxes of views; what depends only on shape and steps is remembered."""

    def __init__(self):
        self._known: dict[tuple, tuple] = {}
        self._pitch: dict[Any, int] = {}

    def box(self, view: View) -> Box:
        """The region of `view` within its buffer."""
        buffer, offset, steps, dtype = view.buffer, view.offset, view.steps, view.dtype
        if view.index is not None:
            return self._runtime(view)
        key = (steps, dtype, buffer.partition_bytes, buffer.partitions, buffer.on_chip)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._measure(view)
        whole, rows, columns, width, exact, pitch, item = known
        if whole and offset == 0:
            return WHOLE
        name = (offset, steps, dtype)
        if not buffer.on_chip:
            return self._in_hbm(view, name)
        first, start = divmod(offset, pitch)
        row, column = first + rows[0], start * item + columns
        return Box(
            row, row + rows[1], column, column + width, exact, exact, False, name, view
        )

    def _measure(self, view: View) -> tuple:
        """Whether it is whole (at offset 0), extents relative to the offset, and density."""
        r0, r1, row_dims, low, high, _, dims = view._region
        item = view.dtype.itemsize
        exact = not row_dims and not dims
        rows = (r0 - view.start_partition, r1 - r0)
        sizes = view.buffer.partitions, view.buffer.partition_bytes
        whole = exact and (r1 - r0, high - low) == sizes
        columns = low - view.free_offset * item
        return whole, rows, columns, high - low, exact, view.pitch, item

    def _runtime(self, view: View) -> Box:
        """An index known only at run time may reach all its legal values, and covers nothing."""
        r0, r1, row_dims, low, high, _, dims = view._region
        exact = not row_dims and not dims
        if not view.buffer.on_chip:
            r0, r1, low, high, exact = self._rows(view.buffer, low, high, view._region[5], dims)
        return Box(r0, r1, low, high, exact, False, False, id(view), view)

    def _in_hbm(self, view: View, name) -> Box:
        _, _, _, low, high, run, dims = view._region
        r0, r1, c0, c1, exact = self._rows(view.buffer, low, high, run, dims)
        return Box(r0, r1, c0, c1, exact, exact, False, name, view)

    def _rows(self, buffer, low: int, high: int, run: int, dims: tuple) -> tuple:
        """Flat bytes [low, high) as rows of one pitch for the whole buffer."""
        pitch = self._pitch.get(buffer)
        if pitch is None:
            row = buffer.shape[-1] * buffer.dtype.itemsize
            pitch = self._pitch[buffer] = dims[-1][0] if dims else row
        row, column = divmod(low, pitch)
        last = -(-high // pitch)
        if not dims:
            if last == row + 1:
                return row, last, column, column + high - low, True
            return row, last, 0, pitch, column == 0 and high % pitch == 0
        if column + run <= pitch and all(stride % pitch == 0 for stride, _ in dims):
            exact = len(dims) == 1 and dims[0][0] == pitch
            return row, last, column, column + run, exact
        return row, last, 0, pitch, False


def meet(a: Box, b: Box) -> bool:
    """Whether two accesses of one buffer share a byte."""
    if a.whole or b.whole:
        return True
    if a.r0 >= b.r1 or b.r0 >= a.r1 or a.c0 >= b.c1 or b.c0 >= a.c1:
        return False
    return (a.exact and b.exact) or a.key == b.key or a.view.overlaps(b.view)


class Ledger:
    """Accesses of one kind to one buffer, by region (and reader)."""

    __slots__ = ("cells", "grid", "records", "wide")

    cells: dict[tuple[int, int], dict[Any, Record]]
    wide: dict[Any, Record]

    def __init__(self):
        self.records: dict[Any, Record] = {}
        self.grid: tuple[int, int] | None = None

    def put(self, key, number: int, stream: int, kind: int, box: Box) -> None:
        """Remember an access; one with the same key before it is replaced."""
        record = self.records.get(key)
        if record is not None:
            record.number, record.stream, record.kind = number, stream, kind
            record.waited, record.passed = 0, False
            return
        record = self.records[key] = Record(number, stream, kind, box)
        if self.grid is not None:
            self._enter(key, record)
        elif len(self.records) > _FEW and not box.whole:
            self._build(box)

    def inherit(self, other: "Ledger") -> None:
        """Take over what another buffer left behind in bytes that are now this one's.

        Inherited records meet every access.  One that `other` had inherited itself, and that a
        write came after, is left out: that write is inherited, or one that came after it.
        """
        for key, record in other.records.items():
            if not (record.passed and type(key) is tuple and key[0] == "inherited"):
                key = ("inherited", record.number)
                self.records[key] = Record(record.number, record.stream, record.kind, WHOLE)

    def touching(self, box: Box) -> list[Record]:
        """The records that share a byte with `box`."""
        if box.whole:
            return list(self.records.values())
        near: Iterable[Record] = self.records.values()
        if self.grid is not None:
            spots = self._spots(box)
            if spots is not None:
                near = self._near(spots)
        return [record for record in near if meet(record.box, box)]

    def drop_covered(self, box: Box) -> None:
        """Forget what a write of every byte of `box` has replaced."""
        if box.whole:
            self.records, self.grid = {}, None
            return
        for key in [k for k, r in self._around(box) if _inside(r.box, box)]:
            self._forget(key)

    # ------------------------------------------------------------ the grid

    def _build(self, box: Box) -> None:
        """Sort the records into cells as large as `box`."""
        self.grid = (box.r1 - box.r0, box.c1 - box.c0)
        self.cells, self.wide = {}, {}
        for key, record in self.records.items():
            self._enter(key, record)

    def _spots(self, box: Box) -> list[tuple[int, int]] | None:
        """The cells a box lies in, or None when they are too many."""
        if box.whole:
            return None
        height, width = self.grid
        rows = range(box.r0 // height, (box.r1 - 1) // height + 1)
        columns = range(box.c0 // width, (box.c1 - 1) // width + 1)
        if len(rows) * len(columns) > _SPAN:
            return None
        return [(r, c) for r in rows for c in columns]

    def _enter(self, key, record: Record) -> None:
        spots = self._spots(record.box)
        if spots is None:
            self.wide[key] = record
            return
        for spot in spots:
            self.cells.setdefault(spot, {})[key] = record

    def _near(self, spots: list) -> list[Record]:
        found = dict(self.wide)
        for spot in spots:
            found.update(self.cells.get(spot, ()))
        return list(found.values())

    def _around(self, box: Box) -> list[tuple[Any, Record]]:
        spots = self._spots(box) if self.grid is not None else None
        if spots is None:
            return list(self.records.items())
        found = dict(self.wide)
        for spot in spots:
            found.update(self.cells.get(spot, ()))
        return list(found.items())

    def _forget(self, key) -> None:
        record = self.records.pop(key)
        if self.grid is None:
            return
        self.wide.pop(key, None)
        for spot in self._spots(record.box) or ():
            self.cells[spot].pop(key, None)


def _inside(small: Box, large: Box) -> bool:
    if small.whole:
        return False
    return (
        large.r0 <= small.r0
        and small.r1 <= large.r1
        and large.c0 <= small.c0
        and small.c1 <= large.c1
    )
