"""Simulated memory: one array for each buffer, with a record of what has been written.

On chip a buffer of a low-precision format is kept as float32 values that are already rounded
(its carrier), which saves a conversion at each use; bytes are materialised only when a view
reinterprets them, or when buffers alias by explicit address.  HBM is kept in its storage format.
"""

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from opentrn.base import UsageError, float32, numerics
from opentrn.isa import Buffer, View, view_of

# A row pitch that is a multiple of the page size makes strided access slow on the host
# (measured 8 to 15 %), so such a row is PAD bytes longer than its data.  Other rows lie end to end:
# adding to a dense tile takes a fifth of the time of a padded one.
PAD, PAGE = 64, 4096
# Windows a storage remembers; views that come again (a tile used by several instructions) do so
# soon.
WINDOWS = 256
BITS = "sim.precise_bits"
# The cells of one element as a number, and that number where all of them are marked.
_WORDS = {n: np.dtype(f"u{n}") for n in (1, 2, 4, 8)}
_MARKED = {n: kind.type(int.from_bytes(b"\1" * n)) for n, kind in _WORDS.items()}
# Bytes: tiles below SMALL_TILE come from the heap, others out of pieces of PIECE, of which KEPT
# outlive their machine.
HUGE_PAGE, PIECE, SMALL_TILE, KEPT = 2 << 20, 32 << 20, 64 << 10, 4


class Marks:
    """Which elements of a buffer are marked: `cells` is None (none), True (all) or a mask.

    A mask has one cell for each `unit` bytes, in rows like the memory it describes.  The marks of
    buffers with explicit addresses share one mask of bytes; `origin` is where a buffer begins.
    """

    __slots__ = ("_pending", "buffer", "cells", "origin", "shared", "unit")

    def __init__(self, buffer: Buffer, mask: np.ndarray | None = None, origin: int = 0):
        self.buffer, self.cells, self.origin = buffer, mask, origin
        self.shared, self._pending = mask is not None, 0
        self.unit = 1 if self.shared else buffer.dtype.itemsize

    def all_of(self, view: View) -> bool:
        """Whether every element of the view is marked."""
        if self.cells is True or self.cells is None:
            return self.cells is True
        words, marked = self._words(view)
        return bool((words == marked).all())

    def some_of(self, view: View):
        """None when nothing of the view is marked, True when everything is, else a mask."""
        if self.cells is None or self.cells is True:
            return self.cells
        words, marked = self._words(view)
        if (words == marked).all():
            return True
        return words != 0 if words.any() else None

    def add(self, view: View) -> None:
        """Mark the view."""
        if self.cells is True:
            return
        if not self.shared and view.whole:
            self.cells = True
            return
        if self.cells is None:
            self.cells = self._blank()
        words, marked = self._words(view)
        words[...] = marked
        self._grown(view.nbytes)

    def _grown(self, nbytes: int) -> None:
        """See whether everything is marked, once that many bytes have been."""
        self._pending += nbytes
        if self._pending >= self.buffer.nbytes and not self.shared:
            self.cells = True if self.cells.all() else self.cells
            self._pending = 0

    def add_rows(self, view: View, rows: np.ndarray) -> None:
        """Mark some positions of the view's first dimension."""
        if self.cells is True:
            return
        if self.cells is None:
            self.cells = self._blank()
        cells = self.window(view)
        cells[rows] = True
        self._grown(rows.size * view.free_size * view.dtype.itemsize)

    def all_rows(self, view: View, rows: np.ndarray) -> bool:
        """Whether these positions of the view's first dimension are all marked."""
        if self.cells is True or not rows.size:
            return True
        return self.cells is not None and bool(self.window(view)[rows].all())

    def add_places(self, view: View, places: np.ndarray, axis: int) -> None:
        """Mark the positions `places` (as for take_along_axis) along one axis of the view."""
        if self.cells is True:
            return
        if self.cells is None:
            self.cells = self._blank()
        cells = self.window(view)
        places = places if cells.ndim == view.ndim else places[..., None]
        np.put_along_axis(cells, places, True, axis)
        self._grown(places.shape[axis] * view.nbytes // view.shape[axis])

    def at_places(self, view: View, places: np.ndarray, axis: int) -> np.ndarray:
        """Whether each of these positions along one axis of the view is marked."""
        shape = (*view.shape[:axis], places.shape[axis], *view.shape[axis + 1 :])
        if self.cells is True or self.cells is None:
            return np.full(shape, self.cells is True)
        cells = self.window(view)
        places = places if cells.ndim == view.ndim else places[..., None]
        found = np.take_along_axis(cells, places, axis)
        return found if found.ndim == view.ndim else found.any(-1)

    def remove(self, view: View) -> None:
        """Clear the marks of the view."""
        if self.cells is None:
            return
        if not self.shared and view.whole:
            self.cells = None
            return
        if self.cells is True:
            self.cells = ~self._blank()
        self._words(view)[0][...] = 0

    def clear(self) -> None:
        """Clear every mark of the buffer."""
        self.remove(view_of(self.buffer))

    def saved(self) -> tuple:
        """The marks as they are, for `restore`."""
        held = self.cells
        return held if held is None or held is True else held.copy(), self.unit

    def restore(self, saved: tuple) -> None:
        """Bring back what `saved` returned; the mask that aliases share is changed in place."""
        cells, self.unit = saved
        if self.shared:
            self.cells[...] = cells
        else:
            self.cells = cells

    def missing(self, view: View) -> float:
        """Share of the view's elements that are not marked, 0 to 1."""
        if self.cells is True or self.cells is None:
            return 0.0 if self.cells is True else 1.0
        return 1.0 - float(self.window(view).mean())

    def window(self, view: View) -> np.ndarray:
        """The cells of the view as a strided array; several for an element in a last dimension."""
        cells, shape, strides, origin = self._layout(view)
        if cells > 1:
            shape, strides = (*shape, cells), (*strides, 1)
        return np.ndarray(shape, np.bool_, self.cells, origin, strides)

    def _words(self, view: View) -> tuple[np.ndarray, int]:
        """The cells of each element of the view as one number, and that of a marked element.

        NumPy walks an axis of two or four cells cell by cell: six times as slow on a column.
        """
        cells, shape, strides, origin = self._layout(view)
        return np.ndarray(shape, _WORDS[cells], self.cells, origin, strides), _MARKED[cells]

    def _layout(self, view: View) -> tuple[int, tuple, tuple, int]:
        """Cells of an element, and shape, strides and offset of the view among the cells."""
        item = view.dtype.itemsize
        if item < self.unit:
            self.cells, self.unit = np.repeat(self.cells, self.unit, axis=-1), 1
        cells = item // self.unit
        shape, strides, offset = view.numpy_layout(cells, self.cells.strides[0])
        return cells, shape, strides, offset + self.origin

    def _blank(self) -> np.ndarray:
        buffer = self.buffer
        cells = buffer.free * (buffer.dtype.itemsize // self.unit)
        return np.zeros((buffer.shape[0], cells) if buffer.on_chip else (cells,), np.bool_)


# The marks of memory that no matmul writes to: nothing, for all of it.
UNTOUCHED = Marks(Buffer(0, "sbuf", (1, 1), float32))


class Storage:
    """The memory of one buffer.

    `array` is [partitions, pitch] on chip and flat in HBM; `raw` says whether it holds storage
    bytes instead of carrier values.  `written` marks what somebody wrote, `touched` the results of
    matmuls in PSUM, `seen` those that have been read.  `origin` is the byte at which the buffer
    begins in `array` (buffers with explicit addresses share one).  `borrowed` memory belongs to
    the caller and is copied before the first write; `unset` memory is made to read as
    uninitialised when something is read that nobody wrote.  `late` is work that its machine has put
    off (see `sim.late`): it is done before anyone gets at the memory.
    """

    __slots__ = (
        "array",
        "borrowed",
        "buffer",
        "late",
        "origin",
        "raw",
        "seen",
        "touched",
        "unset",
        "windows",
        "written",
    )

    def __init__(self, buffer: Buffer, array: np.ndarray, raw: bool):
        self.buffer, self.array, self.raw, self.origin = buffer, array, raw, 0
        self.written = Marks(buffer)
        if buffer.space == "psum":
            self.touched, self.seen = Marks(buffer), Marks(buffer)
        else:
            self.touched = self.seen = UNTOUCHED
        self.borrowed, self.unset = False, True
        self.late: list[Callable[[], Any]] | None = None
        self.windows: dict[int, tuple[View, np.ndarray]] = {}

    # ------------------------------------------------------------ addressing

    def window(self, view: View) -> np.ndarray:
        """The view as a zero-copy strided array of carrier values (or of storage elements)."""
        if self.late:
            catch_up(self.late)
        return self.ahead(view)

    def ahead(self, view: View) -> np.ndarray:
        """As `window`, for work that is put off itself."""
        known = self.windows.get(id(view))
        if known is not None:
            return known[1]
        if len(self.windows) >= WINDOWS:
            self.windows.clear()
        made = self._strided(view)
        # The view is kept beside its window, so that its id stays its own.
        self.windows[id(view)] = view, made
        return made

    def place(self, view: View) -> np.ndarray:
        """As `window`, for views that will not come again."""
        if self.late:
            catch_up(self.late)
        return self._strided(view)

    def _strided(self, view: View) -> np.ndarray:
        array = self.array
        if self.raw:
            shape, strides, offset = view.numpy_layout(view.dtype.itemsize, array.strides[0])
            return np.ndarray(shape, view.dtype.storage, array, offset + self.origin, strides)
        shape, strides, offset = view.numpy_layout(array.itemsize, array.strides[0])
        return np.ndarray(shape, array.dtype, array, offset, strides)

    def watched(self, view: View) -> np.ndarray:
        """As `read`, noting that matmul results have been seen."""
        if self.touched.cells is not None:
            self.seen.add(view)
        return self.read(view)

    def unread_group(self, view: View) -> bool:
        """Whether the view holds matmul results of which nothing has been read."""
        return self.touched.some_of(view) is not None and self.seen.some_of(view) is None

    def ungroup(self) -> None:
        """Forget matmul results: a tile is new to matmuls, wherever in PSUM it lies.

        So the NKI Library goes round the banks by address (conv1d at d2ad3a57).
        """
        self.touched.clear()
        self.seen.clear()

    def read(self, view: View) -> np.ndarray:
        """Carrier values of the view; shares memory where no conversion is needed."""
        if self.late:
            catch_up(self.late)
        return self.coming(view)

    def coming(self, view: View) -> np.ndarray:
        """As `read`, for work that is put off itself (what has to be converted is read now)."""
        self.settle(view)
        if self.unset and self.written.cells is not True:
            self.blank()
        if self.raw:
            return numerics.decode(self.window(view), view.dtype)
        return self.ahead(view)

    def stored(self, view: View, last: bool = False) -> np.ndarray:
        """A copy of the view in its dtype's storage type.

        With `last` nobody uses this memory any more: it is handed over where it is all of it.
        """
        self.settle(view)
        self.blank()
        window = self.place(view)
        if last and view.whole and not self.borrowed and window.dtype == view.dtype.storage:
            return window
        made = np.array(window) if self.raw else numerics.encode(window, view.dtype, exact=True)
        return made.copy() if np.may_share_memory(made, window) else made

    def write(self, view: View, value) -> None:
        """Store carrier values (or float32 results) into the view, rounding to its dtype."""
        self.settle(view)
        put(self.window(view), value, view.dtype, self.raw)
        self.written.add(view)

    def settle(self, view: View) -> None:
        """Turn values into bytes when `view` reinterprets them as another dtype."""
        if view.dtype is not self.buffer.dtype and view.dtype != self.buffer.dtype:
            if self.late:
                catch_up(self.late)
            # Before single bytes of an element can be written, all of it reads as uninitialised.
            self.blank()
            if not self.raw:
                self.to_bytes()

    def own(self) -> None:
        """Replace memory that belongs to the caller by a copy."""
        if self.borrowed:
            self.array, self.borrowed = self.array.copy(), False
            self.windows.clear()

    def to_bytes(self) -> None:
        """Keep storage bytes from now on instead of carrier values."""
        dtype, free = self.buffer.dtype, self.buffer.free
        refuse_widened(dtype)
        if self.buffer.on_chip:
            coded = numerics.encode(self.array[:, :free], dtype)
            rows = fresh_rows(coded.shape[0], free * dtype.itemsize)
            rows[:, : free * dtype.itemsize] = coded.view(np.uint8).reshape(coded.shape[0], -1)
            self.array = rows
        else:
            self.array = numerics.encode(self.array, dtype).view(np.uint8).reshape(-1)
        self.raw = True
        self.windows.clear()

    def blank(self) -> None:
        """Make every element that nobody wrote read as uninitialised, once."""
        if not self.unset:
            return
        known, self.unset = self.written.some_of(view_of(self.buffer)), False
        if known is not True:
            self._fill_blank(True if known is None else ~known)

    def wipe(self) -> None:
        """Make every element read as uninitialised."""
        self._fill_blank(True)

    def _fill_blank(self, where) -> None:
        value = numerics.uninitialised(self.buffer.dtype)
        if self.raw:
            value = numerics.encode(np.asarray(value), self.buffer.dtype)
        np.copyto(self.place(view_of(self.buffer)), value, where=where)


def catch_up(late: list[Callable[[], Any]]) -> None:
    """Do the work that was put off, in order."""
    steps = late[:]
    late.clear()
    for step in steps:
        step()


class Arena:
    """The bytes of a whole on-chip memory, for buffers with explicit addresses, which may alias."""

    def __init__(self, partitions: int, row_bytes: int):
        self.array = fresh_rows(partitions, row_bytes)
        # One mask each for what is written, touched by matmuls, and read since.
        self.masks = [np.zeros(self.array.shape, np.bool_) for _ in range(3)]

    def unread(self, buffer: Buffer) -> bool:
        """Whether matmul results lie where the buffer does, and nothing has read any of them."""
        rows = slice(buffer.partition, buffer.partition + buffer.partitions)
        columns = slice(buffer.address, buffer.address + buffer.partition_bytes)
        _, touched, seen = (mask[rows, columns] for mask in self.masks)
        return bool(touched.any()) and not bool((touched & seen).any())

    def storage(self, buffer: Buffer) -> Storage:
        """The memory of a buffer at its address."""
        refuse_widened(buffer.dtype)
        made = Storage(buffer, self.array, raw=True)
        made.origin = origin = buffer.partition * self.array.strides[0] + buffer.address
        marks = (Marks(buffer, mask, origin) for mask in self.masks)
        made.written, made.touched, made.seen = marks
        made.ungroup()
        return made


def refuse_widened(dtype) -> None:
    """UsageError `sim.precise_bits` for a type that is never rounded, as it has no bits."""
    if dtype.narrow is not None:
        raise UsageError(f"{dtype} values that were never rounded are used as bits", code=BITS)


def move(window: np.ndarray, given: np.ndarray, dtype, raw: bool, bits: bool) -> None:
    """Copy a window to one of the same shape and dtype; bits are converted at most once.

    `raw` says whether `window` holds storage bits, `bits` whether `given` does.
    """
    if raw == bits:
        np.copyto(window, given)
    elif bits:
        numerics.decode(given, dtype, out=window)
    else:
        numerics.encode(given, dtype, exact=True, out=window)


def put(window: np.ndarray, value, dtype, raw: bool, known=None) -> None:
    """Write `value` (any broadcastable or equally sized array) into a window of memory.

    `known` is the dtype whose values `value` already holds, when it has been rounded before.
    """
    shape = getattr(value, "shape", ())
    if shape != window.shape and shape not in ((), (1,)):
        value = value.reshape(window.shape)
    if raw:
        value = np.asarray(value)
        if not (dtype.is_float and value.dtype == np.float32):
            # encode() takes carriers; anything else is converted as engines convert first.
            carrier = np.empty(window.shape, dtype.carrier)
            numerics.store(carrier, value, known, dtype)
            value = carrier
        numerics.encode(value, dtype, out=window)
    else:
        numerics.store(window, value, known, dtype)


def writer(window: np.ndarray, dtype, raw: bool, known) -> Callable[[np.ndarray], None]:
    """`put` into one window, without its questions where float32 goes to float32."""
    if raw or dtype is not float32:
        return lambda value: put(window, value, dtype, raw, known)
    shape, kind, copy = window.shape, window.dtype, np.copyto

    def write(value):
        if getattr(value, "dtype", None) == kind and value.shape == shape:
            copy(window, value)
        else:
            put(window, value, dtype, raw, known)

    return write


class Slab:
    """Where tiles of some size get their memory: large pieces, begun at a huge page.

    A fresh tile costs a page fault for every 4 KiB otherwise, as much time as filling it.  Tiles
    made one after the other follow each other in memory, so matmuls into them can be made as one
    (see `blas.products`).  A `lasting` machine takes no pieces: a few tiles would hold a whole one.
    """

    __slots__ = ("_free", "_lasting", "_piece")

    def __init__(self, lasting: bool = False):
        self._piece, self._free, self._lasting = None, 0, lasting

    def values(self, buffer: Buffer) -> np.ndarray:
        """Room for the carrier values of an on-chip buffer [partitions, pitch], not set."""
        item = buffer.dtype.carrier.itemsize
        pitch = row_pitch(buffer.free * item)
        shape = buffer.shape[0], pitch // item
        size = -(-buffer.shape[0] * pitch // PAGE) * PAGE
        if size < SMALL_TILE or self._lasting:
            return np.empty(shape, buffer.dtype.carrier)
        if self._free < size:
            self._piece = _piece(size)
            self._free = self._piece.size
        start = self._piece.size - self._free
        self._free -= size
        return np.ndarray(shape, buffer.dtype.carrier, self._piece, start)


_PIECES: list[np.ndarray] = []
_TAKING = threading.Lock()


def _piece(size: int) -> np.ndarray:
    """A piece of at least `size` bytes that no tile lies in.

    Some are kept for the next machine, because fresh memory costs a kernel as much time as its
    copies.  One is free when only the list refers to it, and only it to its memory (tiles do).
    """
    if size > PIECE:
        return fresh_bytes(size)
    with _TAKING:
        for number in range(len(_PIECES)):
            held = sys.getrefcount(_PIECES[number]), sys.getrefcount(_PIECES[number].base)
            if held == (2, 2):  # each: its owner and the call
                return _PIECES[number]
        made = fresh_bytes(PIECE)
        if len(_PIECES) < KEPT:
            _PIECES.append(made)
        return made


def fresh_bytes(count: int) -> np.ndarray:
    """Bytes that are not set to anything; from 2 MiB on they begin at a huge page."""
    if count < HUGE_PAGE:
        return np.empty(count, np.uint8)
    room = np.empty(count + HUGE_PAGE, np.uint8)
    start = -room.ctypes.data % HUGE_PAGE
    return room[start : start + count]


def fresh_rows(partitions: int, row_bytes: int) -> np.ndarray:
    """Zeroed bytes [partitions, pitch]; see `row_pitch`."""
    return np.zeros((partitions, row_pitch(row_bytes)), np.uint8)


def row_pitch(row_bytes: int) -> int:
    """Bytes from one partition's row to the next: aligned to 8, never whole pages."""
    pitch = -(-row_bytes // 8) * 8
    return pitch + PAD if pitch % PAGE == 0 else pitch
