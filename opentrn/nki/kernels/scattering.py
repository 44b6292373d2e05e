"""Rows written to, or combined in, at places that the data say."""

from math import prod

from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.nki.jit import jit
from opentrn.nki.kernels.elementwise import as_bytes, evaluate
from opentrn.nki.kernels.pointwise import Value
from opentrn.nki.kernels.tiles import sheet, spans

# Columns of a table worked on together: one PSUM bank of float32.
COLUMNS = 512
# Whole numbers up to this are exact in float32, in which places are compared.
EXACT = 1 << 24
NOWHERE = (1 << 31) - 1
SKIP = nisa.oob_mode.skip


@jit
def scatter_rows(table, ids, rows, kind="set", steps=()):
    """A copy of `table` [V, D] in which row ids[n] is rows[n] ("set"), has it added ("add", of
    floats), or is what the element-wise `steps` make of it and of rows[n] ("steps").

    ids are [N, 1] integers; those outside 0 … V - 1 write nothing.  Of rows with one place, "set"
    keeps the last; "add" adds all of them, in float32 for each 128 of them; "steps" take them one
    after the other, in order.  Steps are those of `elementwise`: ("in", 0) is the table's row."""
    out = nl.ndarray(table.shape, table.dtype, nl.shared_hbm)
    nisa.dma_copy(out, table)
    given, numbers, target = sheet(as_bytes(rows)), sheet(ids), as_bytes(out)
    for span in spans(given.rows, nl.tile_size.pmax):
        chosen = numbers.tile(span)
        same = None if kind == "set" else _equal_places(chosen, table.shape[0])
        if kind == "steps":
            _in_turns(target, given, span, chosen, same, steps, table.dtype)
            continue
        for columns in spans(given.columns, COLUMNS):
            tile = given.tile(span, columns)
            places = _rows_of(target, columns, chosen)
            if kind == "add":
                tile = _added(places, tile, same)
            nisa.dma_copy(places, tile, oob_mode=SKIP)
    return out


def _rows_of(table, columns: tuple[int, int], chosen):
    return table[:, columns[0] : columns[1]].vector_select(0, chosen)


def _equal_places(chosen, count: int):
    """[N, N] of ones where two of a tile's rows go to one place of `count`, and zeros."""
    if count <= EXACT:
        return _equal(chosen)
    parts = []
    for op, number in ((nl.right_shift, 16), (nl.bitwise_and, 0xFFFF)):
        part = nl.ndarray(chosen.shape, nl.int32, nl.sbuf)
        nisa.tensor_scalar(part, chosen, op, number)
        parts.append(_equal(part))
    nisa.tensor_tensor(parts[0], parts[0], parts[1], nl.multiply)
    return parts[0]


def _equal(chosen):
    height = chosen.shape[0]
    numbers = nl.ndarray((height, 1), nl.float32, nl.sbuf)
    nisa.tensor_copy(numbers, chosen)
    wide = nl.ndarray((height, height), nl.float32, nl.sbuf)
    nisa.tensor_copy(wide, numbers.broadcast(1, height))
    turned = nl.ndarray((height, height), nl.float32, nl.psum)
    nisa.nc_transpose(turned, wide)
    same = nl.ndarray((height, height), nl.float32, nl.sbuf)
    nisa.tensor_tensor(same, wide, turned, nl.equal)
    return same


def _added(target, tile, same):
    """What a tile's places hold, plus all rows of the tile that go there."""
    height, width = tile.shape
    moving = nl.ndarray((height, width), nl.float32, nl.sbuf)
    nisa.tensor_copy(moving, tile)
    total = nl.ndarray((height, width), nl.float32, nl.psum)
    nisa.nc_matmul(total, same, moving, accumulate=False)
    before = nl.ndarray((height, width), tile.dtype, nl.sbuf)
    nisa.memset(before, 0)
    nisa.dma_copy(before, target, oob_mode=SKIP)
    made = nl.ndarray((height, width), tile.dtype, nl.sbuf)
    nisa.tensor_tensor(made, before, total, nl.add)
    return made


def _in_turns(target, given, span, chosen, same, steps, dtype) -> None:
    """Combine a tile's rows in, those of one place in different turns of a device loop."""
    height = chosen.shape[0]
    turn, last = _turns(same)
    now = nl.ndarray((height, 1), nl.int32, nl.sbuf)
    due = nl.ndarray((height, 1), nl.uint8, nl.sbuf)
    pieces = []
    for columns in spans(given.columns, COLUMNS):
        before = nl.ndarray((height, columns[1] - columns[0]), given.dtype, nl.sbuf)
        nisa.memset(before, 0)
        pieces.append((columns, given.tile(span, columns), before))

    def once(_=None):
        nisa.tensor_scalar(due, turn, nl.equal, 0.0)
        nisa.memset(now, NOWHERE)
        nisa.tensor_copy_predicated(now, chosen, due)
        nisa.tensor_scalar(turn, turn, nl.subtract, 1.0)
        for columns, tile, before in pieces:
            places = _rows_of(target, columns, now)
            nisa.dma_copy(before, places, oob_mode=SKIP)
            values = [Value.read(x, dtype) for x in (before, tile)]
            nisa.dma_copy(places, evaluate(values, steps, given.dtype), oob_mode=SKIP)

    if height == 1:
        once()
    else:
        nl.fori_loop(0, last, once)


def _turns(same):
    """(how many rows before each of a tile go to its place, a register: the most of them, plus 1)
    of rows equal as `same` says."""
    height = same.shape[0]
    earlier = nl.ndarray((height, height), nl.float32, nl.sbuf)
    nisa.affine_select(earlier, [[-1, height]], 1, same, 0.0, cmp_op=nl.greater)
    turn = nl.ndarray((height, 1), nl.float32, nl.sbuf)
    nisa.tensor_reduce(turn, nl.add, earlier, axis=1)
    wide = nl.ndarray((1, height), nl.float32, nl.psum)
    nisa.nc_transpose(wide, turn)
    most = nl.ndarray((1, 1), nl.float32, nl.sbuf)
    nisa.tensor_reduce(most, nl.maximum, wide, axis=1)
    count = nl.ndarray((1, 1), nl.int32, nl.sbuf)
    nisa.tensor_scalar(count, most, nl.add, 1.0)
    return turn, nisa.register_alloc(count)


@jit
def update_slice(x, part, starts, rooms, strides):
    """A copy of x with `part`, of its rank, written where `starts` (integers, held between 0 and
    `rooms`) say: place n counts `strides[n]` elements of x."""
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(out, x)
    place = None
    for start, room, stride in zip(starts, rooms, strides, strict=True):
        tile = nl.ndarray((1, 1), start.dtype, nl.sbuf)
        nisa.dma_copy(tile, start)
        held = (("clamp", 0, ("in", 0), room), ("convert", ("step", 0), nl.int32),
                ("multiply", ("step", 1), stride))  # fmt: skip
        one = evaluate([Value.read(tile, start.dtype)], held, nl.int32)
        if place is not None:
            nisa.tensor_tensor(one, one, place, nl.add)
        place = one
    steps = [[stride, count] for (stride, _), count
             in zip(out.get_pattern(), part.shape, strict=True)]  # fmt: skip
    flat = out.reshape((prod(x.shape),))
    nisa.dma_copy(flat.ap(steps, scalar_offset=place), part)
    return out


__all__ = ["scatter_rows", "update_slice"]
