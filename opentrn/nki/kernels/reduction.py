"""Reductions of any axes: along rows on the Vector Engine, across rows on the Tensor Engine.

Few long rows are cut into pieces that fill the partitions, a few rows are combined element by
element: either way every lane has work.
"""

from math import prod

from opentrn.base import UnsupportedError, declare
from opentrn.base import dtype as as_dtype
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.nki.jit import jit
from opentrn.nki.kernels.elementwise import as_bytes, write_chain
from opentrn.nki.kernels.pointwise import Value, cast, fresh
from opentrn.nki.kernels.tiles import Balance, Sheet, cover, merged, spans, transposed

declare(
    "kernels.reduction",
    "A reduction has no kernel.",
    rule="kernels.reduce combines by add, multiply, maximum, minimum, and or or",
    fix="use one of them",
)

OPERATORS = {
    "add": nl.add,
    "multiply": nl.multiply,
    "maximum": nl.maximum,
    "minimum": nl.minimum,
    "and": nl.minimum,
    "or": nl.maximum,
}
# Elements of a row reduced at once: 32 KiB of float32 in a partition.
ROW = 8192
# What instructions and transfers cost before their first element, in elements of a lane.
START = 2048
# Rows combined element by element rather than in a column of the Tensor Engine: with more, tiles
# of them all together get too short; and with fewer results for each lane than this.
FEW_ROWS, FEW_RESULTS = 16, 64


def _fold(tile, op):
    """Integers combined along the row by halves, exactly (the Vector Engine would use float32)."""
    width = tile.shape[1]
    while width > 1:
        half = width // 2
        made = nl.ndarray((tile.shape[0], width - half), tile.dtype, nl.sbuf)
        nisa.tensor_tensor(made[:, :half], tile[:, :half], tile[:, width - half : width], op)
        if width % 2:
            nisa.tensor_copy(made[:, half : half + 1], tile[:, half : half + 1])
        tile, width = made, width - half
    return tile


def _row_results(tile, op, source):
    """op over each row of a tile: [P, 1] in float32, or in 32-bit integers."""
    if source.is_integer:
        return _fold(Value.read(tile, source).tile, op)
    made = nl.ndarray((tile.shape[0], 1), nl.float32, nl.sbuf)
    nisa.tensor_reduce(made, op, tile, axis=1)
    return made


def _combined(parts: list, op):
    """One column of several [P, 1] tiles."""
    while len(parts) > 1:
        made = fresh(parts[0], parts[0].dtype)
        nisa.tensor_tensor(made, parts[0], parts[1], op)
        parts = [*parts[2:], made]
    return parts[0]


def _column(x: Sheet, rows: tuple[int, int], op, source) -> list:
    """[P, 1] tiles which together are the results of these rows."""
    return [_row_results(x.tile(rows, columns), op, source) for columns in spans(x.columns, ROW)]


def _along_rows(x: Sheet, out: Sheet, op, source) -> None:
    """Reduce the columns of x; a column of results for each tile of rows."""
    for rows in spans(x.rows, nl.tile_size.pmax):
        out.store(cast(_combined(_column(x, rows, op, source), op), out.dtype), rows[0])


def _in_pieces(tensor, outer, inner, out: Sheet, op) -> None:
    """Reduce the `inner` steps of each of few places of `outer`: the first inner step is cut into
    pieces that lie on partitions, and their results are reduced as one row."""
    source, places = tensor.dtype, prod(n for _, n in outer)
    stride, count = inner[0]
    length = cover(count, nl.tile_size.pmax // places)
    pieces, rest = divmod(count, length)
    rows = [*outer, [length * stride, pieces]]
    cut = Sheet(tensor, rows, [[stride, length], *inner[1:]])
    column = _combined(_column(cut, (0, cut.rows), op, source), op)
    held = nl.ndarray((places, pieces), column.dtype, nl.hbm)
    Sheet(held, [[1, cut.rows]], []).store(column, 0)
    parts = _column(Sheet(held, [[pieces, places]], [[1, pieces]]), (0, places), op, column.dtype)
    if rest:
        left = Sheet(tensor, outer, [[stride, rest], *inner[1:]], pieces * length * stride)
        parts += _column(left, (0, places), op, source)
    out.store(cast(_combined(parts, op), out.dtype), 0)


def _element_by_element(x, op: str, axes: list[int], shape: tuple[int, ...], out) -> None:
    """Combine the few tensors that lie along `axes`."""
    tensors = [x]
    for axis in reversed(axes):
        tensors = [t.select(axis, n) for t in tensors for n in range(x.shape[axis])]
    steps = [(op, ("in", 0), ("in", 1))]
    steps += [(op, ("step", n - 2), ("in", n)) for n in range(2, len(tensors))]
    write_chain(tensors, steps, shape, [(len(steps) - 1, out.dtype)], [out])


def _sum_of_rows(x: Sheet, out: Sheet) -> None:
    """Add up the rows of x: ones[R, 1]ᵀ · x[R, F] for blocks of columns, summed in PSUM."""
    ones = nl.full((min(x.rows, nl.tile_size.pmax), 1), 1.0, x.dtype)
    balance = Balance()
    for columns in spans(x.columns, nl.tile_size.psum_bank_fmax):
        total = nl.ndarray((1, columns[1] - columns[0]), nl.float32, nl.psum)
        for rows in spans(x.rows, nl.tile_size.pmax):
            height = rows[1] - rows[0]
            nisa.nc_matmul(
                total,
                ones[0:height, :],
                x.tile(rows, columns),
                is_stationary_onezero=True,
                accumulate=rows[0] > 0,
            )
        done = fresh(total, out.dtype)
        balance.copy(done, total)
        out.store(done, 0, columns[0])


def _across_rows(x: Sheet, out: Sheet, op) -> None:
    """Reduce the rows of x by any operator: blocks turn on the Tensor Engine, then reduce."""
    balance, pmax = Balance(), nl.tile_size.pmax
    for columns in spans(x.columns, pmax):
        parts = []
        for rows in spans(x.rows, pmax):
            turned = transposed(x.tile(rows, columns), x.dtype, balance)
            parts.append(_row_results(turned[:, 0, :], op, x.dtype))
        out.store(cast(_combined(parts, op), out.dtype), columns[0])


@jit
def reduce(x, op, axes, out_dtype=None):
    """Combine the elements of x along `axes` (removed): op is add, multiply, maximum, minimum.

    `and` and `or` combine booleans.  Floats are combined in float32 and rounded once, to
    `out_dtype` (by default the dtype of x); integers as 32-bit integers.  Raises UnsupportedError.
    """
    if op not in OPERATORS:
        raise UnsupportedError(f"no kernel reduces by `{op}`", code="kernels.reduction")
    axes = sorted(a % x.ndim for a in (axes if isinstance(axes, list | tuple) else (axes,)))
    kept = [d for d in range(x.ndim) if d not in axes]
    shape = tuple(x.shape[d] for d in kept)
    out = nl.ndarray(shape or (1,), as_dtype(out_dtype or x.dtype), nl.shared_hbm)
    given, result = as_bytes(x), as_bytes(out)
    steps, source = given.get_pattern(), given.dtype
    outer, inner = merged([steps[d] for d in kept]), merged([steps[d] for d in axes])
    target = merged(result.get_pattern())
    # Memory is read in stretches: when the kept axes hold the dense one, tiles keep it dense.
    turned = inner[-1][0] != 1 and outer[-1][0] == 1 and outer[-1][1] > 1
    across, pmax = source.is_float and turned, nl.tile_size.pmax
    places, length = (prod(n for _, n in part) for part in (outer, inner))
    if turned and 1 < length <= FEW_ROWS and places >= FEW_RESULTS * pmax:
        _element_by_element(x, op, axes, shape, out)
    elif not across and 2 * places <= pmax and length // (pmax // places) + START < length:
        _in_pieces(given, outer, inner, Sheet(result, target, []), OPERATORS[op])
    elif not across:
        _along_rows(Sheet(given, outer, inner), Sheet(result, target, []), OPERATORS[op], source)
    elif op == "add":
        _sum_of_rows(Sheet(given, inner, outer), Sheet(result, [], target))
    else:
        _across_rows(Sheet(given, inner, outer), Sheet(result, target, []), OPERATORS[op])
    return out
