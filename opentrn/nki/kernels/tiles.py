"""How tensors in HBM are cut into [partitions, elements] tiles, whatever their shape and strides.

A `Sheet` is an HBM tensor seen as rows and columns.  Dimensions that are dense among themselves are
merged, so that a tile of a plain tensor is one DMA; a tile of any other view takes one DMA for each
rectangular piece.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from math import prod

from opentrn.nki import isa as nisa
from opentrn.nki import language as nl

Box = tuple[tuple[int, int], ...]
# What an instruction takes besides its elements, in elements.
START = 64


def spans(total: int, step: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of consecutive pieces of at most `step` that cover `total`."""
    for start in range(0, total, step):
        yield start, min(start + step, total)


def cover(total: int, step: int) -> int:
    """How many pieces of at most `step` cover `total`."""
    return -(-total // step)


def even_step(total: int, most: int, multiple: int = 1) -> int:
    """A piece size of at most `most`, a multiple of `multiple`, that cuts `total` evenly."""
    pieces = cover(total, max(most // multiple, 1) * multiple)
    return min(cover(cover(total, pieces), multiple) * multiple, total)


def merged(steps: list) -> list[list[int]]:
    """The same walk with as few [stride, count] steps as possible (at least one)."""
    kept: list[list[int]] = []
    for stride, count in steps:
        if count == 1:
            continue
        if kept and kept[-1][0] == stride * count:
            kept[-1] = [stride, kept[-1][1] * count]
        else:
            kept.append([stride, count])
    return kept or [[1, 1]]


def boxes(shape: tuple[int, ...], start: int, stop: int) -> Iterator[tuple[int, int, Box]]:
    """Row-major positions [start, stop) of `shape` as boxes: (first position, count, bounds)."""
    if len(shape) == 1:
        yield start, stop - start, ((start, stop),)
        return
    inner = prod(shape[1:])
    at = start
    while at < stop:
        outer, rest = divmod(at, inner)
        whole = (stop - at) // inner
        if rest == 0 and whole:
            bounds = ((outer, outer + whole), *((0, n) for n in shape[1:]))
            yield at, whole * inner, bounds
            at += whole * inner
            continue
        end = min(stop, (outer + 1) * inner)
        for first, count, found in boxes(shape[1:], rest, rest + end - at):
            yield outer * inner + first, count, ((outer, outer + 1), *found)
        at = end


class Sheet:
    """An HBM tensor as [rows, columns], each walked by one or more [stride, count] steps."""

    def __init__(self, tensor, row_steps, column_steps, offset: int = 0):
        self.dtype = tensor.dtype
        row_steps, column_steps = merged(row_steps), merged(column_steps)
        self.view = tensor.ap([*row_steps, *column_steps], offset)
        self.row_shape = tuple(n for _, n in row_steps)
        self.column_shape = tuple(n for _, n in column_steps)
        self.rows, self.columns = prod(self.row_shape), prod(self.column_shape)
        self.row_stride, self.column_stride = row_steps[-1][0], column_steps[-1][0]

    @property
    def is_turned(self) -> bool:
        """Whether memory is dense down the columns instead of along the rows."""
        return self.column_stride != 1 and self.columns > 1 and self.row_stride == 1

    def turned(self) -> "Sheet":
        """The same memory with rows and columns exchanged."""
        steps, cut = self.view.get_pattern(), len(self.row_shape)
        return Sheet(self.view, steps[cut:], steps[:cut])

    def once(self) -> "Sheet":
        """The sheet with the last step of its columns taken once: for what is repeated along it."""
        steps, cut = self.view.get_pattern(), len(self.row_shape)
        return Sheet(self.view, steps[:cut], steps[cut:-1] or [[1, 1]])

    def pieces(self, rows: tuple[int, int], columns: tuple[int, int]):
        """(tile rows, tile columns, HBM view) of the rectangular pieces of one tile."""
        for row, height, row_box in boxes(self.row_shape, *rows):
            for column, width, column_box in boxes(self.column_shape, *columns):
                key = tuple(slice(a, b) for a, b in (*row_box, *column_box))
                top, left = row - rows[0], column - columns[0]
                yield (top, top + height), (left, left + width), self.view[key]

    def load(self, tile, row: int, column: int = 0) -> None:
        """Fill a tile [P, F] in SBUF from this row and column on."""
        height, width = tile.shape
        for (a, b), (c, d), part in self.pieces((row, row + height), (column, column + width)):
            nisa.dma_copy(tile[a:b, c:d], part)

    def store(self, tile, row: int, column: int = 0) -> None:
        """Write a tile [P, F] of SBUF to this row and column on."""
        height, width = tile.shape
        for (a, b), (c, d), part in self.pieces((row, row + height), (column, column + width)):
            nisa.dma_copy(part, tile[a:b, c:d])

    def tile(self, rows: tuple[int, int], columns: tuple[int, int] | None = None):
        """A new SBUF tile with these rows (and columns) of the sheet."""
        first, last = columns or (0, self.columns)
        made = nl.ndarray((rows[1] - rows[0], last - first), self.dtype, nl.sbuf)
        self.load(made, rows[0], first)
        return made


def sheet(tensor, columns: int = 1) -> Sheet:
    """The tensor as rows (leading dimensions) and columns (its last `columns` dimensions)."""
    steps = tensor.get_pattern()
    cut = len(steps) - columns
    return Sheet(tensor, steps[:cut], steps[cut:])


def lies_turned(steps) -> bool:
    """Whether a matrix [.., M, K] walked by these steps is dense down its columns."""
    rows = merged(steps[:-1])[-1]
    return rows[0] == 1 and rows[1] > 1 and steps[-1][0] not in (0, 1)


def ahead(items: Iterable, make: Callable, depth: int = 1) -> Iterator[tuple]:
    """(item, make(item)) for each item, made `depth` items before it is used.

    Engines work in program order, so what the next item can begin with is written before the end
    of this one: then no engine waits for the chain of the others.
    """
    made: deque = deque()
    for item in items:
        made.append((item, make(item)))
        if len(made) > depth:
            yield made.popleft()
    yield from made


def pipelined(items: list, stages: list[tuple[int, Callable]]) -> None:
    """Every stage (lag, function) of every item, written `lag` steps after the item's first.

    As in `ahead`, for longer chains: whatever a stage needs was written a whole step before, so
    the engines that make it and the engine that uses it work on different items at a time.
    Within a step the stages are written in the order given.
    """
    for step in range(len(items) + max(lag for lag, _ in stages)):
        for lag, stage in stages:
            if 0 <= step - lag < len(items):
                stage(items[step - lag])


def row_of(vector, partitions: int):
    """A vector in HBM repeated on every partition: a tile [partitions, N], by one DMA."""
    (stride, count) = merged(vector.get_pattern())[-1]
    tile = nl.ndarray((partitions, count), vector.dtype, nl.sbuf)
    nisa.dma_copy(tile, vector.ap([[0, partitions], [stride, count]]))
    return tile


class Balance:
    """Shares copies out of PSUM between the Vector and the Scalar Engine by work done so far.

    The Scalar Engine moves an element in about 0.8 of the Vector Engine's time (1.2 GHz against
    0.96 GHz on trn2), which from trn2 on moves two dense 16-bit ones at a time, so each copy goes
    where it would end first.
    """

    def __init__(self, vector: float = 0.0, scalar: float = 0.0):
        self.vector, self.scalar = vector, scalar
        self.pairs = nisa.get_nc_version() >= nisa.nc_version.gen3

    def copy(self, dst, src) -> None:
        """dst = src (cast as needed) on the engine with less to do."""
        count = prod(src.shape[1:])
        narrow = dst.dtype.itemsize == src.dtype.itemsize == 2 and self.pairs
        vector, scalar = START + count / (2 if narrow else 1), 0.8 * (START + count)
        if self.vector + vector <= self.scalar + scalar:
            self.vector += vector
            nisa.tensor_copy(dst, src, engine=nisa.vector_engine)
        else:
            # activation copies on every generation; tensor_copy on the Scalar Engine does not
            self.scalar += scalar
            nisa.activation(dst, nl.copy, src)


def transposed(tile, dtype, balance: Balance, width: int = 0, into=None, at: int = 0):
    """The transpose of an SBUF tile [M, K] by the Tensor Engine, as a tile [width, K/width, M].

    Block n of `width` columns (by default 128; the last may be short) becomes `result[:, n, :]`.
    As many blocks as one PSUM bank holds are copied out together.  `dtype` is that of the result.
    With `into` the result goes to its places at … at + M of the last dimension.
    """
    height, columns = tile.shape
    width = width or min(nl.tile_size.pmax, columns)
    if into is None:
        into = nl.ndarray((width, cover(columns, width), height), dtype, nl.sbuf)
    target = into[:, :, at : at + height]
    group = max(1, nl.tile_size.psum_bank_fmax_bytes // (height * tile.dtype.itemsize))
    whole = columns // width
    for first, last in spans(whole, group):
        turned = nl.ndarray((width, last - first, height), tile.dtype, nl.psum)
        for n in range(first, last):
            nisa.nc_transpose(turned[:, n - first, :], tile[:, n * width : (n + 1) * width])
        balance.copy(target[:, first:last, :], turned)
    if whole * width < columns:
        rest = columns - whole * width
        turned = nl.ndarray((rest, height), tile.dtype, nl.psum)
        nisa.nc_transpose(turned, tile[:, whole * width : columns])
        balance.copy(target[0:rest, whole, :], turned)
    return into
