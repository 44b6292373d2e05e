"""What to do about it: a few rules, each with its threshold, the line, the remedy and the gain.

Thresholds for transposes, use of the PE array and transfer sizes: AWS Neuron SDK documentation,
"Neuron Explorer summary page" (hardware facts §14).  The gains are estimates of `gains`; each rule
is tested on a kernel that needs it and on one that follows it.
"""

from collections.abc import Iterator
from typing import NamedTuple

from opentrn.base import bytes_text
from opentrn.profiler import gains
from opentrn.profiler.bounds import RESOURCES
from opentrn.profiler.gains import Case
from opentrn.profiler.metrics import percent
from opentrn.profiler.path import CORE, DMA

SMALL_TRANSFER = 32768
TRANSPOSE_PERCENT = 10.0
PE_PERCENT = 50.0
THROTTLE_PERCENT = 10.0
RELOAD_PERCENT = 25.0
PARTS = 4
LEAST_GAIN = 0.02
"""Share of the time below which a remedy is not worth a line."""


class Advice(NamedTuple):
    """One remedy: what was seen, what to do, and the line it is about ("" when it is no line).

    `predicted_gain` is the share of the device time it is expected to save, between 0 and 1.
    """

    code: str
    seen: str
    remedy: str
    line: str
    predicted_gain: float = 0.0


def advise(case: Case) -> list[Advice]:
    """The advice that applies, largest predicted gain first."""
    rules = (_transfers, _spills, _reloads, _overlap, _evacuation, _transposes, _dtype, _array)
    found = [one for rule in rules for one in rule(case)]
    return sorted(found, key=lambda one: -one.predicted_gain)


def _place(case: Case, *resources: str) -> str:
    """The costliest line that works on one of these resources."""
    known = (line.place for line in case.lines if line.where and line.resource in resources)
    return next(known, "")


def _transfers(case: Case) -> Iterator[Advice]:
    found, bound = case.found, case.bound
    count, average = found["dma_transfer_count"], found["dma_transfer_average_bytes"]
    issuing = bound.kind == "engine" and "issue" in bound.reason
    line = _place(case, "dma", bound.resource, "sync")
    small = count and average < SMALL_TRANSFER
    if issuing:
        yield Advice(
            "issue",
            f"{bound.resource} spends its time to issue {count} transfers",
            "move more bytes in each transfer, or let another engine issue some of them",
            line,
            gains.joined(case, max(SMALL_TRANSFER, 2 * round(average))),
        )
    if small and (issuing or bound.kind in ("dma", "latency")):
        yield Advice(
            "small_transfers",
            f"transfers move {bytes_text(average)} on average",
            f"join them: from {bytes_text(SMALL_TRANSFER)} on, the fixed cost fades",
            line,
            gains.joined(case, SMALL_TRANSFER),
        )
    if bound.kind == "dma" and found["dma_bandwidth_percent"] < PE_PERCENT:
        yield Advice(
            "slow_transfers",
            f"DMA moves bytes at {found['dma_bandwidth_percent']:.0f} % of its rate",
            "give each transfer 128 partitions and dense runs of at least 2 KiB",
            line,
            gains.denser(case),
        )


def _spills(case: Case) -> Iterator[Advice]:
    """The tiles that leave SBUF and come back, with the line where most of those bytes are made."""
    gain, table, by_line = gains.unspilled(case), case.table, {}
    for row in gains.spilled(case):
        where = table.where[row]
        by_line[where] = by_line.get(where, 0.0) + float(table.written[row])
    if not by_line or gain < LEAST_GAIN:
        return
    most = max(by_line, key=by_line.__getitem__)
    saved, again = (bytes_text(case.found[f"spill_{way}_bytes"]) for way in ("save", "reload"))
    yield Advice(
        "spill",
        f"tiles do not fit SBUF: {saved} are spilled, {again} come back",
        "finish with each tile before the next is loaded, or use tiles that fit together",
        _base(most) if most else "",
        gain,
    )


def _reloads(case: Case) -> Iterator[Advice]:
    read = sum(one.read for one in case.reloads)
    again = sum(one.again for one in case.reloads)
    gain = gains.kept(case)
    if percent(again, read) < RELOAD_PERCENT or gain < LEAST_GAIN:
        return
    most = case.reloads[0]
    free = case.chip.core.sbuf_usable * case.chip.core.partitions
    free -= case.found.get("sbuf_peak_bytes", 0)
    remedy = "load it once, before the loop, and keep it in SBUF"
    if most.nbytes > free:
        remedy = f"keep as much of it in SBUF as fits ({bytes_text(free)} are free), or reorder"
    place = f"{_base(most.where)}" if most.where else ""
    seen = f"{percent(again, read):.0f} % of the bytes read from HBM were read before, most of `"
    yield Advice("reload", f"{seen}{most.name}`", remedy, place, gain)


def _base(where) -> str:
    return str(where).split(": ")[0].split(" in ")[0]


def _overlap(case: Case) -> Iterator[Advice]:
    gain = gains.overlapped(case)
    waits = case.bound.kind in ("dependency", "latency") and case.bound.resource != CORE
    once = gains.turns(case, DMA) <= 1  # no line loads, or stores, a second tile
    if waits and once and case.found["dma_transfer_average_bytes"] >= 4 * SMALL_TRANSFER:
        yield Advice(
            "split",
            "everything happens once, one step after the other",
            f"cut the tile into {PARTS} or more and load, work on and store them in turn, so that "
            "the steps overlap",
            _place(case, *RESOURCES),
            gains.cut(case, PARTS),
        )
    if waits and not once and gain >= LEAST_GAIN:
        yield Advice(
            "overlap",
            "engines wait for each other",
            "load the next tile while this one is worked on: a fresh tile for each turn of the "
            "loop, loads before their use",
            _place(case, *RESOURCES),
            gain,
        )


def _evacuation(case: Case) -> Iterator[Advice]:
    gain = gains.balanced(case)
    full, free, _ = gains.evacuation(case)
    if case.bound.resource == full and gain >= LEAST_GAIN:
        yield Advice(
            "psum_balance",
            f"the {full.capitalize()} Engine empties PSUM while the {free.capitalize()} Engine is "
            f"active {case.found[f'{free}_engine_active_time_percent']:.0f} % of the time",
            f"let the {free.capitalize()} Engine copy some of the tiles, for example every other",
            _place(case, full),
            gain,
        )


def _transposes(case: Case) -> Iterator[Advice]:
    flips = percent(case.found["transpose_flops"], case.found["hardware_flops"])
    if flips > TRANSPOSE_PERCENT:
        yield Advice(
            "transposes",
            f"{flips:.0f} % of the Tensor Engine's flops are transposes",
            "load the operand in the layout it is used in, or transpose by DMA",
            _place(case, "tensor"),
            gains.unturned(case),
        )


def _dtype(case: Case) -> Iterator[Advice]:
    gain = gains.narrowed(case)
    if gain >= LEAST_GAIN:
        passes = int(case.chip.tensor.fp32_passes)
        yield Advice(
            "fp32_matmul",
            f"matmuls in float32 take {passes} passes of the PE array",
            "give nc_matmul bfloat16 operands where the result bears it (it sums in float32)",
            _place(case, "tensor"),
            gain,
        )


def _array(case: Case) -> Iterator[Advice]:
    found, line = case.found, _place(case, "tensor")
    active = found["tensor_engine_active_time_percent"]
    used = 100.0 * gains.used(case)
    if active >= PE_PERCENT and used < PE_PERCENT:
        yield Advice(
            "small_matmuls",
            f"while the Tensor Engine is active it reaches {used:.0f} % of its BF16 peak",
            "use 128 partitions, 128 stationary columns, 512 moving columns, and 16-bit operands",
            line,
            gains.filled(case),
        )
    lost = percent(found.get("throttle_time", 0.0), found["tensor_engine_active_time"])
    if lost > THROTTLE_PERCENT and active >= PE_PERCENT:
        yield Advice(
            "throttle",
            f"the Tensor Engine loses {lost:.0f} % of its active time to its cold clock",
            "keep it busy without gaps for more than 3 us at a time",
            line,
            gains.warmed(case),
        )
