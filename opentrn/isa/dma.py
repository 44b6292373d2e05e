"""Instructions of the DMA engines: copies (with cast, gather, scatter) and transposes.

Cost model (hw/chips/*.toml, table [dma], gives the numbers, their sources and residuals): a
transfer is cut into descriptors, one for each stretch that is dense on both sides (longer ones
into pieces of at most `descriptor_bytes`).  The 16 DMA engines of a core serve 8 partitions each.
An engine spends `descriptor + bytes / engine_rate` on a descriptor; the first byte moves `start`
(`swdge_start` where GpSimd makes the descriptors, `swdge_fetch` more for a load from HBM) after the
issuing engine's wait was satisfied.
"""

import numpy as np

from opentrn.base import numerics, uint32
from opentrn.isa.define import Instr
from opentrn.isa.enums import dge_mode, engine, oob_mode
from opentrn.isa.operands import Flag, In, Out, Transfer, derived

# Semaphore increments reach the waiting engine after this share of `start` (start covers issue,
# descriptor fetch and first byte; the completion is its own write, priced by [semaphore]).
ISSUERS = ("sync", "scalar", "gpsimd")


SPILL_SAVE, SPILL_RELOAD = "spill_save", "spill_reload"
"""Names of transfers that nobody wrote: of tiles that did not fit SBUF (`sim.spill`)."""

PRIORITY = (
    "quality of service 0 (high) to 3, NeuronCore-v4 and later; strict: a more urgent transfer "
    "takes over a DMA engine behind the packet it is moving"
)


def dense_bytes(i) -> float:
    """Bytes of one descriptor: the shorter dense stretch of the two sides."""
    source, target = i.src, i.dst
    run = min(source.run, target.run)
    return run * max(source.dtype.itemsize, target.dtype.itemsize)


def engines_used(i, descriptors: int) -> tuple[int, int]:
    """(number of DMA engines, first engine): engine e serves partitions 8e to 8e + 7."""
    most = int(i.chip.dma.engines)
    per_engine = int(i.chip.core.partitions) // most
    sides = [side for side in (i.dst, i.src) if side.space != "hbm"]
    if not sides:
        return max(1, min(most, descriptors)), 0
    side = max(sides, key=lambda s: s.partitions)
    first = side.partition // per_engine
    last = (side.partition + side.partitions - 1) // per_engine
    return min(last - first + 1, most), first


def plan(i, rate: float = 1.0) -> Transfer:
    """The transfer as the rings see it; `rate` scales the engine rate (transposes are slower)."""
    dma = i.chip.dma
    size = max(i.src.nbytes, i.dst.nbytes)
    stretch = dense_bytes(i)
    pieces = -(-stretch // dma.descriptor_bytes)
    chunk = stretch / pieces
    count = max(1, round(size / chunk))
    engines, first = engines_used(i, count)
    per_engine = -(-count // engines)
    one = dma.descriptor + chunk / (dma.engine_rate * rate)
    issuer, issue, start = issued_by(i)
    return Transfer(
        nbytes=size,
        descriptors=count,
        descriptor_bytes=chunk,
        engines=engines,
        first_engine=first,
        issuer=issuer,
        issue_ns=issue * 1e9,
        start_ns=max(0.0, start - issue) * 1e9,
        busy_ns=per_engine * one * 1e9,
        finish_ns=0.0,
    )


def issued_by(i) -> tuple[str, float, float]:
    """(engine that issues the transfer, seconds it spends, seconds until the first byte moves).

    They follow from the descriptor generation mode.  Unknown mode: static rings when every address
    is known; otherwise hardware generation where the chip has it and the access is not a gather,
    else software generation on GpSimd.
    """
    dma, mode = i.chip.dma, i.dge_mode
    dynamic = {i.src.indirect, i.dst.indirect} - {""}
    if mode is dge_mode.unknown:
        mode = dge_mode.none
        if dynamic:
            hardware = dma.hwdge and dynamic == {"scalar"}
            mode = dge_mode.hwdge if hardware else dge_mode.swdge
    if mode is dge_mode.swdge:
        fetch = dma.swdge_fetch if i.src.space == "hbm" else 0.0
        return "gpsimd", dma.swdge_issue, dma.swdge_start + fetch
    chosen = getattr(i, "engine", engine.unknown)
    issuer = chosen.name if chosen.name in ISSUERS else "sync"
    issue = dma.hwdge_issue if mode is dge_mode.hwdge else dma.static_issue
    return issuer, issue, dma.start


class dma_copy(Instr):
    """dst = src, moved by the DMA engines; casts through float32 when the dtypes differ.

    Either side may carry a runtime index: one offset (scalar), or a row for each partition
    (vector: gather from `src`, scatter into `dst`).
    """

    engines = ("dma",)
    dst = Out("hbm|sbuf", "*", engine_side=False)
    src = In("hbm|sbuf", "*", engine_side=False)
    priority = Flag(None, PRIORITY)
    oob_mode = Flag(oob_mode.error, "whether a dynamic address outside raises or is skipped")
    dge_mode = Flag(dge_mode.unknown, "who generates the descriptors")
    engine = Flag(engine.unknown, "sync or scalar: the engine that drives hardware generation")

    def choose(self) -> str:
        """The DMA rings carry every transfer; `engine` only says who issues it."""
        return "dma"

    def _pick_engine(self) -> str:
        return "dma"

    def rules(i):
        """Element counts, generation modes, priorities."""
        yield (
            i.src.size == i.dst.size,
            f"`src` and `dst` must have as many elements: {list(i.src.shape)} has {i.src.size}, "
            f"{list(i.dst.shape)} has {i.dst.size}",
            "slice one side to match the other",
        )
        yield (
            i.dge_mode is not dge_mode.hwdge or i.src.dtype == i.dst.dtype,
            f"hardware descriptor generation moves bytes: `src` is {i.src.dtype}, `dst` "
            f"{i.dst.dtype}",
            "use .view(dtype) to move the bits, or dge_mode.swdge or none to cast",
        )
        yield (
            i.src.dtype == i.dst.dtype or "packed" not in (i.src.dtype.kind, i.dst.dtype.kind),
            f"packed types are moved bit by bit, not cast: `src` is {i.src.dtype}, `dst` "
            f"{i.dst.dtype}",
            "use .view(dtype) on one side to move the bits",
        )
        hardware = i.dge_mode is dge_mode.hwdge
        yield (
            i.engine is engine.unknown or (hardware and i.engine.name in ("sync", "scalar")),
            f"engine={i.engine} drives hardware descriptor generation, which only the Sync and the "
            f"Scalar Engine do, and only with dge_mode.hwdge (here {i.dge_mode})",
            "leave `engine` out, or pass dge_mode=nisa.dge_mode.hwdge and engine sync or scalar",
        )
        yield from column_rules(i)
        yield from partition_rules(i)
        yield from mode_rules(i)

    def run(i, src):
        """The elements of `src` in order (rows a gather skips are left alone by the machine)."""
        shaped = src.reshape(i.dst.shape) if src.shape != i.dst.shape else src
        if i.src.dtype != i.dst.dtype:
            shaped = numerics.cast(shaped, i.src.dtype, i.dst.dtype)
        return {"dst": shaped}

    def exact(self) -> bool:
        """The cast has already rounded."""
        return True

    transfer = derived(
        "DMA model of hw/chips [dma]: descriptors over 16 engines", lambda i, chip: plan(i)
    )


def column_rules(i):
    """An index has one column where rows are moved as they are."""
    for name, side in i.tiles():
        wide = side.index is not None and side.indirect == "vector" and side.index.columns > 1
        yield (
            not wide,
            f"the index of `{name}` is one column, a row for each partition: it has "
            f"{side.index.columns if wide else 1}",
            "move the rows of one column of indices at a time",
        )


def partition_rules(i):
    """On-chip sides have at most as many rows as the chip has partitions."""
    most = int(i.chip.core.partitions)
    for name, side in i.tiles():
        rows = side.partitions + side.partition if side.space != "hbm" else 0
        yield (
            rows <= most,
            f"`{name}` spans partitions up to {rows}, at most {most} exist",
            f"cut it into tiles of at most {most} partitions",
        )


def mode_rules(i):
    """Descriptor generation and priority by NeuronCore generation."""
    mode, chip = i.dge_mode, i.chip
    indirect = {i.src.indirect, i.dst.indirect} - {""}
    yield (
        mode is not dge_mode.hwdge or bool(chip.dma.hwdge),
        f"{chip.name} has no hardware descriptor generation",
        "use dge_mode.swdge, or leave dge_mode out",
    )
    yield (
        "vector" not in indirect or mode in (dge_mode.unknown, dge_mode.swdge),
        "gather and scatter by a vector of indices need software descriptor generation",
        "use dge_mode=nisa.dge_mode.swdge",
    )
    yield (
        not indirect or mode is not dge_mode.none,
        "a runtime address needs descriptors generated while the program runs",
        "use dge_mode.hwdge or swdge, or leave dge_mode out",
    )
    yield (
        i.priority is None or chip.generation >= 4,
        f"DMA priority exists from NeuronCore-v4 (trn3) on, not on {chip.name}",
        "leave `priority` out",
    )
    yield (
        i.priority is None or i.priority in (0, 1, 2, 3),
        "priority is 0 (highest) to 3",
        "choose one of the four classes",
    )


# Permutation of each rank (NKI ISA reference, dma_transpose).
TRANSPOSE_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


class dma_transpose(Instr):
    """dst = src with first and last axes exchanged ([1,0], [2,1,0] or [3,1,2,0]) by the DMA."""

    engines = ("dma",)
    dst = Out("sbuf", "*", engine_side=False)
    src = In("hbm|sbuf", "*", engine_side=False)
    axes = Flag(None, "the permutation; only the rank's own one is accepted")
    priority = Flag(None, PRIORITY)
    dge_mode = Flag(dge_mode.unknown, "who generates the descriptors")
    oob_mode = Flag(oob_mode.error, "whether a dynamic address outside raises or is skipped")

    def rules(i):
        """Rank, permutation, item size, shape of the result."""
        rank = len(i.src.shape)
        yield (
            rank in TRANSPOSE_AXES,
            f"`src` has {rank} dimensions; the DMA transposes 2, 3 or 4",
            "reshape the view",
        )
        axes = TRANSPOSE_AXES.get(rank, ())
        yield (
            i.axes is None or tuple(i.axes) == axes,
            f"a {rank}-dimensional DMA transpose permutes by {list(axes)}",
            "leave `axes` out",
        )
        want = tuple(i.src.shape[a] for a in axes)
        yield (
            tuple(i.dst.shape) == want,
            f"`dst` must have shape {list(want)}, not {list(i.dst.shape)}",
            "give `dst` the permuted shape",
        )
        yield (
            i.dst.dtype == i.src.dtype,
            "`dst` must have the dtype of `src`: a transpose does not cast",
            "allocate dst with dtype=src.dtype",
        )
        yield (
            i.src.dtype.itemsize in (2, 4),
            f"the DMA transposes elements of 2 or 4 bytes, {i.src.dtype} has "
            f"{i.src.dtype.itemsize}",
            "view the bytes as a 2-byte type, or use nisa.nc_transpose",
        )
        yield from _direct_rules(i) if i.src.indirect != "vector" else _gathered_rules(i)
        yield from partition_rules(i)
        yield from mode_rules(i)

    def run(i, src):
        """The permuted elements."""
        axes = TRANSPOSE_AXES[len(i.src.shape)]
        return {"dst": np.transpose(src, axes).reshape(i.dst.shape)}

    def exact(self) -> bool:
        """A transpose moves bits."""
        return True

    transfer = derived(
        "as dma_copy, at 90 % of the rate from HBM and 50 % from SBUF (NG3:278-340)",
        lambda i, chip: _transposed(i, chip),
    )


def _direct_rules(i):
    """A transpose of known rows: static rings, or hardware descriptor generation.

    The reference's constraints name unknown and hwdge, its parameter also none, which the NKI
    Library passes (mlp_tkg_gate_up_projection at d2ad3a57).
    """
    shape = i.src.shape
    hardware = i.dge_mode is dge_mode.hwdge
    yield (
        bool(i.src.indirect) or i.oob_mode is oob_mode.error,
        "oob_mode.skip skips rows of an index: `src` has none",
        "leave `oob_mode` out",
    )
    yield (
        i.dge_mode is not dge_mode.swdge,
        "a DMA transpose of rows known beforehand has dge_mode unknown, hwdge or none, not swdge",
        "leave `dge_mode` out",
    )
    rows = shape[0] == 16 if len(shape) == 2 else _divides_16(shape)
    yield (
        not hardware or rows,
        f"with hwdge the first size of `src` is 16 (three or four dimensions: a divisor of 16, "
        f"times the last but one a multiple of 16), not {list(shape)}",
        "leave `dge_mode` out",
    )
    yield (
        not hardware or (shape[-1] <= 128 and i.src.dtype.itemsize == 2),
        f"with hwdge rows of `src` have at most 128 elements of 2 bytes, not {shape[-1]} of "
        f"{i.src.dtype.itemsize}",
        "leave `dge_mode` out",
    )


def _divides_16(shape) -> bool:
    return shape[0] in (1, 2, 4, 8, 16) and shape[0] * shape[-2] % 16 == 0


def _gathered_rules(i):
    """A transpose of rows chosen by a vector of indices: software descriptor generation."""
    shape = i.src.shape
    yield (
        i.chip.generation >= 3,
        f"{i.chip.name} does not transpose gathered rows (trn2 and later do)",
        "gather with nisa.dma_copy, then use nisa.nc_transpose",
    )
    yield (
        len(shape) != 4 or 1 in shape[1:3],
        f"a middle size of a gathered 4-dimensional `src` is 1, not {list(shape[1:3])}",
        "reshape the view to three dimensions",
    )
    yield (
        shape[-1] <= 128 and i.src.dtype.itemsize == 2,
        f"gathered rows have at most 128 elements of 2 bytes, not {shape[-1]} of "
        f"{i.src.dtype.itemsize}",
        "cut the rows, or gather with nisa.dma_copy first",
    )
    yield (
        shape[0] % 16 == 0,
        f"the number of gathered rows is a multiple of 16, not {shape[0]}",
        "pad the indices",
    )
    if i.src.index is None:
        return
    index = i.src.index
    rows, columns, dtype = index.rows, index.columns, index.dtype
    yield (
        16 <= rows <= 128 and rows % 16 == 0 and (columns == 1 or rows == 128),
        f"the index has 16, 32, … 128 rows, and 128 where it has several columns: it is "
        f"{[rows, columns]}",
        "pad the indices",
    )
    yield (
        dtype == uint32,
        f"the index of a gathered transpose is uint32, not {dtype}",
        "copy the index into a uint32 tile with nisa.tensor_copy",
    )


def _transposed(i, chip) -> Transfer:
    share = chip.dma.transpose_rate if i.src.space == "hbm" else chip.dma.transpose_sbuf_rate
    whole = plan(i, share)
    # The engines read rows and write 2-byte columns through their own buffer, so the descriptors
    # are those of the read side, one for each row, not one for each element.
    chunk = min(i.src.run, i.src.shape[-1]) * i.src.dtype.itemsize
    count = max(1, round(i.src.nbytes / chunk))
    engines = min(int(chip.dma.engines), max(1, count))
    one = chip.dma.descriptor + chunk / (chip.dma.engine_rate * share)
    return whole._replace(
        descriptors=count,
        descriptor_bytes=chunk,
        engines=engines,
        first_engine=0,
        busy_ns=-(-count // engines) * one * 1e9,
    )


__all__ = ["dma_copy", "dma_transpose"]
