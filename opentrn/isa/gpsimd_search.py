"""Instructions of the GpSimd Engine that look for elements: non-zeros, the largest, segments.

Meaning and limits: NKI 0.6 API reference (nki.isa).  The eight cores of GpSimd serve 16 partitions
each.
"""

import numpy as np

from opentrn.base import UsageError, bfloat16, float32, int32, uint32
from opentrn.isa.define import Instr
from opentrn.isa.gpsimd import ELEMENTS, LANES, int32_number
from opentrn.isa.operands import (
    REQUIRED,
    Cycles,
    Dim,
    Flag,
    In,
    InOut,
    Out,
    Value,
    assumed,
    stated,
)

CORE = 16


def _cycles(i, chip, elements: float) -> Cycles:
    gpsimd = chip.gpsimd
    return Cycles(gpsimd.start_cycles + elements, latency=gpsimd.latency * gpsimd.clock)


class nonzero_with_count(Instr):
    """dst[p] = [positions of the N non-zeros of src[p] + index_offset, padding_val …, N].

    Only partitions 0, 16, 32, … 112 are read and written, the first of each GpSimd core; the others
    of `dst` stay as they are.  `dst` has one element more than `src` in each partition.
    """

    engines = ("gpsimd",)
    generations = (3, 4)
    partial = True
    example = {"F": 8, "G": 9}
    dst = InOut("sbuf", "P G", int32)
    src = In("sbuf", "P F", float32, int32)
    index_offset = Value(0, "32-bit integer added to every position")
    padding_val = Value(-1, "32-bit integer after the last position")

    P = Dim(*LANES)
    F = Dim(*ELEMENTS)
    G = Dim(None, "one element more than `src`: the count", least=2)

    def rules(i):
        """Room for the count."""
        yield (
            i.G == i.F + 1,
            f"`dst` has one element more than `src` in each partition: {i.F + 1}, not {i.G}",
            f"allocate dst with shape ({i.P}, {i.F + 1})",
        )

    def parts(i, name, view):
        """Every 16th partition."""
        return (view[::CORE],)

    def run(i, dst, src, index_offset, padding_val):
        """`dst` with the rows of each core replaced."""
        own = "nonzero_with_count."
        offset = int32_number("index_offset", index_offset, own + "index_offset")
        padding = int32_number("padding_val", padding_val, own + "padding_val")
        found = np.array(dst).reshape(i.P, i.G)
        rows = src.reshape(i.P, i.F)[::CORE]
        listed = np.full((len(rows), i.G), padding, np.int32)
        for row, values in zip(listed, rows, strict=True):
            places = np.flatnonzero(values)
            # 32-bit sums wrap
            row[: places.size] = (places + offset).astype(np.uint32).view(np.int32)
            row[-1] = places.size
        found[::CORE] = listed
        return {"dst": found.reshape(i.dst.shape)}

    cycles = assumed(
        "no public figure; 150 cycles to start and one element a cycle, as iota",
        lambda i, chip: _cycles(i, chip, i.F),
    )


class topk(Instr):
    """The K largest of `n` numbers and their positions, ascending, for each group of 16 partitions.

    Number s of a group is src[s % 16, s // 16] (a snake); result j goes to val_dst and idx_dst at
    [j % 16, j // 16], and K is the free size of `val_dst`.  The rest of the results stays as it is.
    """

    engines = ("gpsimd",)
    partial = True
    example = {"P": CORE, "F": 8, "K": 8}
    val_dst = InOut("sbuf", "P K", bfloat16)
    idx_dst = InOut("sbuf", "P K", uint32)
    src = In("sbuf", "P F", bfloat16)
    n = Flag(REQUIRED, "how many numbers each snake holds, 8 to 65535")

    P = Dim(LANES[0], "a core of GpSimd serves 16 partitions", multiple=CORE, least=CORE)
    F = Dim(*ELEMENTS)
    K = Dim(32767, "the instruction counts to 32767")

    def rules(i):
        """Numbers of elements."""
        integer = isinstance(i.n, int | np.integer) and not isinstance(i.n, bool)
        yield (
            integer and 8 <= i.n < 65536,
            f"`n` is an integer from 8 to 65535, not {i.n}",
            "cut the numbers into several instructions, or pad them to 8 with -inf",
        )
        if not integer:
            return
        yield (
            i.n >= i.K,
            f"the {i.K} largest of {i.n} numbers do not exist",
            "make the free size of `val_dst` at most n",
        )
        yield (
            -(-i.n // CORE) <= i.F,
            f"n = {i.n} numbers fill {-(-i.n // CORE)} columns of 16 partitions, `src` has {i.F}",
            "give `src` ceil(n / 16) columns",
        )

    def parts(i, name, view):
        """The columns the snake of K results fills, and the rest of it in each group."""
        full, rest = divmod(i.K, CORE)
        found = [view[:, :full]] if full else []
        if rest:
            found += [view[g : g + rest, full : full + 1] for g in range(0, i.P, CORE)]
        return tuple(found)

    def run(i, val_dst, idx_dst, src):
        """Both results; of equal numbers the first ones are chosen and count as larger (assumed).

        The API reference says only that partitions are independent; that a group of 16 is one
        problem and that results form a snake is said by its user, nki-library (experimental
        sparse_attention_indexer, topk_over_score), whose reference also breaks ties so.
        """
        values, places = np.array(val_dst), np.array(idx_dst)
        groups = src.reshape(i.P // CORE, CORE, i.F).transpose(0, 2, 1)
        snakes = groups.reshape(i.P // CORE, -1)[:, : i.n]
        order = np.argsort(-snakes, axis=1, kind="stable")[:, : i.K][:, ::-1]
        at = np.arange(i.K)
        for result, listed in (
            (values, np.take_along_axis(snakes, order, axis=1)),
            (places, order),
        ):
            cells = result.reshape(i.P // CORE, CORE, i.K)
            cells[:, at % CORE, at // CORE] = listed
        return {"val_dst": values.reshape(i.val_dst.shape), "idx_dst": places}

    cycles = stated("NKI 0.6 topk: 4·n + K", lambda i, chip: _topk_cycles(i, chip))


def _topk_cycles(i, chip) -> Cycles:
    return Cycles(4 * i.n + i.K, latency=chip.gpsimd.latency * chip.gpsimd.clock)


class sequence_bounds(Instr):
    """dst[0, 0, n] = first index of the run of segment_ids n lies in; dst[0, 1, n] = end of it.

    The end is one past the last.  Elements with id 0 are padding: they get [N, -1], N being the
    number of elements.
    """

    engines = ("gpsimd",)
    dst = Out("sbuf", "1 2 F", float32, int32)
    segment_ids = In("sbuf", "1 F", float32, int32)

    F = Dim(*ELEMENTS)

    def run(i, segment_ids):
        """Start and end of the segment of each element."""
        ids = segment_ids.reshape(i.F)
        if (ids < 0).any():
            i.bad(
                UsageError,
                f"`segment_ids` holds {ids[ids < 0][0]}",
                "segment ids are integers ≥ 0; 0 is padding",
                "number the segments from 1",
                "segment_ids",
            )
        edge = np.flatnonzero(ids[1:] != ids[:-1]) + 1
        starts, ends = np.append(0, edge), np.append(edge, i.F)
        run = np.repeat(np.arange(starts.size), ends - starts)
        start = np.where(ids == 0, i.F, starts[run])
        end = np.where(ids == 0, -1, ends[run])
        return {"dst": np.stack([start, end]).astype(i.dst.dtype.carrier).reshape(i.dst.shape)}

    cycles = assumed(
        "no public figure; 150 cycles to start, one pass forwards and one backwards",
        lambda i, chip: _cycles(i, chip, 2 * i.F),
    )


__all__ = ["nonzero_with_count", "sequence_bounds", "topk"]
