"""Searching, selecting and shuffling on the Vector Engine.

Meaning and limits: NKI 0.6 API reference (nki.isa) and its release notes (order of duplicates,
unmatched slots).  Costs: NKI ISA reference v2.26.1; where it is silent, one tile streams in N
cycles and two in 2N (NG2:391-393).
"""

from operator import index

import numpy as np

from opentrn.base import FLOATS, ON_CHIP, UsageError, dtypes
from opentrn.isa.enums import reduce_cmd
from opentrn.isa.operands import (
    REQUIRED,
    Dim,
    Flag,
    In,
    InOut,
    Out,
    Scalar,
    Value,
    derived,
    stated,
)
from opentrn.isa.operators import op
from opentrn.isa.vector_accumulators import accumulate_part, accumulator_laws, lanes
from opentrn.isa.vector_laws import (
    VectorInstr,
    engine_cycles,
    floats,
    not_both_in_psum,
    number,
    one,
    vector,
)

TILE = "sbuf|psum"
INDEX = (dtypes.uint16, dtypes.uint32)
SEARCH_MOST = 16384  # elements of a partition one search sees (nki.isa.max8, nc_find_index8)
FP32_MIN = -3.4028234663852886e38  # the lowest float32
COMPARISONS = ("equal", "less", "less_equal", "greater", "greater_equal")
SELECTED = tuple(
    d
    for d in ON_CHIP
    if d not in (dtypes.tfloat32, dtypes.int32, dtypes.uint32) and d.kind != "packed"
)
FLOAT_TILES = tuple(d for d in FLOATS if d.on_chip)
SELECT_COMMANDS = (reduce_cmd.idle, reduce_cmd.reset_reduce, reduce_cmd.reduce)
RANGE_COMMANDS = (*SELECT_COMMANDS, reduce_cmd.reset)  # it has no operand to load from
INDEX_EXACT = 1 << 24  # every integer up to here is a float32


class _Search(VectorInstr, abstract=True):
    F = Dim(SEARCH_MOST, "a search sees 8 to 16384 elements of a partition", least=8)


def _rank_laws(i, **most: int):
    for name, ranks in most.items():
        shape = getattr(i, name).shape
        yield (
            len(shape) <= ranks,
            f"`{name}` has {len(shape)} dimensions, at most {ranks} here",
            "flatten the free dimensions of the view",
        )


class max8(_Search):
    """dst[P,8] = the 8 largest elements of src[P,F], in descending order."""

    dst = Out(TILE, "P 8")
    src = In(TILE, "P F")

    def laws(i):
        """Numbers of dimensions."""
        yield from _rank_laws(i, dst=2, src=3)

    def run(i, src):
        """A partial sort in float32."""
        flat = floats(i.src, src).reshape(i.P, i.F)
        top = np.partition(flat, i.F - 8, axis=1)[:, i.F - 8 :]
        return {"dst": np.sort(top, axis=1)[:, ::-1]}

    cycles = stated(
        "NKI ISA v2.26.1 max8: N; MIN_II as for every instruction",
        lambda i, chip: engine_cycles(i, float(i.F)),
    )


def _matches(data: np.ndarray, vals: np.ndarray, order) -> np.ndarray:
    """[P, 8]: position in `data` each value is paired with, -1 without one.

    Values are served in `order`; equal values take successive occurrences.
    """
    found = np.full(vals.shape, -1, np.int64)
    served: list[int] = []
    for slot in order:
        wanted = vals[:, slot]
        equal = np.equal(data, wanted[:, None])
        before = np.equal(vals[:, served], wanted[:, None]).sum(axis=1)
        if before.any():
            nth = np.equal(np.cumsum(equal, axis=1, dtype=np.int32), before[:, None] + 1)
            equal &= nth
        at = np.argmax(equal, axis=1)
        hit = np.take_along_axis(equal, at[:, None], 1)[:, 0]
        found[:, slot] = np.where(hit, at, -1)
        served.append(slot)
    return found


def _indices(found: np.ndarray, dtype) -> np.ndarray:
    """Positions as an index carrier; all ones where there is none."""
    return np.where(found < 0, dtype.max, found).astype(dtype.carrier)


class nc_find_index8(_Search):
    """dst[P,8] = positions in data[P,F] of the 8 values vals[P,8]; all ones for those not there.

    Compared in float32.  A value that occurs several times in `vals` takes successive positions.
    """

    dst = Out(TILE, "P 8", *INDEX)
    data = In(TILE, "P F")
    vals = In(TILE, "P 8")

    def laws(i):
        """Numbers of dimensions."""
        yield from _rank_laws(i, dst=2, data=3, vals=3)

    def run(i, data, vals):
        """First occurrences, then the next for duplicates, in rising order of slots."""
        data = floats(i.data, data).reshape(i.P, i.F)
        vals = floats(i.vals, vals).reshape(i.P, 8)
        return {"dst": _indices(_matches(data, vals, range(8)), i.dst.dtype)}

    cycles = stated(
        "NKI ISA v2.26.1 nc_find_index8: N; MIN_II as for every instruction",
        lambda i, chip: engine_cycles(i, float(i.F)),
    )


class nc_match_replace8(_Search):
    """dst[P,F] = data[P,F] with the position of each of vals[P,8] set to imm; dst_idx[P,8] = them.

    Values are served from the last to the first, and equal values take successive positions: the
    first position goes to the highest slot.  `dst_idx` is all ones where a value is not there.
    """

    dst = Out(TILE, "P F")
    data = In(TILE, "P F")
    vals = In(TILE, "P 8")
    imm = Value(REQUIRED, "the number that replaces matched elements")
    dst_idx = Out(TILE, "P 8", *INDEX, default=None)

    F = Dim(SEARCH_MOST, "a search sees at most 16384 elements of a partition")

    def laws(i):
        """Numbers of dimensions."""
        yield from _rank_laws(i, vals=3)

    def run(i, data, vals, imm):
        """The copy with replacements, and the positions."""
        flat = data.reshape(i.P, i.F)
        values = floats(i.vals, vals).reshape(i.P, 8)
        found = _matches(floats(i.data, flat), values, range(7, -1, -1))
        replaced = flat.copy()
        rows, slots = np.nonzero(found >= 0)
        other = number(imm, "nc_match_replace8.imm")
        replaced[rows, found[rows, slots]] = one(other, i.data.dtype)[0]
        out = {"dst": replaced}
        if i.dst_idx is not None:
            out["dst_idx"] = _indices(found, i.dst_idx.dtype)
        return out

    cycles = derived(
        "NKI ISA v2.26.1 nc_match_replace8 prints min(MIN_II, N), v2.24 printed N: taken as "
        "max(MIN_II, N)",
        lambda i, chip: engine_cycles(i, float(i.F)),
    )


def _read_fill(value) -> float:
    return float(number(value, "range_select.on_false_value"))


class range_select(VectorInstr):
    """dst[P,f] = on_true_tile[P,f] where bounds hold for range_start + f, else the lowest float32.

    The bounds: (range_start + f) <comp_op0> bound0[P,1] and (range_start + f) <comp_op1>
    bound1[P,1], in float32.  The maximum over f goes through the accumulators to reduce_res[P,1].
    """

    generations = (3, 4)
    state = "accumulators"
    dst = Out(TILE, "P F")
    on_true_tile = In(TILE, "P F", *FLOAT_TILES)
    comp_op0 = Flag(REQUIRED, "comparison with bound0", read=op)
    comp_op1 = Flag(REQUIRED, "comparison with bound1", read=op)
    bound0 = In(TILE, "P 1", dtypes.float32)
    bound1 = In(TILE, "P 1", dtypes.float32)
    reduce_cmd = Flag(reduce_cmd.reset_reduce, "what the accumulators start from")
    reduce_res = Out(TILE, "P 1", default=None)
    reduce_op = Flag(op("maximum"), "maximum only", read=op)
    range_start = Flag(0, "index of the first element, an integer")
    on_false_value = Flag(FP32_MIN, "the lowest float32 only", read=_read_fill)

    def laws(i):
        """Comparisons, the one reduction, exact indices, the one filling value."""
        for name, which in (("comp_op0", i.comp_op0), ("comp_op1", i.comp_op1)):
            yield (
                which.name in COMPARISONS,
                f"{name} must be one of {', '.join(COMPARISONS)}: it is {which}",
                "choose a comparison",
            )
        yield _maximum_only(i.reduce_op)
        yield from accumulator_laws(i, RANGE_COMMANDS)
        whole = i.range_start == int(i.range_start)
        yield (
            whole and abs(i.range_start) + i.F <= INDEX_EXACT,
            f"range_start + index must be integers within 2^24 (exact in float32): {i.range_start}",
            "shift the bounds instead",
        )
        yield (
            one(i.on_false_value, dtypes.float32)[0] == FP32_MIN,
            f"on_false_value must be the lowest float32, {FP32_MIN}: it is {i.on_false_value}",
            "leave on_false_value out, or select with nisa.select_reduce",
        )

    def run(i, on_true_tile, bound0, bound1, accumulators):
        """The selection in float32, and the maximum before any rounding to dst."""
        place = np.arange(i.F, dtype=np.float32)[None, :] + int(i.range_start)
        low = i.comp_op0(place, bound0.reshape(-1, 1))
        high = i.comp_op1(place, bound1.reshape(-1, 1))
        inside = np.logical_and(low, high)
        result = np.where(inside, on_true_tile.reshape(i.P, i.F), one(FP32_MIN, dtypes.float32))
        return _with_maximum(i, i.on_true_tile, result, accumulators)

    cycles = stated(
        "NKI ISA v2.26.1 range_select: max(MIN_II, N)",
        lambda i, chip: engine_cycles(i, float(i.F)),
    )


def _maximum_only(which):
    return (
        which.name == "maximum",
        f"reduce_op must be maximum: it is {which}",
        "use nisa.tensor_reduce for other reductions",
    )


def _with_maximum(i, tile, result, accumulators) -> dict:
    part = np.maximum.reduce(result, 1)
    after = accumulate_part(i, tile, accumulators, i.reduce_op, part)
    return {"dst": result, "reduce_res": after[lanes(tile)][:, None], "accumulators": after}


class select_reduce(VectorInstr):
    """dst[P,F] = on_true[P,F] where predicate[P,F] is not zero, else on_false[P,1].

    With reduce_cmd the maximum over F goes through the accumulators to reduce_res[P,1].
    """

    generations = (3, 4)
    state = "accumulators"
    dst = Out(TILE, "P F")
    predicate = In(TILE, "P F", dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16)
    on_true = In(TILE, "P F", *SELECTED)
    on_false = Scalar(TILE, "P 1")
    reduce_res = Out(TILE, "P 1", *FLOAT_TILES, default=None)
    reduce_cmd = Flag(reduce_cmd.idle, "what the accumulators start from; idle: no reduction")
    reduce_op = Flag(op("maximum"), "maximum only", read=op)
    reverse_pred = Flag(False, "on_true where the predicate is zero")

    def laws(i):
        """One stream from PSUM at most; the one reduction."""
        yield not_both_in_psum("on_true", i.on_true, "predicate", i.predicate)
        yield _maximum_only(i.reduce_op)
        yield from accumulator_laws(i, SELECT_COMMANDS)

    def run(i, predicate, on_true, on_false, accumulators):
        """The selection in float32, and the maximum before any rounding to dst."""
        chosen = predicate.reshape(i.P, i.F)
        chosen = np.equal(chosen, 0) if i.reverse_pred else np.not_equal(chosen, 0)
        other = vector(i.on_false, on_false)
        other = other if isinstance(other, np.ndarray) else one(other, dtypes.float32)
        result = np.where(chosen, floats(i.on_true, on_true).reshape(i.P, i.F), other)
        return _with_maximum(i, i.on_true, result, accumulators)

    cycles = derived(
        "no cost is published; as tensor_copy_predicated: N when one tile comes from PSUM, 2N "
        "when both come from SBUF, at least MIN_II",
        lambda i, chip: engine_cycles(
            i, i.F * (2.0 if i.on_true.space == i.predicate.space else 1.0)
        ),
    )


KEEP = 255  # a mask element that leaves its output partition as it is


def _read_mask(mask) -> tuple[int, ...]:
    try:
        return tuple(index(m) for m in mask)
    except TypeError:
        raise UsageError(
            f"nc_stream_shuffle: shuffle_mask={mask!r}",
            code="nc_stream_shuffle.shuffle_mask",
            rule="shuffle_mask is a list of 32 integers",
            fix="give one source partition (0 to 31, or 255 to keep) for each output partition",
        ) from None


class nc_stream_shuffle(VectorInstr):
    """dst[32q + p, F] = src[32q + shuffle_mask[p], F] in every quadrant q of 32 partitions.

    A mask element of 255 leaves its output partition as it is.
    """

    packs = True
    partial = True
    dst = InOut(TILE, "P F")
    src = In(TILE, "S F")
    shuffle_mask = Flag(REQUIRED, "32 source partitions within a quadrant", read=_read_mask)

    S = Dim(lambda i, chip: int(chip.core.partitions), "one lane for each partition")

    def laws(i):
        """Equal dtypes, a whole mask, sources that exist, start partitions of the larger tile."""
        yield (
            i.src.dtype == i.dst.dtype,
            f"`dst` must have the dtype of `src`: {i.dst.dtype} and {i.src.dtype}",
            "allocate `dst` with dtype=src.dtype",
        )
        mask = i.shuffle_mask
        whole = len(mask) == 32 and all(0 <= m < 32 or m == KEEP for m in mask)
        yield (
            whole,
            "shuffle_mask has 32 elements, each 0 to 31, or 255 to keep the output partition",
            "complete the mask",
        )
        sources = [s for _, s in i.moves()] if whole else []
        yield (
            all(s < i.S for s in sources),
            f"shuffle_mask reads partition {max(sources, default=0)} of `src`, which has {i.S}",
            "use 255 for output partitions without a source, or a larger `src`",
        )
        active = -(-max(i.S, i.P) // 32) * 32
        legal = {32: (0, 32, 64, 96), 64: (0, 64)}.get(active, (0,))
        yield (
            i.src.partition in legal and i.dst.partition in legal,
            f"with {active} active partitions `src` and `dst` start at "
            f"{', '.join(map(str, legal))}: they start at {i.src.partition} and "
            f"{i.dst.partition}",
            "move the tiles to legal partitions",
        )

    def moves(i) -> list[tuple[int, int]]:
        """(output partition, source partition) of every partition that is written."""
        pairs = [(p, p // 32 * 32 + i.shuffle_mask[p % 32]) for p in range(i.P)]
        return [(p, s) for p, s in pairs if i.shuffle_mask[p % 32] != KEEP]

    def parts(i, name, view):
        """The partitions that are written or read, in runs of neighbours."""
        rows = sorted({pair[name == "src"] for pair in i.moves()})
        starts = [n for n, row in enumerate(rows) if n == 0 or row != rows[n - 1] + 1]
        ends = [*starts[1:], len(rows)] if rows else []
        return tuple(view[rows[a] : rows[b - 1] + 1] for a, b in zip(starts, ends, strict=True))

    def run(i, dst, src):
        """The rows of `src` in their new places."""
        moves = i.moves()
        out = dst.reshape(i.P, i.F).copy()
        if moves:
            to, source = zip(*moves, strict=True)
            out[list(to)] = src.reshape(i.S, i.F)[list(source)]
        return {"dst": out}

    cycles = stated(
        "NKI ISA v2.26.1 nc_stream_shuffle: max(MIN_II, N)",
        lambda i, chip: engine_cycles(i, float(i.F)),
    )


__all__ = [
    "max8",
    "nc_find_index8",
    "nc_match_replace8",
    "nc_stream_shuffle",
    "range_select",
    "select_reduce",
]
