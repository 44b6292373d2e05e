"""Chains of element-wise operations on tensors of one shape, computed tile by tile in one pass.

Floats are computed in float32 and rounded once, at the end; integers are computed as 32-bit
integers, exactly; booleans are bytes of 0 and 1.  The names of the operations are those of tensor
programs (StableHLO).
"""

from math import prod
from typing import Any

from opentrn.base import UnsupportedError, declare
from opentrn.base import dtype as as_dtype
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.nki.jit import jit
from opentrn.nki.kernels.operations import OPERATIONS
from opentrn.nki.kernels.pointwise import Value, result_in
from opentrn.nki.kernels.tiles import Sheet, merged, sheet, spans

declare(
    "kernels.operation",
    "An element-wise operation has no kernel.",
    rule="kernels.elementwise knows the operations of kernels.OPERATIONS",
    fix="express it by other operations, or compute it on the host",
)

# Bytes of a partition for all values of one tile, of about 190 KiB there are.
TILE_BYTES = 64 << 10
LEAST_ROW = 64


def as_bytes(tensor):
    """Booleans as bytes; other tensors as they are."""
    if tensor.dtype != nl.bool_:
        return tensor
    # `view` refuses rows with gaps and repeated elements, which element-wise reads may have.
    return tensor.ap(pattern=tensor.get_pattern(), dtype=nl.uint8)


def sheets(tensors: list, shape: tuple[int, ...], most: int) -> list[list[Sheet]]:
    """All tensors as sheets of the same rows and columns: one group, or two with a remainder.

    Dense tensors are cut into rows of at most `most` elements, as many as fill the partitions.
    """
    total = prod(shape)
    steps = [merged(t.get_pattern()) for t in tensors]
    if any(len(s) > 1 for s in steps):
        return [[sheet(t, _trailing(shape)) for t in tensors]]
    width = min(total, most, max(LEAST_ROW, -(-total // nl.tile_size.pmax)))
    rows, rest = divmod(total, width)
    strides = [s[0][0] for s in steps]
    pairs = list(zip(tensors, strides, strict=True))
    found = [[Sheet(t, [[s * width, rows]], [[s, width]]) for t, s in pairs]]
    if rest:
        at = rows * width
        found.append([Sheet(t, [[s, 1]], [[s, rest]], at * s) for t, s in pairs])
    return found


def _trailing(shape: tuple[int, ...]) -> int:
    """How many of the last dimensions make a row: enough for an instruction to be worth its start,
    and as many as leave rows to fill the partitions."""
    count = 1
    while count < len(shape) - 1:
        filled = prod(shape[: -count - 1]) >= nl.tile_size.pmax
        if prod(shape[-count:]) >= LEAST_ROW and not filled:
            break
        count += 1
    return count


def _width(group: list[Sheet], most: int) -> int:
    """Columns of a tile: at most `most`, and whole runs of memory where such fit."""
    run = min(one.column_shape[-1] for one in group)
    return most // run * run if run <= most else most


def read(x: Sheet, rows: tuple[int, int], columns: tuple[int, int]):
    """A tile of x.  What is repeated along rows is loaded once a row and repeated on the chip: a
    DMA would need a descriptor for every element."""
    run = x.column_shape[-1]
    height, width = rows[1] - rows[0], columns[1] - columns[0]
    if x.column_stride or width == 1:
        return x.tile(rows, columns)
    if len(x.column_shape) == 1:
        return x.once().tile(rows).broadcast(1, width)
    if columns[0] % run or columns[1] % run:
        return x.tile(rows, columns)
    few = x.once().tile(rows, (columns[0] // run, columns[1] // run))
    made = nl.ndarray((height, width), x.dtype, nl.sbuf)
    given = few.reshape((height, width // run, 1)).broadcast(2, run)
    nisa.tensor_copy(made.reshape((height, width // run, run)), given)
    return made


def evaluate(inputs: list[Value], steps, out_dtype) -> Any:
    """The tile of the last step, in `out_dtype`."""
    last_use = {}
    for n, (_, *operands) in enumerate(steps):
        for operand in operands:
            if isinstance(operand, tuple):
                last_use[operand] = n
    values: dict[tuple, Value] = {("in", n): v for n, v in enumerate(inputs)}
    for n, (name, *operands) in enumerate(steps):
        if name not in OPERATIONS:
            raise UnsupportedError(
                f"no element-wise kernel for `{name}`",
                code="kernels.operation",
                rule=f"known: {', '.join(sorted(OPERATIONS))}",
                fix="express it by these",
            )
        given = [values[o] if isinstance(o, tuple) else o for o in operands]
        wanted = out_dtype if n == len(steps) - 1 else None
        values["step", n] = OPERATIONS[name](given, wanted)
        for key in [k for k, at in last_use.items() if at == n]:
            values.pop(key, None)
    return result_in(values["step", len(steps) - 1], out_dtype)


def write_chain(inputs, steps, shape: tuple[int, ...], out) -> None:
    """out = the last of `steps`, each computed from tensors of `shape` and earlier steps."""
    tensors = [as_bytes(x) for x in (*inputs, out)]
    kinds = [x.dtype for x in inputs]
    target = tensors[-1].dtype
    most = max(LEAST_ROW, TILE_BYTES // (4 * (len(inputs) + len(steps) + 1)))
    for group in sheets(tensors, shape or (1,), most):
        *given, result = group
        width = _width(group, most)
        for rows in spans(result.rows, nl.tile_size.pmax):
            for columns in spans(result.columns, width):
                size = (rows[1] - rows[0], columns[1] - columns[0])
                values = [
                    Value.read(read(x, rows, columns), kind)
                    for x, kind in zip(given, kinds, strict=True)
                ]
                if not values:
                    values = [Value(nl.full(size, 0.0, nl.float32), "float")]
                tile = evaluate(values, steps, target)
                result.store(tile, rows[0], columns[0])


@jit
def elementwise(inputs, steps, shape, out_dtype, out=None):
    """The last of `steps`, each computed from `inputs` (tensors of `shape`) and earlier steps.

    A step is (operation, operand, …); an operand is ("in", n), ("step", n) or a number, and for
    "convert" the second is a dtype.  The result is written to `out` where that is given.  Raises
    UnsupportedError for an operation without a kernel.
    """
    if out is None:
        out = nl.ndarray(shape or (1,), as_dtype(out_dtype), nl.shared_hbm)
    write_chain(inputs, steps, shape, out)
    return out
