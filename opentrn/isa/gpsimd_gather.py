"""Instructions of the GpSimd Engine that gather elements by indices held in SBUF.

Meaning and limits: NKI 0.6 API reference (nki.isa).  The eight cores of GpSimd serve 16 partitions
each.  An index outside its tile is undefined on the chip; here it is refused.
"""

import numpy as np

from opentrn.base import ON_CHIP, BoundsError, uint16, uint32
from opentrn.isa.define import Instr
from opentrn.isa.gpsimd import ELEMENTS, LANES
from opentrn.isa.operands import Cycles, Dim, Flag, In, Out, assumed, derived

CORE = 16
RUNS = (1, 2, 4, 8, 16, 32)
MOST_INDICES = 4096
# Elements one underlying instruction of nc_n_gather produces for a partition.
GATHERED = 512


class local_gather(Instr):
    """dst[16c:16c+16, n·E : n·E+E] = src_buffer[16c:16c+16, o_n : o_n+E] for each GpSimd core c.

    E is `num_elem_per_idx`.  The offsets o_n are those of the 16 partitions of `index` that belong
    to the core, partition by partition, then column by column: o_n = index[16c + n % 16, n // 16].
    Only the first `num_valid_indices` of them count (default: all).
    """

    engines = ("gpsimd",)
    example = {"P": CORE, "I": 1, "G": CORE}
    dst = Out("sbuf", "P G", *ON_CHIP)
    src_buffer = In("sbuf", "P F", *ON_CHIP)
    index = In("sbuf", "P I", uint16)
    num_elem_per_idx = Flag(1, "elements taken from each offset on: 1, 2, 4, 8, 16 or 32")
    num_valid_indices = Flag(None, "offsets each core uses; None: all it has")

    P = Dim(LANES[0], "a core of GpSimd serves 16 partitions", multiple=CORE, least=CORE)
    F = Dim(*ELEMENTS)
    I = Dim(None, "16 offsets for each column of `index`")  # noqa: E741
    G = Dim(*ELEMENTS)

    def valid(self) -> int:
        """How many offsets each core uses."""
        return self.I * CORE if self.num_valid_indices is None else self.num_valid_indices

    def rules(i):
        """Run lengths, numbers of offsets, the size of dst."""
        yield (
            i.num_elem_per_idx in RUNS,
            f"num_elem_per_idx is one of {', '.join(map(str, RUNS))}, not {i.num_elem_per_idx}",
            "gather runs of a legal length and slice the result",
        )
        yield (
            1 <= i.valid() <= i.I * CORE,
            f"a core has {i.I * CORE} offsets ({CORE} partitions × {i.I}), "
            f"num_valid_indices is {i.valid()}",
            f"pass num_valid_indices from 1 to {i.I * CORE}",
        )
        yield (
            i.valid() <= MOST_INDICES,
            f"a core gathers by at most {MOST_INDICES} offsets, not {i.valid()}",
            "cut `index` into several instructions",
        )
        want = i.valid() * i.num_elem_per_idx
        yield (
            want == i.G,
            f"`dst` has num_valid_indices · num_elem_per_idx = {want} elements in each partition: "
            f"it has {i.G}",
            f"allocate dst with shape ({i.P}, {want})",
        )
        yield _same_dtype(i, i.src_buffer)

    def exact(self) -> bool:
        """A gather moves bits."""
        return True

    def run(i, src_buffer, index):
        """The gathered runs."""
        source = src_buffer.reshape(i.P // CORE, CORE, i.F)
        offsets = index.reshape(i.P // CORE, CORE, i.I).transpose(0, 2, 1)
        offsets = offsets.reshape(i.P // CORE, -1)[:, : i.valid()].astype(np.int64)
        last = i.F - i.num_elem_per_idx
        _inside(i, "index", offsets, last, f"(a run of {i.num_elem_per_idx} of {i.F} elements)")
        places = (offsets[:, :, None] + np.arange(i.num_elem_per_idx)).reshape(len(offsets), 1, -1)
        return {"dst": np.take_along_axis(source, places, axis=2).reshape(i.dst.shape)}

    cycles = derived(
        "NKI ISA v2.26.1 local_gather: 150 + n·E·C with C = ((28 + 4E) / 4E) / min(4 / itemsize, E)"
        " cycles an element; it prints a division by C, which would make long runs slower, against "
        "its own text",
        lambda i, chip: _gather_cycles(i, chip),
    )


def _gather_cycles(i, chip) -> Cycles:
    run, gpsimd = i.num_elem_per_idx, chip.gpsimd
    each = ((28 + 4 * run) / (4 * run)) / min(4 / i.src_buffer.dtype.itemsize, run)
    busy = gpsimd.start_cycles + i.valid() * run * each
    return Cycles(busy, latency=gpsimd.latency * gpsimd.clock)


class nc_n_gather(Instr):
    """dst[p, n] = data[p, indices[p, n]] within each partition; free axes count as one."""

    engines = ("gpsimd",)
    dst = Out("sbuf", "P G", *ON_CHIP)
    data = In("sbuf", "P F", *ON_CHIP)
    indices = In("sbuf", "P G", uint32)

    P = Dim(*LANES)
    F = Dim(*ELEMENTS)
    G = Dim(None, f"ceil(G / {GATHERED}) instructions, each for {GATHERED} elements of a partition")

    def rules(i):
        """One dtype."""
        yield _same_dtype(i, i.data)

    def exact(self) -> bool:
        """A gather moves bits."""
        return True

    def run(i, data, indices):
        """The gathered elements."""
        places = indices.reshape(i.P, i.G).astype(np.int64)
        _inside(i, "indices", places, i.F - 1, f"of {i.F} elements in a partition")
        found = np.take_along_axis(data.reshape(i.P, i.F), places, axis=1)
        return {"dst": found.reshape(i.dst.shape)}

    cycles = assumed(
        "no public figure; ceil(N / 512) instructions (NKI 0.6 nc_n_gather), 150 cycles to start "
        "each, one element a cycle",
        lambda i, chip: _n_gather_cycles(i, chip),
    )


def _n_gather_cycles(i, chip) -> Cycles:
    gpsimd = chip.gpsimd
    busy = gpsimd.start_cycles * -(-i.G // GATHERED) + i.G
    return Cycles(busy, latency=gpsimd.latency * gpsimd.clock)


def _same_dtype(i, source):
    return (
        i.dst.dtype == source.dtype,
        f"a gather does not cast: `dst` is {i.dst.dtype}, its source {source.dtype}",
        f"allocate dst with dtype={source.dtype}",
    )


def _inside(i, name: str, places: np.ndarray, last: int, what: str) -> None:
    """Refuse indices beyond `last` (BoundsError `<instruction>.<name>`)."""
    worst = int(places.max())
    if worst > last:
        i.bad(
            BoundsError,
            f"`{name}` holds {worst}, at most {last} is inside {what}",
            "the chip does not define what an index outside its tile gathers",
            "clip the indices with nisa.tensor_scalar(op0=nl.minimum) first",
            name,
        )


__all__ = ["local_gather", "nc_n_gather"]
