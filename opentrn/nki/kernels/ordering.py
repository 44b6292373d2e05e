"""Sorting along rows: a merge-exchange network on whole tiles, held in SBUF from load to store.

Batcher's odd-even merge sort (Knuth, The Art of Computer Programming, 5.3.4, Algorithm M): about
log² n / 2 steps, each comparing neighbours at one distance, so that a step is a few instructions
on strided views of all rows.  Keys are 32-bit integers in the order of the numbers, so that NaN and
integers beyond 2^24 keep their places.
"""

from opentrn.base import LimitError, declare
from opentrn.base import dtype as as_dtype
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.nki.jit import jit
from opentrn.nki.kernels.pointwise import cast, fresh
from opentrn.nki.kernels.tiles import sheet, spans

declare(
    "kernels.sort_row",
    "Rows are too long to be sorted on the chip.",
    rule="keys, places and the tiles they are exchanged through lie in SBUF together",
    fix="sort parts and merge them on the host, or take the k largest",
)
# Keys, places and half as many numbers six times over: 4096 columns take 80 KiB of a partition.
LONGEST_SORT = 4096
TOP = 0x7FFFFFFF


def _turned(bits):
    """Bits of negative numbers with all but the sign inverted, for they fall as floats rise."""
    sign, mask = fresh(bits, nl.int32), fresh(bits, nl.int32)
    nisa.tensor_scalar(sign, bits, nl.right_shift, 31)
    nisa.tensor_scalar(sign, sign, nl.multiply, -1)
    nisa.tensor_scalar(mask, sign, nl.bitwise_and, TOP)
    turned = fresh(bits, nl.int32)
    nisa.tensor_tensor(turned, mask, bits, nl.bitwise_xor)
    return turned


def _keys(tile, source):
    """32-bit integers in the order of a tile's numbers; every NaN is largest."""
    if source.is_float:
        number = fresh(tile, nl.float32)
        nisa.tensor_scalar(number, tile, nl.add, 0.0)  # -0 becomes 0, which it is equal to
        bits = number.view(nl.int32)
        turned = _turned(bits)
        sane = fresh(bits, nl.uint8)
        nisa.tensor_tensor(sane, number, number, nl.not_equal)
        top = fresh(bits, nl.int32)
        nisa.memset(top, TOP)
        nisa.tensor_copy_predicated(turned, top, sane)
        return turned
    if source == nl.uint32:
        made = fresh(tile, nl.int32)
        nisa.tensor_scalar(made, tile.view(nl.int32), nl.bitwise_xor, -(1 << 31))
        return made
    return cast(tile, nl.int32)


def _numbers(keys, source, dtype):
    """The numbers of keys; NaN comes back as a NaN."""
    if source.is_float:
        return cast(_turned(keys).view(nl.float32), dtype)
    if source == nl.uint32:
        made = fresh(keys, nl.int32)
        nisa.tensor_scalar(made, keys, nl.bitwise_xor, -(1 << 31))
        return made.view(nl.uint32)
    return cast(keys, dtype)


def distances(width: int):
    """(length of the runs being merged, distance of the neighbours compared) of each step."""
    run = 1
    while run < width:
        step = run
        while step:
            yield run, step
            step //= 2
        run *= 2


def _pairs(tile, run: int, step: int):
    """The two halves of every pair of one step: tiles [P, merges, groups, step]."""
    height, width = tile.shape
    merges = tile.reshape((height, width // (2 * run), 2 * run))
    if step < run:  # the first and last `step` of a merge stay where they are
        merges = merges[:, :, step : 2 * run - step]
    groups = merges.reshape_dim(2, (merges.shape[2] // (2 * step), 2, step))
    return groups[:, :, :, 0, :], groups[:, :, :, 1, :]


def _exchange(keys, places, run: int, step: int) -> None:
    """Put the smaller of every pair first; of equal keys, that from the earlier place."""
    low, high = _pairs(keys, run, step)
    first, second = _pairs(places, run, step)
    # 32-bit results: into any other dtype the engine would compare as float32.
    swap, tie, later = (nl.ndarray(low.shape, nl.int32, nl.sbuf) for _ in range(3))
    nisa.tensor_tensor(swap, low, high, nl.greater)
    nisa.tensor_tensor(tie, low, high, nl.equal)
    nisa.tensor_tensor(later, first, second, nl.greater)
    nisa.tensor_tensor(tie, tie, later, nl.logical_and)
    truth = nl.ndarray(low.shape, nl.uint8, nl.sbuf)
    nisa.tensor_tensor(truth, swap, tie, nl.logical_or)
    for a, b in ((low, high), (first, second)):
        held = nl.ndarray(a.shape, a.dtype, nl.sbuf)
        nisa.tensor_copy(held, a)
        nisa.tensor_copy_predicated(a, b, truth)
        nisa.tensor_copy_predicated(b, held, truth)


def _smaller_first(keys, run: int, step: int) -> None:
    """Put the smaller of every pair first, when only the numbers are wanted."""
    low, high = _pairs(keys, run, step)
    held = nl.ndarray(low.shape, keys.dtype, nl.sbuf)
    nisa.tensor_tensor(held, low, high, nl.maximum)
    nisa.tensor_tensor(low, low, high, nl.minimum)
    nisa.tensor_copy(high, held)


@jit
def sort(x, descending=False, part="values"):
    """The last axis in rising (or falling) order; as "indices", where each element came from.

    Equal elements keep their order, NaN counts as the largest.  Raises LimitError for rows of more
    than 4096 elements."""
    count = x.shape[-1]
    width = 1 << (count - 1).bit_length()
    if width > LONGEST_SORT:
        raise LimitError(f"rows of {count} elements are sorted as {width}", code="kernels.sort_row")
    kind = x.dtype if part == "values" else as_dtype("int32")
    out = nl.ndarray(x.shape, kind, nl.shared_hbm)
    given, result = sheet(x), sheet(out)
    for rows in spans(given.rows, nl.tile_size.pmax):
        height = rows[1] - rows[0]
        keys = nl.ndarray((height, width), nl.int32, nl.sbuf)
        if width > count:
            nisa.memset(keys[:, count:width], TOP)
        held = _keys(given.tile(rows, (0, count)), x.dtype)
        if descending:
            nisa.tensor_scalar(keys[:, 0:count], held, nl.bitwise_xor, -1)
        else:
            nisa.tensor_copy(keys[:, 0:count], held)
        places = None
        if part == "indices":
            places = nl.ndarray((height, width), nl.int32, nl.sbuf)
            nisa.iota(places, [[1, width]], offset=0, channel_multiplier=0)
        for run, step in distances(width):
            if places is None:
                _smaller_first(keys, run, step)
            else:
                _exchange(keys, places, run, step)
        if places is None:
            held = keys[:, 0:count]
            if descending:
                held = nl.ndarray((height, count), nl.int32, nl.sbuf)
                nisa.tensor_scalar(held, keys[:, 0:count], nl.bitwise_xor, -1)
            tile = _numbers(held, x.dtype, kind)
        else:
            tile = places[:, 0:count]
        result.store(tile, rows[0])
    return out


__all__ = ["LONGEST_SORT", "distances", "sort"]
