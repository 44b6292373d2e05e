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
from opentrn.nki.kernels.pointwise import result_in
from opentrn.nki.kernels.tiles import Sheet, merged, sheet, spans
from opentrn.nki.kernels.values import Shares, Value

declare(
    "kernels.operation",
    "An element-wise operation has no kernel.",
    rule="kernels.elementwise knows the operations of kernels.OPERATIONS",
    fix="express it by other operations, or compute it on the host",
)

# Tiles that go through a chain together, and bytes of a partition for all values of one of them, of
# about 190 KiB there are: the next ones are loaded while these are worked on.
TOGETHER, TILE_BYTES = 3, 32 << 10
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


def last_uses(steps) -> dict[tuple, int]:
    """The last step that reads each input and each step."""
    found = {}
    for n, (_, *operands) in enumerate(steps):
        for operand in operands:
            if isinstance(operand, tuple):
                found[operand] = n
    return found


def width_of(steps, inputs: int) -> int:
    """Most values of a chain that live at a time, two more for what an operation needs itself."""
    last, most = last_uses(steps), 1
    for n in range(len(steps)):
        given = sum(1 for (where, _), at in last.items() if where == "in" and at >= n)
        made = sum(1 for (where, k), at in last.items() if where == "step" and k < n <= at)
        most = max(most, given + made + 1)
    return max(most, inputs) + 2


class Tile:
    """One tile on its way through the steps: `results` has (step, dtype) of what is stored.

    Steps that go on with such a result read it as it is stored.
    """

    def __init__(self, inputs: list[Value], steps, results, shares: Shares | None = None):
        self.steps, self.shares, self.last_use = steps, shares, last_uses(steps)
        self.wanted, self.made = dict(results), {}
        self.values: dict[tuple, Value] = {("in", n): v for n, v in enumerate(inputs)}
        for value in inputs:
            value.shares = shares

    def step(self, n: int) -> None:
        """Write the instructions of step n."""
        name, *operands = self.steps[n]
        if name not in OPERATIONS:
            raise UnsupportedError(
                f"no element-wise kernel for `{name}`",
                code="kernels.operation",
                rule=f"known: {', '.join(sorted(OPERATIONS))}",
                fix="express it by these",
            )
        given = [self.values[o] if isinstance(o, tuple) else o for o in operands]
        kind, key = self.wanted.get(n), ("step", n)
        stored = nl.uint8 if kind == nl.bool_ else kind
        value = OPERATIONS[name](given, stored)
        if kind is not None:
            self.made[n] = result_in(value, stored)
            value = Value.read(self.made[n], kind) if key in self.last_use else value
        value.shares = self.shares
        self.values[key] = value
        for old in [k for k, at in self.last_use.items() if at == n]:
            self.values.pop(old, None)


def evaluate(inputs: list[Value], steps, dtype) -> Any:
    """The tile of the last of some steps, in `dtype`."""
    last = len(steps) - 1
    tile = Tile(inputs, steps, [(last, dtype)])
    for n in range(len(steps)):
        tile.step(n)
    return tile.made[last]


class Reader:
    """Tiles of the inputs; what is one number everywhere is loaded once."""

    def __init__(self, kinds):
        self.kinds, self.held = kinds, {}

    def values(self, sheets_: list[Sheet], rows, columns) -> list[Value]:
        """A value for each input."""
        found = []
        for n, (x, kind) in enumerate(zip(sheets_, self.kinds, strict=True)):
            size = (rows[1] - rows[0], columns[1] - columns[0])
            if x.row_stride or x.column_stride or len(x.row_shape) + len(x.column_shape) > 2:
                found.append(Value.read(read(x, rows, columns), kind))
                continue
            if (n, size) not in self.held:
                self.held[n, size] = Value.read(read(x, rows, columns), kind)
            found.append(self.held[n, size])
        return found or [Value(nl.full((rows[1] - rows[0], columns[1] - columns[0]), 0.0,
                                       nl.float32), "float")]  # fmt: skip


def write_chain(
    inputs, steps, shape: tuple[int, ...], results, outs: list, cut=(TOGETHER, TILE_BYTES)
) -> None:
    """outs = the `results` of `steps`, each computed from tensors of `shape` and earlier steps.

    Several tiles go through the steps together: while one engine works on the first of them,
    others work on the next.
    """
    tensors, count = [as_bytes(x) for x in (*inputs, *outs)], len(inputs)
    shares, reader = Shares(), Reader([x.dtype for x in inputs])
    most = max(LEAST_ROW, cut[1] // (4 * width_of(steps, count)))
    for group in sheets(tensors, shape or (1,), most):
        given, targets = group[:count], group[count:]
        parts = [(rows, columns) for rows in spans(targets[0].rows, nl.tile_size.pmax)
                 for columns in spans(targets[0].columns, _width(group, most))]  # fmt: skip
        for first, last in spans(len(parts), cut[0]):
            tiles = [Tile(reader.values(given, *part), steps, results, shares)
                     for part in parts[first:last]]  # fmt: skip
            for n in range(len(steps)):
                for tile in tiles:
                    tile.step(n)
            for tile, (rows, columns) in zip(tiles, parts[first:last], strict=True):
                for target, (n, _) in zip(targets, results, strict=True):
                    target.store(tile.made[n], rows[0], columns[0])


@jit
def elementwise(inputs, steps, shape, out_dtype, out=None, cut=(TOGETHER, TILE_BYTES)):
    """The last of `steps`, each computed from `inputs` (tensors of `shape`) and earlier steps.

    A step is (operation, operand, …); an operand is ("in", n), ("step", n) or a number, and for
    "convert" the second is a dtype.  The result is written to `out` where that is given.  `cut` is
    how many tiles go through the steps together, and the bytes of a partition for each.  Raises
    UnsupportedError for an operation without a kernel.
    """
    if out is None:
        out = nl.ndarray(shape or (1,), as_dtype(out_dtype), nl.shared_hbm)
    write_chain(inputs, steps, shape, [(len(steps) - 1, out.dtype)], [out], cut)
    return out


@jit
def elementwise_together(
    inputs, steps, shape, results, out=None, cut=(TOGETHER, TILE_BYTES)
):
    """Several of `steps` as in `elementwise`: `results` has (step, dtype) of each.

    Steps that read a result read what is stored of it.
    """
    results = [(n, as_dtype(kind)) for n, kind in results]
    if out is None:
        out = [nl.ndarray(shape or (1,), kind, nl.shared_hbm) for _, kind in results]
    write_chain(inputs, steps, shape, results, list(out), cut)
    return tuple(out)
