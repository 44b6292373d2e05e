"""Sums on the way through the DMA engines.

Meaning and limits: NKI 0.6 API reference, nki.isa.dma_compute.  Cost: as `isa.dma`, one transfer
for each source, at the rate of transfers that compute (hw: [dma] accumulate_rate).
"""

from typing import NamedTuple

from opentrn.base import UsageError, float32, numerics
from opentrn.isa.define import Instr
from opentrn.isa.dma import column_rules, partition_rules, plan
from opentrn.isa.enums import dge_mode, oob_mode
from opentrn.isa.operands import REQUIRED, Flag, In, OperandForm, Out, Several, Transfer, derived
from opentrn.isa.operators import op

MOST = 16


def _scales(value):
    try:
        return None if value is None else tuple(float(v) for v in value)
    except (TypeError, ValueError):
        raise UsageError(
            f"dma_compute: scales={value!r}",
            code="dma_compute.scales",
            rule="`scales` is None or a list of numbers, one for each source",
            fix="leave `scales` out: every factor is 1.0",
        ) from None


class dma_compute(Instr):
    """dst = srcs[0] + srcs[1] + … in float32, by the DMA engines; cast to the dtype of dst.

    With a vector of row indices it reads, adds and writes back: dst[indices] = dst[indices] + src
    (a source is `dst` itself, in HBM), or dst = dst + src[indices] (`dst` in SBUF, src in HBM).
    """

    engines = ("dma",)
    dst = Out("hbm|sbuf", "*", engine_side=False)
    srcs = Several(In("hbm|sbuf", "*", engine_side=False), MOST)
    reduce_op = Flag(REQUIRED, "nl.add, the only reduction there is", read=op)
    scales = Flag(None, "factors of the sources: all 1.0", read=_scales)
    unique_indices = Flag(True, "whether no row is scattered to twice: must be True")
    oob_mode = Flag(oob_mode.error, "whether a dynamic address outside raises or is skipped")

    def sources(self) -> list[tuple[str, OperandForm]]:
        """The sources given, by operand name."""
        return [(name, tile) for name, tile in self.tiles() if name != "dst"]

    def indexed(self) -> bool:
        """Whether a side is gathered or scattered by a vector of indices."""
        return any(tile.indirect == "vector" for _, tile in self.tiles())

    def rules(i):
        """Reduction, scales, sizes, and what goes with indices."""
        yield (
            i.reduce_op.name == "add",
            f"`reduce_op` is nl.add, not {i.reduce_op}",
            "load the tiles and combine them with nisa.tensor_tensor",
        )
        given = i.sources()
        yield (
            i.scales is None or i.scales == (1.0,) * len(given),
            f"`scales` is None or a 1.0 for each of the {len(given)} sources",
            "scale with nisa.tensor_scalar first",
        )
        for name, tile in (("dst", i.dst), *given):
            yield (
                tile.dtype.kind != "packed",
                f"`{name}` is {tile.dtype}: packed types can be copied, not added",
                "unpack it first",
            )
            yield (
                tile.size == i.dst.size,
                f"`{name}` must have as many elements as `dst`: {tile.size}, not {i.dst.size}",
                "slice one side to match the other",
            )
        yield from partition_rules(i)
        yield from _address_rules(i, given)

    def relate(self, operands: tuple) -> None:
        """With indices, one source must be `dst` itself."""
        dst, *sources = operands
        if self.indexed() and dst not in [s for s in sources if s is not None]:
            self.bad(
                UsageError,
                "no source is `dst`",
                "with vector_offset the instruction adds to what `dst` holds: one of the two "
                "sources must be the same view as `dst`",
                "pass srcs=[dst, src] with the very view given as `dst`",
                "srcs",
            )

    def run(i, **sources):
        """The float32 sum, in order of the list."""
        total = None
        for name, tile in i.sources():
            value = numerics.cast(sources[name], tile.dtype, float32).reshape(i.dst.shape)
            total = value if total is None else total + value
        return {"dst": total}

    transfer = derived(
        "DMA model of hw/chips [dma], one transfer for each source at accumulate_rate",
        lambda i, chip: _transfer(i, chip),
    )


def _address_rules(i, given: list[tuple[str, OperandForm]]):
    kinds = {tile.indirect for _, tile in i.tiles()} - {""}
    yield (
        kinds <= {"vector"},
        "addresses are known when compiling, or a vector of indices",
        "copy the part with nisa.dma_copy first",
    )
    if not kinds:
        return
    yield from column_rules(i)
    yield (
        len(given) == 2,
        f"with indices there are exactly two sources, not {len(given)}",
        "add the other tiles in an instruction of their own",
    )
    yield (
        i.unique_indices is True,
        "unique_indices must be True: rows that repeat are not supported",
        "sum equal rows first",
    )
    scattered = i.dst.indirect == "vector"
    yield (
        i.dst.space == ("hbm" if scattered else "sbuf"),
        "indices scatter into `dst` in HBM, or gather from a source in HBM into `dst` in SBUF",
        "keep the side with the indices in HBM, the other in SBUF",
    )


class _One(NamedTuple):
    """One of the transfers, as `isa.dma.plan` sees it."""

    chip: object
    src: OperandForm
    dst: OperandForm
    dge_mode: object


def _transfer(i, chip) -> Transfer:
    mode = dge_mode.swdge if i.indexed() else dge_mode.none
    parts = [
        plan(_One(chip, tile, i.dst, mode), chip.dma.accumulate_rate) for _, tile in i.sources()
    ]
    return parts[0]._replace(
        nbytes=sum(p.nbytes for p in parts),
        descriptors=sum(p.descriptors for p in parts),
        busy_ns=sum(p.busy_ns for p in parts),
    )


__all__ = ["dma_compute"]
