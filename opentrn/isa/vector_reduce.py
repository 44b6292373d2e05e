"""Reductions, scans and statistics along the free dimensions, on the Vector Engine.

Meaning and limits: NKI 0.6 API reference (nki.isa).  Costs: NKI ISA reference v2.26.1; where it is
silent, one tile streams in N cycles and two in 2N (NG2:391-393).
"""

from functools import cached_property
from math import prod
from operator import index

import numpy as np

from opentrn.base import UsageError, dtypes
from opentrn.isa.enums import reduce_cmd
from opentrn.isa.operands import REQUIRED, Dim, Flag, In, Out, Scalar, derived, stated
from opentrn.isa.operators import accumulate, op, reduce, scan
from opentrn.isa.vector_accumulators import (
    accumulate_part,
    accumulator_laws,
    initial_laws,
    lanes,
    start,
)
from opentrn.isa.vector_laws import (
    FP8,
    NO_REDUCTION,
    VectorInstr,
    apply,
    arithmetic_only,
    as_bits,
    binary_only,
    engine_cycles,
    fitting,
    floats,
    free_limit,
    idle_operand,
    not_both_in_psum,
    one,
    op_laws,
    operand_laws,
    vector,
)

TILE = "sbuf|psum"
REDUCE_OPS = ("add", "multiply", "maximum", "minimum")
CHAINED = (reduce_cmd.reset_reduce, reduce_cmd.reduce, reduce_cmd.load_reduce)
CUMULATIVE = (
    dtypes.bfloat16,
    dtypes.float16,
    dtypes.float32,
    *FP8,
    dtypes.uint8,
    dtypes.uint16,
    dtypes.int8,
    dtypes.int16,
)


def _read_axes(axis) -> tuple[int, ...]:
    try:
        return (index(axis),) if not isinstance(axis, list | tuple) else tuple(map(index, axis))
    except TypeError:
        raise UsageError(
            f"tensor_reduce: axis={axis!r}",
            code="tensor_reduce.axis",
            rule="axis is an integer, or a list of integers",
            fix="name the last free dimensions, e.g. axis=(1,)",
        ) from None


class tensor_reduce(VectorInstr):
    """dst[P,R] = <op> over the last free dimensions of data[P,R,...]; negated when asked.

    In float32, or on bits for bitvec operators.  F counts all free elements of `data`.
    """

    gathers = ("dst", "data")
    dst = Out(TILE, "P R")
    op = Flag(REQUIRED, "a reduction operator", read=op)
    data = In(TILE, "P F")
    axis = Flag(REQUIRED, "the last free dimension(s), as an integer or a list", read=_read_axes)
    negate = Flag(False, "multiply the result by -1 (free of cost)")
    keepdims = Flag(False, "keep reduced dimensions with size one")

    R = Dim(free_limit, "one result for each position that is not reduced")

    @cached_property
    def axes(i) -> tuple[int, ...]:
        """The axes in rising order, counted from the first dimension."""
        ndim = len(i.data.shape)
        return tuple(sorted(a + ndim if a < 0 else a for a in i.axis))

    def laws(i):
        """Legal operator, trailing free axes, a matching result."""
        legal = i.op.reducible and i.op.name not in NO_REDUCTION
        yield (
            legal,
            f"op={i.op} is not a reduction operator",
            "use add, subtract, multiply, maximum, minimum or a bitwise or logical and/or/xor",
        )
        yield from op_laws(i, "op", i.op, "dst", "data")
        yield (
            not (i.negate and i.op.bitvec),
            f"negate needs an arithmetic operator, op is {i.op}",
            "leave negate out",
        )
        axes, ndim = i.axes, len(i.data.shape)
        trailing = bool(axes) and axes[0] >= 1 and axes == tuple(range(axes[0], ndim))
        yield (
            trailing,
            f"axis={list(i.axis)} must name the last free dimension(s) of `data` "
            f"{list(i.data.shape)}, and not dimension 0",
            "permute the view so that the reduced dimensions come last, e.g. "
            "data.permute(...), and for partitions use nisa.nc_transpose or a matmul with ones",
        )
        left = prod(i.data.shape[1 : axes[0]]) if trailing else i.R
        yield (
            left == i.R,
            f"reducing axis={list(i.axis)} of {list(i.data.shape)} leaves {left} elements in a "
            f"partition, `dst` has {i.R}",
            f"give `dst` {left} elements in each partition",
        )

    def run(i, data):
        """One reduction over the merged axes."""
        if i.op.bitvec:
            found = reduce(i.op, data, i.axes)
            return {"dst": as_bits(found, i.dst.dtype.carrier).reshape(i.P, i.R)}
        found = reduce(i.op, floats(i.data, data), i.axes).reshape(i.P, i.R)
        return {"dst": np.negative(found) if i.negate else found}

    cycles = stated(
        "NKI ISA v2.26.1 tensor_reduce: N/2 when data and dst are bfloat16 and op is add or "
        "maximum, else N; MIN_II as for every instruction",
        lambda i, chip: engine_cycles(i, i.F / (2.0 if i.lean() else 1.0)),
    )

    def lean(i) -> bool:
        """Whether two elements enter each cycle."""
        bf16 = i.data.dtype == i.dst.dtype == dtypes.bfloat16
        return bf16 and i.op.name in ("add", "maximum")


class tensor_scalar_reduce(VectorInstr):
    """dst[P,F] = data[P,F] <op0> operand0[P,1], and reduce_res[P,1] = <reduce_op> over F of it.

    The reduction goes through the accumulators: it starts from the identity (reset_reduce), from
    what they hold (reduce) or from `reduce_init` (load_reduce).
    """

    gathers = ("dst", "data")
    state = "accumulators"
    dst = Out(TILE, "P F")
    data = In(TILE, "P F")
    op0 = Flag(REQUIRED, "an arithmetic operator", read=op)
    operand0 = Scalar(TILE, "P 1", nullable=True)
    reduce_op = Flag(REQUIRED, "add, multiply, maximum or minimum", read=op)
    reduce_res = Out(TILE, "P 1", default=None)
    reverse0 = Flag(False, "not supported yet")
    reduce_cmd = Flag(reduce_cmd.reset_reduce, "what the accumulators start from")
    reduce_init = Scalar(TILE, "P 1", dtypes.float32, default=None)
    reduce_res_negate = Flag(False, "negate what is written to reduce_res, not the accumulators")

    def laws(i):
        """Arithmetic only, legal reductions, a consistent start value."""
        yield arithmetic_only("op0", i.op0)
        yield from op_laws(i, "op0", i.op0)
        yield from operand_laws(i, "op0", "operand0")
        yield _legal_reduction("reduce_op", i.reduce_op, REDUCE_OPS)
        yield (
            not i.reverse0,
            "reverse0 is not supported in tensor_scalar_reduce (NKI 0.6)",
            "rewrite with a commutative operator, or use tensor_scalar and tensor_reduce",
        )
        yield from accumulator_laws(i, CHAINED)
        yield from initial_laws(i, "reduce_init")

    def run(i, data, operand0, accumulators, reduce_init=None):
        """The operator, then its reduction in float32 before any rounding to dst."""
        idle_operand(i, "op0", "operand0", operand0)
        result = apply(i.op0, floats(i.data, data), vector(i.operand0, operand0), False)
        part = reduce(i.reduce_op, result.reshape(i.P, i.F), 1)
        after = accumulate_part(i, i.data, accumulators, i.reduce_op, part, reduce_init)
        held = after[lanes(i.data)].reshape(i.P, 1)
        shown = np.negative(held) if i.reduce_res_negate else held
        return {"dst": result, "reduce_res": shown, "accumulators": after}

    cycles = stated(
        "NKI ISA v2.26.1 tensor_scalar_reduce: max(MIN_II, N) + MIN_II",
        lambda i, chip: engine_cycles(i, float(i.F), extra=float(chip.vector.min_cycles)),
    )


def _legal_reduction(name: str, which, names: tuple[str, ...]):
    return (
        which.name in names,
        f"{name} must be one of {', '.join(names)}: it is {which}",
        "use nisa.tensor_reduce for other operators",
    )


class tensor_scalar_cumulative(VectorInstr):
    """r = (src[P,f] <op0> imm0[P,1]) <op1> r;  dst[P,f] = r, for f = 0, 1, ...

    r is the accumulator of the lane: reset to the identity of op1, continued, or loaded with
    `imm1`.  For subtract the identity is 0 and each step takes r from the new element.
    """

    gathers = ("dst", "src")
    state = "accumulators"
    dst = Out(TILE, "P F", *CUMULATIVE)
    src = In(TILE, "P F", *CUMULATIVE)
    op0 = Flag(REQUIRED, "an arithmetic operator", read=op)
    op1 = Flag(REQUIRED, "add, subtract, multiply, maximum or minimum", read=op)
    imm0 = Scalar(TILE, "P 1", dtypes.float32)
    imm1 = Scalar(TILE, "P 1", dtypes.float32, default=None)
    reduce_cmd = Flag(reduce_cmd.reset_reduce, "what the accumulators start from")

    reduce_res = None

    def laws(i):
        """Arithmetic only, legal accumulation, a consistent start value."""
        yield arithmetic_only("op0", i.op0)
        yield binary_only("op0", i.op0)
        yield from op_laws(i, "op0", i.op0)
        yield _legal_reduction("op1", i.op1, (*REDUCE_OPS, "subtract"))
        yield from accumulator_laws(i, CHAINED)
        yield from initial_laws(i, "imm1")

    def run(i, src, imm0, accumulators, imm1=None):
        """The running values of each partition."""
        steps = apply(i.op0, floats(i.src, src), vector(i.imm0, imm0), False).reshape(i.P, i.F)
        at = lanes(i.src)
        begin = start(i, i.op1, accumulators[at], imm1)
        running = accumulate(i.op1, steps, begin)
        after = accumulators.copy()
        after[at] = running[:, -1]
        return {"dst": running, "accumulators": after}

    cycles = derived(
        "no cost is published; one tile streams in N cycles (NG2:391), at least MIN_II",
        lambda i, chip: engine_cycles(i, float(i.F)),
    )


class tensor_tensor_scan(VectorInstr):
    """r = (data0[P,f] <op0> r) <op1> data1[P,f];  dst[P,f] = r, for f = 0, 1, ...; r = initial.

    Every step is rounded to float32.  `reverse0` gives r <op0> data0, `reverse1` data1 <op1> ....
    """

    delivers = True
    dst = Out(TILE, "P F")
    data0 = In(TILE, "P F")
    data1 = In(TILE, "P F")
    initial = Scalar(TILE, "P 1")
    op0 = Flag(REQUIRED, "a binary arithmetic operator", read=op)
    op1 = Flag(REQUIRED, "a binary arithmetic operator", read=op)
    reverse0 = Flag(False, "data0 to the right of op0")
    reverse1 = Flag(False, "data1 to the left of op1")

    def laws(i):
        """Binary arithmetic operators; one stream from PSUM at most."""
        for name, which in (("op0", i.op0), ("op1", i.op1)):
            yield arithmetic_only(name, which)
            yield binary_only(name, which)
            yield from op_laws(i, name, which)
        yield not_both_in_psum("data0", i.data0, "data1", i.data1)

    def run(i, data0, data1, initial, out=None):
        """The recurrence, column by column, or a running operator with the same result."""
        data0 = floats(i.data0, data0).reshape(i.P, i.F)
        data1 = floats(i.data1, data1).reshape(i.P, i.F)
        first = vector(i.initial, initial)
        first = first if isinstance(first, np.ndarray) else one(first, dtypes.float32)
        found = _running(i, data0, data1, first)
        if found is None:
            out = fitting(out, data0)
            found = scan(i.op0, i.op1, data0, first, data1, i.reverse0, i.reverse1, out)
        return {"dst": found}

    cycles = stated(
        "NKI ISA v2.26.1 tensor_tensor_scan: max(MIN_II, 2N)",
        lambda i, chip: engine_cycles(i, 2.0 * i.F),
    )


def _running(i, data0, data1, initial):
    """The scan as one running operator, where every step rounds to the same number; else None.

    A product with ones changes nothing, so the other operator runs alone (cumulative sums and
    maxima are written so); three times faster than column by column.
    """
    state, first, second = initial.reshape(-1), i.op0.name, i.op1.name
    if first == "multiply" and second in REDUCE_OPS and _all_ones(data0):
        return accumulate(i.op1, data1, state)
    if second == "multiply" and first in REDUCE_OPS and _all_ones(data1):
        return accumulate(i.op0, data0, state)
    return None


def _all_ones(x) -> bool:
    return x[0, 0] == 1 and bool(np.equal(x, 1).all())


class bn_stats(VectorInstr):
    """dst[P,6] = count, mean and variance·count of the even, then of the odd elements of data."""

    dst = Out(TILE, "P 6")
    data = In(TILE, "P F")

    F = Dim(
        lambda i, chip: int(chip.vector.bn_stats_free),
        "the statistics unit takes nl.tile_size.bn_stats_fmax elements at a time",
    )

    def run(i, data):
        """Population statistics in float32; without elements they are 0."""
        data = floats(i.data, data).reshape(i.P, i.F)
        halves = [_statistics(data[:, first::2]) for first in (0, 1)]
        return {"dst": np.concatenate(halves, axis=1)}

    cycles = stated(
        "NKI ISA v2.26.1 bn_stats: max(MIN_II, N)",
        lambda i, chip: engine_cycles(i, float(i.F)),
    )


def _statistics(x):
    """[P, 3]: count, mean, sum of squared distances from the mean."""
    found = np.zeros((len(x), 3), np.float32)
    count = x.shape[1]
    if count:
        with np.errstate(all="ignore"):
            mean = np.add.reduce(x, 1) / count
            found[:, 0], found[:, 1] = count, mean
            found[:, 2] = np.add.reduce(np.square(x - mean[:, None]), 1)
    return found


class bn_aggr(VectorInstr):
    """dst[P,2] = mean and variance of all elements behind (count, mean, variance·count) triples.

    Source of the formula: variances of groups add up to Σ(vᵢcᵢ + cᵢ(mᵢ - m)²) / Σcᵢ.
    """

    dst = Out(TILE, "P 2")
    data = In(TILE, "P F")

    F = Dim(free_limit, "triples of count, mean and variance·count from bn_stats", multiple=3)

    def run(i, data):
        """The pooled mean and variance in float32."""
        triples = floats(i.data, data).reshape(i.P, -1, 3)
        count, mean, spread = triples[:, :, 0], triples[:, :, 1], triples[:, :, 2]
        with np.errstate(all="ignore"):
            total = np.add.reduce(count, 1)
            centre = np.add.reduce(count * mean, 1) / total
            between = np.square(mean - centre[:, None]) * count
            variance = np.add.reduce(spread + between, 1) / total
        return {"dst": np.stack([centre, variance], axis=1)}

    cycles = stated(
        "NKI ISA v2.26.1 bn_aggr: max(MIN_II, 13·(N/3))",
        lambda i, chip: engine_cycles(i, 13.0 * (i.F / 3)),
    )


__all__ = [
    "bn_aggr",
    "bn_stats",
    "tensor_reduce",
    "tensor_scalar_cumulative",
    "tensor_scalar_reduce",
    "tensor_tensor_scan",
]
