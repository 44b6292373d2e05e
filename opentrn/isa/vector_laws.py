"""What the Vector Engine's instructions share: sizes, speed modes, operand laws, operators.

Sizes: Trainium/Inferentia2 architecture guide (NG2:336), at most 64 Ki elements of a partition in
SBUF, 4 Ki in PSUM.  Speed modes: Trainium2 architecture guide (NG3:222-239) and the data-path
tables of NG3 and NG4.  Element costs: NKI ISA reference v2.26.1, the last to print them; they
count engine cycles between the starts of two instructions, at least MIN_II = 64.
"""

import numpy as np

from opentrn.base import UsageError, dtypes, numerics
from opentrn.isa.define import Instr
from opentrn.isa.operands import Cycles, Dim, OperandForm
from opentrn.isa.operators import Op, op

# What a reduction over free elements may use (table of operators, "legal reduction"); magnitudes
# and averages reduce only in instructions that name them.
NO_REDUCTION = {"abs_max", "abs_min", "average"}
HALF = (dtypes.bfloat16, dtypes.float16)
FP8 = (dtypes.float8_e4m3, dtypes.float8_e5m2, dtypes.float8_e4m3fn, dtypes.float8_e3m4)
INT32 = (dtypes.int32, dtypes.uint32)


def free_limit(i, chip) -> int:
    """Most elements of a partition: fewer when one of the tiles lies in PSUM.

    What a broadcast reads again does not count there: the limit is the size of PSUM, and the NKI
    Library (layernorm_tkg at d2ad3a57) subtracts a row of means so from more than 4096 elements.
    """
    tiles = [t for t in vars(i).values() if isinstance(t, OperandForm) and t.free > 1]
    most = [int(chip.vector.free_psum) * t.repeats for t in tiles if t.space == "psum"]
    return min([int(chip.vector.free_sbuf), *most])


class VectorInstr(Instr, abstract=True):
    """An instruction of the Vector Engine: one lane for each partition, F elements through it.

    `packs` says whether packed x4 types pass.  Subclasses yield their own rules from `laws`.
    """

    engines = ("vector",)
    packs = False

    P = Dim(lambda i, chip: int(chip.core.partitions), "one lane of the engine for each partition")
    F = Dim(free_limit, "an instruction streams at most this many elements of a partition")

    def rules(i):
        """Laws of every instruction of the family, then its own."""
        for name, tile in i.tiles():
            yield from _tile_laws(i, name, tile)
        yield from i.laws()

    def laws(i):
        """The instruction's own rules."""
        return iter(())


def _tile_laws(i, name: str, tile: OperandForm):
    yield (
        i.engine_name != "gpsimd" or tile.space != "psum",
        f"GpSimd cannot access PSUM, where `{name}` lies",
        "use engine=nisa.engine.vector, or copy the tile into SBUF first",
    )
    yield (
        i.packs or tile.dtype.kind != "packed",
        f"`{name}` is {tile.dtype}: packed types can be copied, not computed with",
        "view the tile as its storage integers, or unpack it",
    )


def not_both_in_psum(first: str, a, second: str, b):
    """The rule that two streams of one instruction do not both come from PSUM."""
    both = all(isinstance(x, OperandForm) and x.space == "psum" for x in (a, b))
    return (
        not both,
        f"`{first}` and `{second}` cannot both be in PSUM",
        f"copy `{second}` into SBUF with nisa.tensor_copy first",
    )


# ------------------------------------------------------------------ operators


def maybe_op(x) -> Op | None:
    """The operator meant by `x`; None stays None."""
    return None if x is None else op(x)


def op_laws(i, name: str, which: Op, *tiles: str):
    """Rules on one operator: it exists on this chip, and bitvec operators see equal integers."""
    yield (
        which.generation <= i.chip.generation,
        f"{name}={which} begins with NeuronCore-v{which.generation}",
        "compute it with abs, maximum and minimum",
    )
    if not which.bitvec:
        return
    given = {n: getattr(i, n) for n in tiles}
    given = {n: t for n, t in given.items() if isinstance(t, OperandForm)}
    yield (
        all(t.dtype.is_integer for t in given.values()),
        f"{name}={which} works on bits: {', '.join(f'`{n}`' for n in given)} must be integers",
        "view the tiles as integers of the same width",
    )
    yield (
        len({t.dtype.itemsize for t in given.values()}) == 1,
        f"{name}={which} moves bits without casting: the tiles must have one width, they are "
        + ", ".join(t.dtype for t in given.values()),
        "copy the tiles to one integer type with nisa.tensor_copy first",
    )


def arithmetic_only(name: str, which: Op):
    """The rule of instructions that have no bitvec operators."""
    return (
        not which.bitvec,
        f"{name}={which} works on bits; this instruction is arithmetic only",
        "use nisa.tensor_scalar or nisa.tensor_tensor for bit patterns",
    )


def binary_only(name: str, which: Op):
    """The rule of instructions that need an operator of two operands."""
    return (
        which.arity == 2,
        f"{name}={which} takes one operand; this instruction needs an operator of two",
        "use nisa.tensor_scalar for unary operators",
    )


def operand_laws(i, op_name: str, name: str, wide: bool = True):
    """Rules on the vector or number an operator takes: there when needed, else absent.

    With `wide` a tile for an arithmetic operator must be float32.
    """
    which, given = getattr(i, op_name), getattr(i, name)
    binary = which is not None and which.arity == 2
    yield (
        given is not None or not binary,
        f"{op_name}={which} needs `{name}`",
        f"pass `{name}`: a number, or a tile with one element for each partition",
    )
    tile = isinstance(given, OperandForm)
    yield (
        not tile or binary,
        f"`{name}` has no operator to serve: {op_name}={which}",
        f"pass {name}=None (or 0 with a unary operator)",
    )
    yield (
        not (wide and tile and binary) or which.bitvec or given.dtype == dtypes.float32,
        f"`{name}` of an arithmetic operator must be float32",
        f"copy `{name}` into a float32 tile with nisa.tensor_copy",
    )


def apply(which: Op, x: np.ndarray, y, swap: bool, out=None) -> np.ndarray:
    """`x <op> y`, or `y <op> x` when swapped; `y` a number, or one value for each partition."""
    if which.arity == 1:
        return which(x, out=out)
    if isinstance(y, np.ndarray) and y.ndim != x.ndim:
        y = y.reshape(-1, *[1] * (x.ndim - 1))
    return which(y, x, out=out) if swap else which(x, y, out=out)


def floats(tile: OperandForm, x: np.ndarray) -> np.ndarray:
    """Values as the engine's arithmetic sees them: float32."""
    return x if tile.dtype.is_float else numerics.cast(x, tile.dtype, dtypes.float32)


def vector(given, x):
    """A per-partition operand [P, 1] (or a number, or None) as arithmetic sees it."""
    return floats(given, x).reshape(-1, 1) if isinstance(given, OperandForm) else x


def idle_operand(i, op_name: str, name: str, value) -> None:
    """Refuse a number that a unary operator would ignore (UsageError `<instruction>.<name>`)."""
    which = getattr(i, op_name)
    unary = which is not None and which.arity == 1
    if unary and isinstance(value, int | float) and value != 0:
        i.bad(
            UsageError,
            f"`{name}` = {value} is ignored: {op_name}={which} takes one operand",
            f"`{name}` must be None or 0 with a unary operator",
            f"pass {name}=None, or choose a binary operator",
            name,
        )


def alike(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of equal size in one shape: as they are, or both [P, F]."""
    if a.shape == b.shape:
        return a, b
    return a.reshape(len(a), -1), b.reshape(len(b), -1)


def fitting(out: np.ndarray | None, like: np.ndarray) -> np.ndarray | None:
    """`out` when it has the shape of the values `like`, which may have been reshaped; else None."""
    return out if out is not None and out.shape == like.shape else None


def as_bits(x: np.ndarray, carrier: np.dtype) -> np.ndarray:
    """An integer array as another integer carrier, keeping the low bits."""
    if x.dtype == carrier:
        return x
    if x.dtype.itemsize != carrier.itemsize:
        x = np.bitwise_and(x, (1 << 8 * carrier.itemsize) - 1).astype(f"u{carrier.itemsize}")
    return x.view(carrier)


def number(value, parameter: str):
    """`value`, when it is a number; UsageError of the code `<instruction>.<parameter>`."""
    if isinstance(value, bool | int | float | np.number):
        return value
    instruction, name = parameter.split(".")
    raise UsageError(
        f"{instruction}: `{name}` is a {type(value).__name__}",
        code=parameter,
        rule=f"`{name}` is a number known at compile time",
        fix=f"pass {name}= a number",
    )


def one(value, dtype) -> np.ndarray:
    """A number as a carrier array of one element of `dtype`."""
    cell = np.zeros(1, dtype.carrier)
    if dtype.kind != "packed":
        numerics.store(cell, value, None, dtype)
    return cell


# ------------------------------------------------------------------ time


def engine_cycles(i, stream: float, extra: float = 0.0) -> Cycles:
    """Cycles of an instruction that streams for `stream` cycles and then works `extra` more.

    The engine cannot start its next instruction before MIN_II; the result can be read `latency`
    after the last element entered (hw: time from the last element's issue).
    """
    engine = getattr(i.chip, i.engine_name)
    busy = max(float(engine.min_cycles), stream) + extra
    done = stream + extra + engine.latency * engine.clock
    return Cycles(busy, latency=max(0.0, done - busy))


def is_fast(tile: OperandForm, chip) -> bool:
    """Whether the tile's type has the wide path: 16 bits; float8 too where the chip says so."""
    if tile.dtype in FP8:
        return chip.vector.wide_8bit > chip.vector.wide_32bit
    return tile.dtype in HALF


def speed(i, source: OperandForm, dst: OperandForm) -> float:
    """Elements a lane moves each cycle in tensor_copy and tensor_scalar: 4, 2 or 1.

    Both in SBUF and 16-bit: the full width when dense, 2 otherwise; dense 16-bit with one side in
    PSUM: 2 (NG3:228-236).  Other types reach the width of the data-path table (256 elements a
    cycle, NG3:45) between dense tiles in SBUF, as measured for tensor_scalar on trn2.
    """
    if i.engine_name == "gpsimd":
        return 1.0
    engine = getattr(i.chip, i.engine_name)
    dense = source.contiguous and dst.contiguous
    in_sbuf = (source.space == "sbuf") + (dst.space == "sbuf")
    if is_fast(source, i.chip) and is_fast(dst, i.chip):
        full = float(engine.wide_16bit)
        if in_sbuf == 2:
            return full if dense else min(full, 2.0)
        return min(full, 2.0) if dense and in_sbuf == 1 else 1.0
    if i.engine_name == "vector" and in_sbuf == 2 and dense:
        return float(engine.wide_32bit)
    return 1.0


def pair_cycles(i, first: OperandForm, second: OperandForm, dst: OperandForm, simple: bool):
    """Stream cycles of two tiles entering together: N or 2N, halved in the 16-bit mode.

    N when one tile comes from PSUM and one from SBUF, or when all is dense bfloat16 in SBUF and
    the operator is simple (add, multiply, subtract); else 2N (ISA v2.26.1).  From NeuronCore-v3
    on, twice as fast when both come from SBUF and every type is 16-bit (NG3:237).
    """
    n = float(first.free)
    if first.space != second.space:
        return n
    tiles = (first, second, dst)
    bf16 = all(t.dtype == dtypes.bfloat16 for t in tiles)
    lean = simple and bf16 and first.contiguous and second.contiguous
    cycles = n if lean else 2 * n
    wide = i.chip.vector.wide_16bit > 1 and all(is_fast(t, i.chip) for t in tiles)
    return cycles / 2 if wide else cycles


__all__ = ["VectorInstr"]
