"""Data movement: copies of any view, concatenation, padding, and rows gathered from a table."""

from collections.abc import Iterator

from opentrn.base import dtype as as_dtype
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.nki.jit import jit
from opentrn.nki.kernels.elementwise import elementwise
from opentrn.nki.kernels.tiles import Balance, Sheet, cover, merged, sheet, spans, transposed

# A gathered or filled row is cut into tiles of at most this many bytes of a partition.
ROW_BYTES = 32 << 10
# Dense stretches shorter than this make a DMA slow (descriptors cost about 7.5 ns each, the time
# of 170 bytes); then turning tiles on the Tensor Engine pays.
SHORT_BYTES = 128


def places(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All index tuples of `shape` in row-major order."""
    if not shape:
        yield ()
        return
    for n in range(shape[0]):
        for rest in places(shape[1:]):
            yield (n, *rest)


@jit
def copy(x, out_dtype=None, out=None):
    """x, whatever its view, as a dense tensor of `out_dtype` (by default that of x), or in `out`.

    A view whose dense dimension is not its last is transposed tile by tile on the way; what repeats
    along rows is repeated on the chip.
    """
    kind = as_dtype(out_dtype or x.dtype)
    if x.get_pattern()[-1][0] == 0 and x.shape[-1] > 1:
        return elementwise.func([x], (("convert", ("in", 0), kind),), x.shape, kind, out)
    if out is None:
        out = nl.ndarray(x.shape, kind, nl.shared_hbm)
    steps = merged(x.get_pattern())
    dense = _dense_dimension(steps, x.dtype)
    if dense is None:
        nisa.dma_copy(out, x)
        return out
    shape = [count for _, count in steps]
    given, result = x.ap(steps), out.reshape(shape)
    others = [d for d in range(len(steps) - 1) if d != dense]
    for place in places(tuple(shape[d] for d in others)):
        key = [slice(None)] * len(shape)
        for d, at in zip(others, place, strict=True):
            key[d] = at
        # Both are [A, B] now; memory of x is dense along A, memory of the result along B.
        a_b, target = given[tuple(key)], result[tuple(key)]
        _turn(sheet(a_b.permute((1, 0))), sheet(target))
    return out


def _dense_dimension(steps: list[list[int]], dtype) -> int | None:
    """The dimension to read along where the last one is scattered in memory, else None."""
    stride, count = steps[-1]
    if stride in (0, 1) or not dtype.is_float or count == 1:
        return None
    wide = [d for d, (s, n) in enumerate(steps) if s == 1 and n * dtype.itemsize >= SHORT_BYTES]
    return wide[0] if wide else None


def _turn(x: Sheet, out: Sheet) -> None:
    """out [A, B] = the transpose of x [B, A]."""
    pmax, balance = nl.tile_size.pmax, Balance()
    for columns in spans(x.columns, 4 * pmax):
        blocks = list(spans(columns[1] - columns[0], pmax))
        for group in spans(x.rows, 4 * pmax):
            shape = (blocks[0][1], len(blocks), group[1] - group[0])
            turned = nl.ndarray(shape, out.dtype, nl.sbuf)
            for first, last in spans(group[1] - group[0], pmax):
                tile = x.tile((group[0] + first, group[0] + last), columns)
                transposed(tile, out.dtype, balance, 0, turned, first)
            for n, (first, last) in enumerate(blocks):
                out.store(turned[0 : last - first, n, :], columns[0] + first, group[0])


@jit
def write(target, x):
    """Write x where the view `target` lies, by one DMA; the result is `target`."""
    nisa.dma_copy(target, x)
    return target


@jit
def to_register(x):
    """The one 32-bit integer of x in a new register; the result is x."""
    tile = nl.ndarray((1, 1), x.dtype, nl.sbuf)
    nisa.dma_copy(tile, x)
    nisa.register_alloc(tile)
    return x


@jit
def transpose(x, axes):
    """x with its dimensions in the order `axes`, as a dense tensor."""
    return copy.func(x.permute(tuple(a % x.ndim for a in axes)))


@jit
def concatenate(xs, axis=0):
    """Tensors that agree in all dimensions but `axis`, one after the other along it."""
    axis %= xs[0].ndim
    shape = list(xs[0].shape)
    shape[axis] = sum(x.shape[axis] for x in xs)
    out = nl.ndarray(tuple(shape), xs[0].dtype, nl.shared_hbm)
    at = 0
    for x in xs:
        nisa.dma_copy(out.slice(axis, at, at + x.shape[axis]), x)
        at += x.shape[axis]
    return out


@jit
def pad(x, value, low, high):
    """x with `low[d]` elements of `value` before and `high[d]` after it in every dimension d."""
    shape = tuple(a + n + b for a, n, b in zip(low, x.shape, high, strict=True))
    out = nl.ndarray(shape, x.dtype, nl.shared_hbm)
    inside = tuple(slice(a, a + n) for a, n in zip(low, x.shape, strict=True))
    nisa.dma_copy(out[inside], x)
    for dim, size in enumerate(shape):
        for first, last in ((0, low[dim]), (size - high[dim], size)):
            if first < last:
                # Dimensions before this one are inside, those after it whole: no two parts meet.
                key = (*inside[:dim], slice(first, last), *[slice(None)] * (x.ndim - dim - 1))
                _fill(out[key], value)
    return out


def _fill(part, value) -> None:
    """Write one number everywhere in a view of HBM."""
    target = sheet(part)
    width = min(target.columns, ROW_BYTES // part.dtype.itemsize)
    tile = nl.ndarray((min(target.rows, nl.tile_size.pmax), width), part.dtype, nl.sbuf)
    nisa.memset(tile, value)
    for rows in spans(target.rows, nl.tile_size.pmax):
        for columns in spans(target.columns, width):
            size = tile[0 : rows[1] - rows[0], 0 : columns[1] - columns[0]]
            target.store(size, rows[0], columns[0])


@jit
def embedding(table, ids):
    """Rows of `table` [V, D] for integer `ids` [...]: a tensor [..., D], gathered by DMA."""
    pmax, width = nl.tile_size.pmax, table.shape[1]
    out = nl.ndarray((*ids.shape, width), table.dtype, nl.shared_hbm)
    result, numbers = sheet(out), sheet(ids.expand_dim(ids.ndim))
    pieces = cover(width * table.dtype.itemsize, ROW_BYTES)
    for rows in spans(result.rows, pmax):
        chosen = numbers.tile(rows)
        for first, last in spans(width, cover(width, pieces)):
            tile = nl.ndarray((rows[1] - rows[0], last - first), table.dtype, nl.sbuf)
            nisa.dma_copy(tile, table[:, first:last].vector_select(0, chosen))
            result.store(tile, rows[0], first)
    return out
