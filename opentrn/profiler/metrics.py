"""The metrics of a summary: names, units and formulas, after the Neuron Explorer profile schema.

Source of the names and formulas without "(ours)": AWS Neuron SDK documentation, "Profile schema
reference" 7.4.0, table Summary (hardware facts §14).  Times are seconds, shares per cent.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from opentrn.cost import roofline
from opentrn.hw import Chip
from opentrn.isa import SPILL_RELOAD, SPILL_SAVE, Program
from opentrn.profiler.descriptors import KINDS, by_maker
from opentrn.profiler.details import Detail
from opentrn.profiler.table import DMA, ENGINES, Table, covered

NS = 1e-9


class Kind(NamedTuple):
    """What a metric is: its unit and one sentence."""

    unit: str
    meaning: str


def _engine_kinds() -> dict[str, Kind]:
    found = {}
    for engine in ENGINES:
        name = f"the {engine.capitalize()} Engine"
        found |= {
            f"{engine}_engine_active_time": Kind("s", f"{name} works, or writes a result"),
            f"{engine}_engine_active_time_percent": Kind("%", f"active share of {name}"),
            f"{engine}_engine_instruction_time": Kind("s", f"sum of durations on {name}"),
            f"{engine}_engine_instruction_count": Kind("", f"instructions on {name}"),
        }
    return found


METRICS: dict[str, Kind] = {
    "total_time": Kind("s", "device time from the start to the last visible result"),
    "device_run_time": Kind("s", "total_time with the start and end of a device run (ours)"),
    "library_load_time": Kind("s", "added to the first run of a loaded graph (ours)"),
    "host_launch_time": Kind("s", "added by the host to each call of a graph (ours)"),
    "neuroncore_cycle_count": Kind("cycle", "total_time in cycles of the core's clock"),
    "event_count": Kind("", "events of the trace (ours: of any kind)"),
    **_engine_kinds(),
    "matmul_instruction_count": Kind("", "nc_matmul instructions"),
    "activate_instruction_count": Kind("", "activation instructions"),
    "activate_instruction_time": Kind("s", "sum of durations of activation instructions"),
    "model_flops": Kind("FLOP", "hardware_flops - transpose_flops, unless the graph's is given"),
    "hardware_flops": Kind("FLOP", "flops of all Tensor Engine instructions"),
    "transpose_flops": Kind("FLOP", "the part of hardware_flops that only transposes"),
    "adjusted_hardware_flops": Kind("FLOP", "hardware_flops as BF16 work: fp32 x 4, fp8 x 0.5"),
    "adjusted_transpose_flops": Kind("FLOP", "transpose_flops as BF16 work"),
    "mfu_estimated_percent": Kind("%", "model_flops / (2 x PEs x clock x total_time)"),
    "mfu_inst_estimated_percent": Kind(
        "%", "(hardware_flops - transpose_flops) / (2 x PEs x clock x total_time)"
    ),
    "mfu_inst_max_achievable_estimated_percent": Kind(
        "%", "mm_arithmetic_intensity / peak_flops_bandwidth_ratio"
    ),
    "mfu_hlo_estimated_percent": Kind(
        "%", "mfu_estimated_percent, where the graph's flops are given"
    ),
    "mfu_hlo_max_achievable_estimated_percent": Kind(
        "%", "mfu_max_achievable_estimated_percent, of a graph's flops"
    ),
    "hfu_estimated_percent": Kind("%", "hardware_flops / (2 x PEs x clock x total_time)"),
    "mfu_max_achievable_estimated_percent": Kind(
        "%", "(model_flops / HBM bytes) / peak_flops_bandwidth_ratio"
    ),
    "mm_arithmetic_intensity": Kind(
        "FLOP/B", "(hardware_flops - transpose_flops) / (hbm_read_bytes + hbm_write_bytes)"
    ),
    "peak_flops_bandwidth_ratio": Kind("FLOP/B", "2 x PEs x clock / bandwidth of one HBM stack"),
    "dma_active_time": Kind("s", "at least one transfer moves bytes"),
    "dma_active_time_percent": Kind("%", "active share of the DMA queues"),
    "dma_active_cycles": Kind("cycle", "dma_active_time in cycles of the core's clock"),
    "dma_transfer_time": Kind("s", "sum of durations of transfers"),
    "dma_transfer_count": Kind("", "DMA transfers"),
    "dma_transfer_total_bytes": Kind("B", "bytes moved by transfers"),
    "dma_transfer_average_bytes": Kind("B", "bytes of a transfer on average"),
    "dma_queue_count": Kind("", "DMA queues in use"),
    "dma_bandwidth": Kind("B/s", "dma_transfer_total_bytes / dma_active_time (ours)"),
    "dma_bandwidth_percent": Kind(
        "%", "dma_bandwidth of what the core's DMA engines can sustain (ours)"
    ),
    "hbm_read_bytes": Kind("B", "read from HBM by the DMA engines"),
    "hbm_write_bytes": Kind("B", "written to HBM by the DMA engines"),
    "hbm_reload_bytes": Kind("B", "read from HBM after having been read before (ours)"),
    "sbuf_read_bytes": Kind("B", "read from SBUF by engines and DMA"),
    "sbuf_write_bytes": Kind("B", "written to SBUF by engines and DMA"),
    "psum_read_bytes": Kind("B", "read from PSUM"),
    "psum_write_bytes": Kind("B", "written to PSUM"),
    "psum_read_sbuf_write_count": Kind("", "engine instructions that move PSUM to SBUF"),
    "psum_read_sbuf_write_bytes": Kind("B", "bytes they write"),
    "spill_save_bytes": Kind("B", "tiles saved to HBM for lack of SBUF"),
    "spill_reload_bytes": Kind("B", "tiles brought back that had left for lack of SBUF"),
    "mbu_estimated_percent": Kind(
        "%", "(hbm_read_bytes + hbm_write_bytes) / total_time / bandwidth of one HBM stack"
    ),
    "mbu_min_read_util_percent": Kind(
        "%", "inputs_and_weights_size_bytes / total_time / bandwidth of one HBM stack"
    ),
    "weight_size_bytes": Kind("B", "constants of the program"),
    "inputs_and_weights_size_bytes": Kind("B", "inputs and constants"),
    "inputs_outputs_weights_size_bytes": Kind("B", "inputs, outputs and constants"),
    **{name: Kind(unit, meaning) for name, (unit, meaning) in KINDS.items()},
    "input_queue_bytes": Kind("B", "read by transfers from inputs of the program"),
    "output_queue_bytes": Kind("B", "written by transfers to outputs of the program"),
    "weight_queue_bytes": Kind("B", "read by transfers from constants of the program"),
    "trace_count": Kind("", "events of the trace"),
    "total_exec_time": Kind("s", "from the first start to the last result"),
    "total_active_time": Kind("s", "at least one engine or transfer is active"),
    "total_active_time_percent": Kind("%", "total_active_time of total_exec_time"),
    "throttle_time": Kind("s", "Tensor Engine time lost to its cold clock (ours)"),
    "sbuf_peak_bytes": Kind("B", "most SBUF in use at once, all partitions (ours)"),
    "sbuf_peak_percent": Kind("%", "sbuf_peak_bytes of the usable SBUF (ours)"),
    "psum_peak_banks": Kind("", "most PSUM banks in use at once (ours)"),
    "roofline_time": Kind("s", "least time of model_flops and HBM transfers on a core (ours)"),
    "roofline_percent": Kind("%", "roofline_time of total_time (ours)"),
}
"""Every metric a summary may have."""

_TIMED_UNITS = ("s", "B/s", "cycle")
_COUNTED_SHARES = (
    "mfu_max_achievable_estimated_percent", "mfu_inst_max_achievable_estimated_percent",
    "mfu_hlo_max_achievable_estimated_percent",
    *(name for name in KINDS if name.endswith("size_percent")),
)  # fmt: skip
_TIMED_COUNTS = ("sbuf_peak_bytes", "psum_peak_banks")

COUNTED = tuple(
    name for name, kind in METRICS.items()
    if name in _COUNTED_SHARES
    or (kind.unit not in (*_TIMED_UNITS, "%") and name not in _TIMED_COUNTS)
)  # fmt: skip
"""Metrics that are exact counts of the program; the others rest on the timing model."""

ABSENT = {
    "dma_packet_time": "the model moves whole transfers, not packets",
    "throttle_time": "needs the program, for the time at full speed",
    "adjusted_hardware_flops": "needs the program, for the dtypes",
    "adjusted_transpose_flops": "needs the program, for the dtypes",
    **dict.fromkeys(KINDS, "needs the program, for who generates descriptors"),
    **{
        f"{maker}_dma_packet_{what}": "the model moves whole transfers, not packets"
        for maker in ("static", "software_dynamic", "hardware_dynamic")
        for what in ("count", "percent")
    },
    "dynamic_dma_packet_percent": "the model moves whole transfers, not packets",
    "total_row_count": "the official profiler's database is not built",
    "input_queue_bytes": "needs the program",
    "output_queue_bytes": "needs the program",
    "weight_queue_bytes": "needs the program",
    "mfu_hlo_estimated_percent": "needs the flops of a graph",
    "mfu_hlo_max_achievable_estimated_percent": "needs the flops of a graph",
    "hbm_reload_bytes": "needs the program, for the places of the bytes",
    "weight_size_bytes": "needs the program",
    "inputs_and_weights_size_bytes": "needs the program",
    "inputs_outputs_weights_size_bytes": "needs the program",
    "mbu_min_read_util_percent": "needs the program, for the sizes of inputs and weights",
    "sbuf_peak_bytes": "the trace has no counter `sbuf_bytes`",
    "sbuf_peak_percent": "the trace has no counter `sbuf_bytes`",
    "psum_peak_banks": "the trace has no counter `psum_banks`",
    **{
        f"cc_{name}": "the trace of one core has no collectives"
        for name in (
            "op_time",
            "op_active_time",
            "op_active_time_percent",
            "op_count",
            "cores_instruction_time",
            "cores_instruction_active_time",
            "cores_instruction_active_time_percent",
            "cores_instruction_count",
        )
    },
}
"""Why a metric may be missing; a summary lists those that are."""


def percent(part: float, whole: float) -> float:
    """100 x part / whole; 0 of nothing is 0."""
    return 100.0 * part / whole if whole else 0.0


def peak(chip: Chip) -> float:
    """flop/s of the PE array as the schema counts it: 2 x rows x columns x clock."""
    return 2.0 * chip.tensor.rows * chip.tensor.columns * chip.tensor.clock


def stack_bandwidth(chip: Chip) -> float:
    """byte/s of one HBM stack."""
    return chip.hbm_bandwidth / chip.hbm_stacks


def measure(table: Table, chip: Chip, known: list[Detail | None], program) -> dict[str, Any]:
    """Every metric that can be had, by name; see METRICS for units.

    An engine is active from the start of an instruction until its result is written, the span the
    official profile gives an instruction; spans that overlap count once in an active time and
    twice in an instruction time.
    """
    total = table.total * NS
    busy = {lane: _active(table, lane) for lane in (*ENGINES, DMA)}
    found: dict[str, Any] = {
        "total_time": total,
        "device_run_time": chip.launch.begin + total + chip.launch.end,
        "library_load_time": chip.launch.library,
        "host_launch_time": chip.launch.graph,
        "neuroncore_cycle_count": round(total * chip.sync.clock),
        "event_count": len(table),
        "trace_count": len(table),
    }
    found |= {f"{name}_bytes": int(table.written[rows].sum()) for name, rows in spills(table)}
    found |= _active_span(table)
    found |= _engines(table, busy)
    found |= _transfers(table, chip, busy, known)
    found |= _memories(table, known)
    found |= _flops(table, known, program is not None)
    found |= _peaks(table, chip)
    if program is not None:
        found |= _sizes(program, chip, total)
        found["throttle_time"] = _throttled(table, known) * NS
    found |= _rates(found, chip, dtype_of(table, chip, known), _carried(table))
    if "model_flops" in table.trace.meta:
        for name in ("mfu_estimated_percent", "mfu_max_achievable_estimated_percent"):
            if name in found:
                found[name.replace("mfu", "mfu_hlo")] = found[name]
    return found


def spills(table: Table) -> Iterator[tuple[str, np.ndarray]]:
    """`(name, which events)` of the transfers out of SBUF and back that nobody wrote."""
    label = np.array(table.label, dtype=object)
    for name in (SPILL_SAVE, SPILL_RELOAD):
        yield name, table.on(DMA) & (label == name)


def _active(table: Table, lane: str) -> float:
    """ns in which at least one event of the resource is under way, results being written too."""
    on = table.on(lane)
    return covered(table.start[on], table.done[on])


def _active_span(table: Table) -> dict[str, float]:
    """How long anything ran, and how much of that something did."""
    if not len(table):
        return {"total_exec_time": 0.0, "total_active_time": 0.0, "total_active_time_percent": 0.0}
    last = float(table.done.max()) - float(table.start.min())
    at_work = covered(table.start, table.done)
    return {
        "total_exec_time": last * NS,
        "total_active_time": at_work * NS,
        "total_active_time_percent": percent(at_work, last),
    }


def _engines(table: Table, busy: dict[str, float]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    name = np.array(table.name, dtype=object)
    lasts = table.done - table.start
    for engine in ENGINES:
        on = table.on(engine)
        found[f"{engine}_engine_active_time"] = busy[engine] * NS
        found[f"{engine}_engine_active_time_percent"] = percent(busy[engine], table.total)
        found[f"{engine}_engine_instruction_time"] = float(lasts[on].sum()) * NS
        found[f"{engine}_engine_instruction_count"] = int(on.sum())
    activate = np.array([n.startswith("activat") for n in name], bool) & ~table.issue
    found["matmul_instruction_count"] = int((name == "nc_matmul").sum())
    found["activate_instruction_count"] = int(activate.sum())
    found["activate_instruction_time"] = float(lasts[activate].sum()) * NS
    return found


def _transfers(table: Table, chip: Chip, busy: dict[str, float], known) -> dict[str, Any]:
    on = table.on(DMA)
    size = np.maximum(table.read, table.written)
    total, count = float(size[on].sum()), int(on.sum())
    active = busy[DMA] * NS
    rate = total / active if active else 0.0
    found: dict[str, Any] = {
        "dma_active_time": active,
        "dma_active_time_percent": percent(busy[DMA], table.total),
        "dma_active_cycles": round(active * chip.sync.clock),
        "dma_transfer_time": float(table.duration[on].sum()) * NS,
        "dma_transfer_count": count,
        "dma_transfer_total_bytes": int(total),
        "dma_transfer_average_bytes": total / count if count else 0.0,
        "dma_queue_count": len({t for t in table.track if t.startswith(DMA)}),
        "dma_bandwidth": rate,
        "dma_bandwidth_percent": percent(rate, chip.dma.engines * chip.dma.engine_rate),
    }
    found |= by_maker(table, known, size)
    return found


def _carried(table: Table) -> float:
    """Bytes that transfers from or to HBM move; HBM to HBM counts once, as the DMA carries it."""
    pairs = zip(table.source, table.target, strict=True)
    touches = np.array(["hbm" in source or "hbm" in target for source, target in pairs], bool)
    return float(np.maximum(table.read, table.written)[touches].sum())


def _memories(table: Table, known: list[Detail | None]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for space in ("hbm", "sbuf", "psum"):
        for verb, column, words in (
            ("read", table.read, table.source), ("write", table.written, table.target),
        ):  # fmt: skip
            share = _shares(words, column, known, space, verb)
            found[f"{space}_{verb}_bytes"] = round(float(share.sum()))
    out = [
        "psum" in source and "sbuf" in target
        for source, target in zip(table.source, table.target, strict=True)
    ]
    moves = ~table.on(DMA) & np.array(out, bool)
    found["psum_read_sbuf_write_count"] = int(moves.sum())
    found["psum_read_sbuf_write_bytes"] = int(table.written[moves].sum())
    return found


def _shares(words: list[str], column: np.ndarray, known, space: str, verb: str) -> np.ndarray:
    """Bytes of each event in `space`; an event over several memories is divided by its detail.

    Without one it is divided evenly, for its operands mostly have one size.
    """
    parts = {word: tuple(word.split("+")) for word in set(words)}
    share = [1.0 / len(parts[w]) if space in parts[w] else 0.0 for w in words]
    found = column * np.array(share)
    for row, word in enumerate(words):
        if len(parts[word]) > 1 and known[row] is not None:
            held = known[row].read if verb == "read" else known[row].written
            found[row] = held.get(space, 0)
    return found


def _flops(table: Table, known: list[Detail | None], has_program: bool) -> dict[str, Any]:
    on = table.on("tensor")
    flips = [
        n == "nc_transpose" or (d is not None and d.transpose)
        for n, d in zip(table.name, known, strict=True)
    ]
    flips = on & np.array(flips, bool)
    hardware, transpose = float(table.flops[on].sum()), float(table.flops[flips].sum())
    model = table.trace.meta.get("model_flops", hardware - transpose)
    found = {"hardware_flops": hardware, "transpose_flops": transpose, "model_flops": float(model)}
    if has_program:
        weight = np.array([1.0 if d is None else d.weight for d in known])
        found["adjusted_hardware_flops"] = float((table.flops * weight)[on].sum())
        found["adjusted_transpose_flops"] = float((table.flops * weight)[flips].sum())
    return {name: int(value) for name, value in found.items()}


def _peaks(table: Table, chip: Chip) -> dict[str, Any]:
    found: dict[str, Any] = {}
    counters = table.trace.counters
    if counters.get("sbuf_bytes"):
        most = max(value for _, value in counters["sbuf_bytes"])
        usable = chip.core.sbuf_usable * chip.core.partitions
        found["sbuf_peak_bytes"] = int(most)
        found["sbuf_peak_percent"] = percent(most, usable)
    if counters.get("psum_banks"):
        found["psum_peak_banks"] = int(max(value for _, value in counters["psum_banks"]))
    return found


def _sizes(program: Program, chip: Chip, total: float) -> dict[str, Any]:
    weights = sum(b.nbytes for b in program.constants)
    inputs = sum(b.nbytes for b in program.inputs) + weights
    whole = inputs + sum(b.nbytes for b in program.outputs)
    most = stack_bandwidth(chip) * total
    return {
        "weight_size_bytes": weights,
        "inputs_and_weights_size_bytes": inputs,
        "inputs_outputs_weights_size_bytes": whole,
        "mbu_min_read_util_percent": percent(inputs, most),
    }


def _throttled(table: Table, known: list[Detail | None]) -> float:
    """ns that Tensor Engine instructions last longer than at full speed."""
    full = np.array([0.0 if d is None else d.busy_ns for d in known])
    on = table.on("tensor") & (full > 0.0)
    return float(np.maximum(table.duration - full, 0.0)[on].sum())


def dtype_of(table: Table, chip: Chip, known: list[Detail | None]) -> str:
    """The fastest dtype the Tensor Engine works on, so that no roofline is too low."""
    named = {d.dtype for d in known if d is not None} | {str(table.trace.meta.get("dtype", ""))}
    named = {name for name in named if name.startswith(("float", "bfloat"))} or {"bfloat16"}
    return max(sorted(named), key=lambda n: roofline(1.0, 0.0, chip, n, cores=1).peak)


def _rates(found: dict[str, Any], chip: Chip, dtype: str, carried: float) -> dict[str, Any]:
    """The metrics made from others."""
    total, model = found["total_time"], found["model_flops"]
    useful = found["hardware_flops"] - found["transpose_flops"]
    hbm = found["hbm_read_bytes"] + found["hbm_write_bytes"]
    ridge = peak(chip) / stack_bandwidth(chip)
    bound = float(roofline(model, carried, chip, dtype, cores=1).seconds)
    made = {
        "mfu_estimated_percent": percent(model, peak(chip) * total),
        "mfu_inst_estimated_percent": percent(useful, peak(chip) * total),
        "hfu_estimated_percent": percent(found["hardware_flops"], peak(chip) * total),
        "peak_flops_bandwidth_ratio": ridge,
        "mbu_estimated_percent": percent(hbm, stack_bandwidth(chip) * total),
        "roofline_time": bound,
        "roofline_percent": percent(bound, total),
    }
    if hbm:
        made["mm_arithmetic_intensity"] = useful / hbm
        made["mfu_inst_max_achievable_estimated_percent"] = percent(useful / hbm, ridge)
        made["mfu_max_achievable_estimated_percent"] = percent(model / hbm, ridge)
    return made
