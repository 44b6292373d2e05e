"""Instructions of the GpSimd Engine: affine patterns, selection by them, sums across partitions.

Costs: NKI ISA reference v2.26.1 (the last to print them): 150 + N cycles for iota and
affine_select.  GpSimd reaches SBUF only (hardware facts §4).
"""

from math import ceil, log2, prod
from operator import index

import numpy as np

from opentrn.base import ON_CHIP, UsageError, declare, float32, numerics
from opentrn.isa.define import Instr
from opentrn.isa.operands import REQUIRED, Cycles, Dim, Flag, In, Out, Value, assumed, stated
from opentrn.isa.operators import op, reduce

declare(
    "isa.pattern",
    "An affine pattern or one of its numbers cannot be used.",
    rule="a pattern is a list of one to four [step, count] pairs of 32-bit integers, count ≥ 1",
    fix="write for example pattern=[[1, 512]]",
)

VALUES = tuple(d for d in ON_CHIP if d.kind != "packed")
ACROSS = ("add", "average", "maximum", "bitwise_or", "bitwise_and")
INT32 = range(-(1 << 31), 1 << 31)


def _pattern(value) -> tuple[tuple[int, int], ...]:
    """`[[step, count], …]`, slowest first, as pairs; UsageError when it is not that."""
    try:
        pairs = tuple((index(step), index(count)) for step, count in value)
    except (TypeError, ValueError):
        pairs = ()
    legal = all(step in INT32 and 1 <= count < INT32.stop for step, count in pairs)
    if not 1 <= len(pairs) <= 4 or not legal:
        raise UsageError(f"`pattern` is {value!r}", code="isa.pattern")
    return pairs


def int32_number(name: str, value, code: str = "isa.pattern") -> int:
    """A compile-time number that must be a 32-bit integer; UsageError `code` when it is not."""
    try:
        number = index(value)
    except TypeError:
        number = INT32.stop
    if number not in INT32:
        raise UsageError(
            f"`{name}` is {value!r}",
            code=code,
            rule=f"`{name}` is a 32-bit integer",
            fix=f"pass an int for `{name}`",
        )
    return number


def _affine(i, offset, channel_multiplier):
    """int32 [P, F]: offset + p * channel_multiplier + Σ step·position, wrapping at 32 bits."""
    offset = int32_number("offset", offset)
    multiplier = int32_number("channel_multiplier", channel_multiplier)
    inner = np.zeros(1, np.int64)
    for step, count in i.pattern:
        inner = np.add.outer(inner, np.arange(count, dtype=np.int64) * step).reshape(-1)
    outer = np.arange(i.P, dtype=np.int64) * multiplier + offset
    # Integer arithmetic of 32 bits wraps: keep the low half of the exact 64-bit sums.
    exact = np.add.outer(outer, inner)
    return exact.view(np.uint64).astype(np.uint32).view(np.int32)


def _pattern_rules(i):
    total = prod(count for _, count in i.pattern)
    yield (
        total == i.F,
        f"`pattern` has as many elements as a partition of `dst`: it has {total}, `dst` {i.F}",
        "make the product of the counts equal to the free size of `dst`",
    )


LANES = (lambda i, chip: int(chip.core.partitions), "each partition is one channel")
ELEMENTS = (None, "one element for each channel and cycle; as many as SBUF holds")


def _linear(i, chip) -> Cycles:
    gpsimd = chip.gpsimd
    return Cycles(gpsimd.start_cycles + i.F, latency=gpsimd.latency * gpsimd.clock)


class iota(Instr):
    """dst[p, w, z, y, x] = offset + p·channel_multiplier + w·s_w + z·s_z + y·s_y + x·s_x.

    `pattern` is [[s_w, num_w], [s_z, num_z], [s_y, num_y], [s_x, num_x]], or the last of these
    pairs; the last one runs fastest.  Computed as 32-bit integers, then converted to the dtype of
    `dst`.
    """

    engines = ("gpsimd",)
    dst = Out("sbuf", "P F", *VALUES)
    pattern = Flag(REQUIRED, "up to four [step, count], the last running fastest", read=_pattern)
    offset = Value(0, "32-bit integer added to every value")
    channel_multiplier = Value(0, "32-bit integer step from one partition to the next")

    P = Dim(*LANES)
    F = Dim(*ELEMENTS)

    def rules(i):
        """As many pattern positions as elements."""
        yield from _pattern_rules(i)

    def run(i, offset, channel_multiplier):
        """The pattern as int32."""
        return {"dst": _affine(i, offset, channel_multiplier).reshape(i.dst.shape)}

    cycles = stated("NKI ISA v2.26.1 iota: 150 + N; latency from hw/chips [gpsimd]", _linear)


class affine_select(Instr):
    """dst = on_true_tile where cmp_op(affine, 0) holds, on_false_value elsewhere.

    The affine value of an element is what `iota` gives there.  Elements pass through unchanged
    when `dst` has the dtype of `on_true_tile`, through float32 otherwise.
    """

    engines = ("gpsimd",)
    dst = Out("sbuf", "P F", *VALUES)
    pattern = Flag(REQUIRED, "up to four [step, count], the last running fastest", read=_pattern)
    channel_multiplier = Value(REQUIRED, "32-bit integer step from one partition to the next")
    on_true_tile = In("sbuf", "P F", *VALUES)
    on_false_value = Value(REQUIRED, "float32 number where the comparison fails")
    cmp_op = Flag("equal", "comparison of the affine value with 0", read=op)
    offset = Value(0, "32-bit integer added to every affine value")

    P = Dim(*LANES)
    F = Dim(*ELEMENTS)

    def rules(i):
        """As many pattern positions as elements, and a comparison."""
        yield from _pattern_rules(i)
        yield (
            i.cmp_op.kind == "compare",
            f"`cmp_op` is a comparison, not {i.cmp_op.name}",
            "use nl.equal, nl.not_equal, nl.greater, nl.greater_equal, nl.less or nl.less_equal",
        )

    def exact(i):
        """Whether every value already is one of the dtype of `dst`."""
        return i.on_true_tile.dtype == i.dst.dtype

    def run(i, on_true_tile, channel_multiplier, on_false_value, offset):
        """Selected elements, in the carrier of `dst` or as float32."""
        affine = _affine(i, offset, channel_multiplier)
        holds = i.cmp_op(affine, np.int32(0)).astype(bool).reshape(i.dst.shape)
        source, target = i.on_true_tile.dtype, i.dst.dtype
        other = _number(on_false_value)
        if source == target:
            other = numerics.cast(other, float32, target)
        else:
            on_true_tile = numerics.cast(on_true_tile, source, float32)
        return {"dst": np.where(holds, on_true_tile.reshape(i.dst.shape), other)}

    cycles = stated(
        "NKI ISA v2.26.1 affine_select: GPSIMD_START (150) + N; latency from hw/chips [gpsimd]",
        _linear,
    )


def _number(value):
    """`on_false_value` as a float32 array of one element."""
    if isinstance(value, bool | int | float | np.number):
        return numerics.round_to(np.array([value], np.float32), float32)
    raise UsageError(
        f"affine_select: `on_false_value` is a {type(value).__name__}",
        code="affine_select.on_false_value",
        rule="`on_false_value` is a float32 number known at compile time",
        fix="pass a number, or use nisa.tensor_copy_predicated to choose between two tiles",
    )


class tensor_partition_reduce(Instr):
    """dst[0, f] = op over all partitions p of data[p, f].

    add, average and maximum compute in float32; bitwise_or and bitwise_and need integers.
    """

    engines = ("gpsimd",)
    dst = Out("sbuf", "1 F", *VALUES)
    op = Flag(REQUIRED, "add, average, maximum, bitwise_or or bitwise_and", read=op)
    data = In("sbuf", "P F", *VALUES)

    P = Dim(*LANES)
    F = Dim(*ELEMENTS)

    def rules(i):
        """The five reductions, and integers for the bitwise ones."""
        yield (
            i.op.name in ACROSS,
            f"`op` is one of {', '.join(ACROSS)}, not {i.op.name}",
            "transpose with nisa.nc_transpose and reduce with nisa.tensor_reduce instead",
        )
        yield (
            not i.op.bitvec or (i.data.dtype.is_integer and i.dst.dtype == i.data.dtype),
            "a bitwise `op` needs `data` and `dst` of one integer dtype: "
            f"they are {i.data.dtype} and {i.dst.dtype}",
            "view both as the same integer dtype",
        )

    def run(i, data):
        """One row of results."""
        if not i.op.bitvec:
            data = numerics.cast(data, i.data.dtype, float32)
        return {"dst": reduce(i.op, data.reshape(i.P, i.F), 0).reshape(i.dst.shape)}

    cycles = assumed(
        "no public figure; 150 cycles to start, then one pass over N for each level of a binary "
        "tree over the partitions",
        lambda i, chip: _across(i, chip),
    )


def _across(i, chip) -> Cycles:
    gpsimd = chip.gpsimd
    levels = max(1, ceil(log2(i.P))) if i.P > 1 else 1
    return Cycles(gpsimd.start_cycles + i.F * levels, latency=gpsimd.latency * gpsimd.clock)


__all__ = ["affine_select", "iota", "tensor_partition_reduce"]
