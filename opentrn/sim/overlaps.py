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
    Boxes on chip are shared between buffers of the same form.
    """

    r0: int
    r1: int
    c0: int
    c1: int
    exact: bool
    covers: bool
    whole: bool
    key: Any


class Record:
    """One access others may have to wait for: instance number, stream, kind of wait, region.

    `key` is its place in its ledger (None, and no view: inherited).

    `waited` has the bit of every stream of which an instruction already waits for it: later ones
    of that stream start later still.  `passed`: a write to the buffer comes after it.
    """

    __slots__ = ("box", "key", "kind", "number", "passed", "stream", "view", "waited")

    def __init__(self, key, number: int, stream: int, kind: int, box: Box, view: View | None):
        self.key, self.number, self.stream, self.kind = key, number, stream, kind
        self.box, self.view, self.waited, self.passed = box, view, 0, False


WHOLE = Box(0, 1 << 60, 0, 1 << 60, True, True, True, None)


class Shapes:
    """Boxes of views; what depends only on shape and steps is remembered."""

    def __init__(self):
        self._boxes: dict[tuple, Box] = {}
        self._known: dict[tuple, tuple] = {}
        self._pitch: dict[Any, int] = {}

    def box(self, view: View) -> Box:
        """The region of `view` within its buffer."""
        buffer = view.buffer
        if view.index is not None:
            return self._runtime(view)
        if not buffer.on_chip:
            return self._in_hbm(view)
        form = (view.steps, view.dtype, buffer.partition_bytes, buffer.shape[0])
        key = (view.offset, form)
        found = self._boxes.get(key)
        if found is None:
            found = self._boxes[key] = self._on_chip(view, form)
        return found

    def _on_chip(self, view: View, form: tuple) -> Box:
        known = self._known.get(form)
        if known is None:
            known = self._known[form] = self._measure(view)
        whole, row, rows, column, width, exact, pitch, item = known
        if whole and view.offset == 0:
            return WHOLE
        first, start = divmod(view.offset, pitch)
        row, column = row + first, column + start * item
        name = (view.offset, view.steps, view.dtype)
        return Box(row, row + rows, column, column + width, exact, exact, False, name)

    def _measure(self, view: View) -> tuple:
        """Whether it is whole (at offset 0), extents relative to the offset, and density."""
        r0, r1, row_dims, low, high, _, dims = view._region
        item, buffer = view.dtype.itemsize, view.buffer
        exact = not row_dims and not dims
        whole = exact and (r1 - r0, high - low) == (buffer.shape[0], buffer.partition_bytes)
        row, column = r0 - view.start_partition, low - view.free_offset * item
        return whole, row, r1 - r0, column, high - low, exact, view.pitch, item

    def _runtime(self, view: View) -> Box:
        """An index known only at run time may reach all its legal values, and covers nothing."""
        r0, r1, row_dims, low, high, _, dims = view._region
        exact = not row_dims and not dims
        if not view.buffer.on_chip:
            r0, r1, low, high, exact = self._rows(view.buffer, low, high, view._region[5], dims)
        return Box(r0, r1, low, high, exact, False, False, id(view))

    def _in_hbm(self, view: View) -> Box:
        _, _, _, low, high, run, dims = view._region
        if not dims and high - low == view.buffer.nbytes:
            return WHOLE
        r0, r1, c0, c1, exact = self._rows(view.buffer, low, high, run, dims)
        name = (view.offset, view.steps, view.dtype)
        return Box(r0, r1, c0, c1, exact, exact, False, name)

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


def meet(record: Record, box: Box, view: View) -> bool:
    """Whether a recorded access shares a byte with a new one of the same buffer."""
    own = record.box
    if own.whole or box.whole:
        return True
    if own.r0 >= box.r1 or box.r0 >= own.r1 or own.c0 >= box.c1 or box.c0 >= own.c1:
        return False
    return (own.exact and box.exact) or own.key == box.key or record.view.overlaps(view)


class Ledger:
    """Accesses of one kind to one buffer, by region (and reader).

    `inherited` are accesses to bytes that belonged to other buffers before; they meet everything.
    `disjoint`: no two of `records` share a byte (kept up to date for writes only).
    """

    __slots__ = ("cells", "disjoint", "grid", "inherited", "records", "wide")

    cells: dict[tuple[int, int], dict[Any, Record]]
    wide: dict[Any, Record]

    def __init__(self):
        self.records: dict[Any, Record] = {}
        self.inherited: list[Record] = []
        self.grid: tuple[int, int] | None = None
        self.disjoint = True

    def put(self, key, number: int, stream: int, kind: int, box: Box, view: View) -> None:
        """Remember an access; one with the same key before it is replaced."""
        record = self.records.get(key)
        if record is not None:
            record.number, record.stream, record.kind = number, stream, kind
            record.waited, record.passed = 0, False
            return
        record = self.records[key] = Record(key, number, stream, kind, box, view)
        if self.grid is not None:
            self._enter(key, record)

    def inherit(self, other: "Ledger", alias: bool) -> None:
        """Take over what another buffer left behind in bytes that are now this one's.

        What somebody has waited for is left out: whoever did is recorded in the other ledger and
        inherited, or was waited for itself.  With `alias` the old bytes may still be read, so only
        what `other` had inherited, and a write came after, is left out.
        """
        for record in (*other.records.values(), *other.inherited):
            own = record.view is not None
            if (own or not record.passed) if alias else not record.waited:
                number, stream, kind = record.number, record.stream, record.kind
                self.inherited.append(Record(None, number, stream, kind, WHOLE, None))

    def touching(self, box: Box, view: View) -> list[Record]:
        """The records that share a byte with `box`, the region of `view`."""
        if box.whole:
            return self.inherited + list(self.records.values())
        if not self.records:
            return self.inherited
        if self.disjoint:
            same = self.records.get(box.key)
            if same is not None:
                return [*self.inherited, same]
        if self.grid is None and len(self.records) > _FEW:
            self._build(box)  # only now: most records are replaced by a write of everything
        spots = self._spots(box) if self.grid is not None else None
        near = self.records.values() if spots is None else self._near(spots)
        return self.inherited + [record for record in near if meet(record, box, view)]

    def replace(self, box: Box, touched: list[Record]) -> None:
        """Forget which of the `touched` records a write of `box` has replaced."""
        if box.whole:
            self.records, self.inherited, self.grid, self.disjoint = {}, [], None, True
            return
        for record in touched:
            if record.view is None or record.key == box.key:
                continue  # inherited, or `put` replaces it
            same = record.box.key == box.key and type(box.key) is tuple
            if same or (box.covers and _inside(record.box, box)):
                self._forget(record.key)
            else:
                self.disjoint = False

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

    def _near(self, spots: list) -> Iterable[Record]:
        found = dict(self.wide)
        for spot in spots:
            found.update(self.cells.get(spot, ()))
        return found.values()

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
