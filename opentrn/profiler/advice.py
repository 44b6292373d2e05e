"""What to do about it: a few rules, each with its threshold, the line and the remedy.

Thresholds for transposes, use of the PE array and transfer sizes: AWS Neuron SDK documentation,
"Neuron Explorer summary page" (hardware facts §14).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from opentrn.base import bytes_text
from opentrn.profiler.bounds import RESOURCES, Bound
from opentrn.profiler.metrics import percent
from opentrn.profiler.source import Line

SMALL_TRANSFER = 32768
TRANSPOSE_PERCENT = 10.0
PE_PERCENT = 50.0
THROTTLE_PERCENT = 10.0


class Advice(NamedTuple):
    """One remedy: what was seen, what to do, and the line it is about ("" when it is no line)."""

    code: str
    seen: str
    remedy: str
    line: str


def advise(found: dict[str, Any], bound: Bound, lines: list[Line]) -> list[Advice]:
    """The advice that applies, most useful first."""
    return [*_transfers(found, bound, lines), *_overlap(bound, lines), *_tensor(found, lines)]


def _place(lines: list[Line], *resources: str) -> str:
    """The costliest line that works on one of these resources."""
    known = (line.place for line in lines if line.where and line.resource in resources)
    return next(known, "")


def _transfers(found: dict[str, Any], bound: Bound, lines: list[Line]) -> Iterator[Advice]:
    count, average = found["dma_transfer_count"], found["dma_transfer_average_bytes"]
    issuing = bound.kind == "engine" and "issue" in bound.reason
    line = _place(lines, "dma", bound.resource, "sync")
    if issuing:
        yield Advice(
            "issue",
            f"{bound.resource} spends its time to issue {count} transfers",
            "move more bytes in each transfer, or let another engine issue some of them",
            line,
        )
    if count and average < SMALL_TRANSFER and (issuing or bound.kind in ("dma", "latency")):
        yield Advice(
            "small_transfers",
            f"transfers move {bytes_text(average)} on average",
            f"join them: from {bytes_text(SMALL_TRANSFER)} on, the fixed cost fades",
            line,
        )
    if bound.kind == "dma" and found["dma_bandwidth_percent"] < PE_PERCENT:
        yield Advice(
            "slow_transfers",
            f"DMA moves bytes at {found['dma_bandwidth_percent']:.0f} % of its rate",
            "give each transfer 128 partitions and dense runs of at least 2 KiB",
            line,
        )


def _overlap(bound: Bound, lines: list[Line]) -> Iterator[Advice]:
    if bound.kind in ("dependency", "latency"):
        yield Advice(
            "overlap",
            "engines wait for each other",
            "load the next tile while this one is worked on: a fresh tile for each turn of the "
            "loop, loads before their use",
            _place(lines, *RESOURCES),
        )


def _tensor(found: dict[str, Any], lines: list[Line]) -> Iterator[Advice]:
    line = _place(lines, "tensor")
    flips = percent(found["transpose_flops"], found["hardware_flops"])
    if flips > TRANSPOSE_PERCENT:
        yield Advice(
            "transposes",
            f"{flips:.0f} % of the Tensor Engine's flops are transposes",
            "load the operand in the layout it is used in, or transpose by DMA",
            line,
        )
    active = found["tensor_engine_active_time_percent"]
    used = percent(found["mfu_estimated_percent"], active)
    if active >= PE_PERCENT and used < PE_PERCENT:
        yield Advice(
            "small_matmuls",
            f"while the Tensor Engine is active it reaches {used:.0f} % of its BF16 peak",
            "use 128 partitions, 128 stationary columns, 512 moving columns, and 16-bit operands",
            line,
        )
    lost = percent(found.get("throttle_time", 0.0), found["tensor_engine_active_time"])
    if lost > THROTTLE_PERCENT and active >= PE_PERCENT:
        yield Advice(
            "throttle",
            f"the Tensor Engine loses {lost:.0f} % of its active time to its cold clock",
            "keep it busy without gaps for more than 3 us at a time",
            line,
        )
