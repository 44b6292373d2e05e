"""Simulated memory: one array for each buffer, with a record of what has been written.

On chip a buffer of a low-precision format is kept as float32 values that are already rounded
(its carrier), which saves a conversion at each use; bytes are materialised only when a view
reinterprets them, or when buffers alias by explicit address.  HBM is kept in its storage format.
"""

import numpy as np

from opentrn.base import numerics
from opentrn.isa import Buffer, View

# A row pitch that is a multiple of the page size makes strided access slow on the host
# (measured 8 to 15 %), so every partition row is this many bytes longer than its data.
PAD = 64


class Storage:
    """The memory of one buffer.

    `array` is [partitions, pitch] on chip and flat in HBM; `raw` says whether it holds storage
    bytes instead of carrier values.  `written` is True (all), None (nothing) or a mask with one
    cell for each `unit` bytes.  `touched` is the same for matmul results in PSUM.  `origin` is
    the byte at which the buffer begins in `array` (buffers with explicit addresses share one).
    """

    __slots__ = (
        "array",
        "buffer",
        "group_read",
        "origin",
        "pending",
        "raw",
        "touched",
        "unit",
        "written",
    )

    def __init__(self, buffer: Buffer, array: np.ndarray, raw: bool, written=None, origin=0):
        self.buffer, self.array, self.raw, self.origin = buffer, array, raw, origin
        self.written, self.touched = written, None
        self.unit, self.pending, self.group_read = buffer.dtype.itemsize, 0, False

    # ------------------------------------------------------------ addressing

    def window(self, view: View) -> np.ndarray:
        """The view as a zero-copy strided array of carrier values (or of storage elements)."""
        array = self.array
        if self.raw:
            item = view.dtype.itemsize
            shape, strides, offset = view.numpy_layout(item, array.strides[0])
            return np.ndarray(shape, view.dtype.storage, array, offset + self.origin, strides)
        shape, strides, offset = view.numpy_layout(array.itemsize, array.strides[0])
        return np.ndarray(shape, array.dtype, array, offset, strides)

    def read(self, view: View) -> np.ndarray:
        """Carrier values of the view; shares memory where no conversion is needed."""
        self.settle(view)
        window = self.window(view)
        return numerics.decode(window, view.dtype) if self.raw else window

    def write(self, view: View, value) -> None:
        """Store carrier values (or float32 results) into the view, rounding to its dtype."""
        self.settle(view)
        put(self.window(view), value, view.dtype, self.raw)

    def settle(self, view: View) -> None:
        """Turn values into bytes when `view` reinterprets them as another dtype."""
        if not self.raw and view.dtype != self.buffer.dtype:
            self._become_raw()

    def _become_raw(self) -> None:
        dtype, free = self.buffer.dtype, self.buffer.free
        on_chip = self.buffer.on_chip
        values = self.array[:, :free] if on_chip else self.array
        coded = numerics.encode(values, dtype)
        if on_chip:
            rows = fresh_rows(coded.shape[0], free * dtype.itemsize)
            rows[:, : free * dtype.itemsize] = coded.view(np.uint8).reshape(coded.shape[0], -1)
            self.array = rows
        else:
            self.array = coded.view(np.uint8).reshape(-1)
        self.raw = True
        if isinstance(self.written, np.ndarray):
            self.written = np.repeat(self.written, dtype.itemsize, axis=-1)
        self.unit = 1

    # ------------------------------------------------------------ what has been written

    def _cells(self, mask: np.ndarray, view: View) -> np.ndarray:
        cells = max(1, view.dtype.itemsize // self.unit)
        shape, strides, offset = view.numpy_layout(cells, mask.strides[0])
        if cells > 1:
            shape, strides = (*shape, cells), (*strides, 1)
        return np.ndarray(shape, np.bool_, mask, offset, strides)

    def _blank(self) -> np.ndarray:
        buffer = self.buffer
        cells = buffer.free * max(1, buffer.dtype.itemsize // self.unit)
        shape = (buffer.shape[0], cells) if buffer.on_chip else (cells,)
        return np.zeros(shape, np.bool_)

    def is_written(self, view: View) -> bool:
        """Whether every element of the view has been written."""
        if self.written is True:
            return True
        if self.written is None:
            return False
        return bool(self._cells(self.written, view).all())

    def mark(self, view: View) -> None:
        """Record that the view has been written."""
        if self.written is True:
            return
        if view.whole:
            self.written = True
            return
        if self.written is None:
            self.written = self._blank()
        self._cells(self.written, view)[...] = True
        self.pending += view.size
        if self.pending >= self.buffer.free * self.buffer.partitions:
            self.written = True if self.written.all() else self.written
            self.pending = 0

    def unwritten_share(self) -> float:
        """Share of the buffer's elements that nobody has written, 0 to 1."""
        if self.written is True:
            return 0.0
        return 1.0 if self.written is None else 1.0 - float(self.written.mean())

    # ------------------------------------------------------------ accumulation groups in PSUM

    def group(self, view: View):
        """What matmuls left in the view: None nothing, True everywhere, or a mask."""
        if self.touched is None or self.touched is True:
            return self.touched
        cells = self._cells(self.touched, view)
        if cells.all():
            return True
        return cells if cells.any() else None

    def touch(self, view: View) -> None:
        """Record a matmul result in the view."""
        if self.touched is True:
            return
        if view.whole:
            self.touched = True
            return
        if self.touched is None:
            self.touched = self._blank()
        self._cells(self.touched, view)[...] = True

    def untouch(self, view: View) -> None:
        """Record that something else than a matmul overwrote the view."""
        if self.touched is None:
            return
        if view.whole:
            self.touched = None
            return
        if self.touched is True:
            self.touched = ~self._blank()
        self._cells(self.touched, view)[...] = False


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
        window[...] = numerics.encode(value, dtype)
    else:
        numerics.store(window, value, known, dtype)


def fresh_rows(partitions: int, row_bytes: int) -> np.ndarray:
    """Zeroed bytes [partitions, row_bytes + padding], rows padded to a multiple of 64 bytes."""
    pitch = -(-row_bytes // PAD) * PAD + PAD
    return np.zeros((partitions, pitch), np.uint8)


def fresh_values(buffer: Buffer) -> np.ndarray:
    """Carrier values of an on-chip buffer, all reading as uninitialised."""
    item = buffer.dtype.carrier.itemsize
    pitch = -(-buffer.free * item // PAD) * PAD + PAD
    array = np.empty((buffer.shape[0], pitch // item), buffer.dtype.carrier)
    array.fill(numerics.uninitialised(buffer.dtype))
    return array
