"""Two summaries side by side: what became faster, and where."""

from collections.abc import Sequence

from opentrn.base import bytes_text, flops_text, rate_text, seconds_text
from opentrn.profiler.bounds import RESOURCES
from opentrn.profiler.summary import Summary
from opentrn.profiler.table import DMA

SHOWN = (
    "total_time", "roofline_percent", "mfu_estimated_percent", "hfu_estimated_percent",
    "mbu_estimated_percent", "model_flops", "transpose_flops", "hbm_read_bytes",
    "hbm_write_bytes", "dma_transfer_count", "dma_transfer_average_bytes", "dma_bandwidth",
    *(f"{DMA if r == DMA else r + '_engine'}_active_time" for r in RESOURCES),
    "matmul_instruction_count", "throttle_time", "sbuf_peak_bytes", "psum_peak_banks",
)  # fmt: skip
"""The metrics a comparison shows, in order."""


def value_text(value, unit: str) -> str:
    """A metric's value with its unit, for people."""
    written = {
        "s": seconds_text, "B": bytes_text, "B/s": rate_text,
        "FLOP": lambda flops: flops_text(flops, "FLOP"), "%": lambda share: f"{share:.1f} %",
    }.get(unit)  # fmt: skip
    if written is not None:
        return written(value)
    number = f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
    return f"{number} {unit}".rstrip()


def compare(a: Summary, b: Summary) -> str:
    """A table of the metrics of `a` and `b`; the last column is b / a (points for per cent)."""
    return side_by_side([a, b]) + f"\n{_verdict(a, b)}\n"


def side_by_side(summaries: Sequence[Summary]) -> str:
    """A table of the metrics of several runs, one column each; with two, what changed as well.

    Facts that were replaced for a run stand under the table, as assumed.
    """
    pair = len(summaries) == 2
    rows = [["", *map(_title, summaries), ""]]
    for name in SHOWN:
        held = [one.metrics.get(name) for one in summaries]
        if not any(metric is not None and metric.value for metric in held):
            continue
        unit = next(metric.unit for metric in held if metric is not None)
        cells = [value_text(m.value, unit) if m else "-" for m in held]
        rows.append([name, *cells, _change(*held, unit) if pair else ""])
    rows.append(["bound by", *map(_bound, summaries), ""])
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    lines = [
        "  ".join([f"{row[0]:{widths[0]}}", *(f"{c:>{w}}" for c, w in zip(row[1:], widths[1:],
                   strict=True))]).rstrip()
        for row in rows
    ]  # fmt: skip
    facts = [
        f"assumed: {one.target.partition(' with ')[0]} {fact} = {value}"
        for one in summaries
        for fact, value in one.assumed.items()
    ]
    return "\n".join([*lines, *dict.fromkeys(facts)]) + "\n"


def _title(summary: Summary) -> str:
    chip, _, changed = summary.target.partition(" with ")
    return f"{summary.program or 'program'} on {chip}{' as assumed' if changed else ''}"[:40]


def _bound(summary: Summary) -> str:
    bound = summary.bound
    return f"{bound.resource} {bound.share:.0%}" if bound.kind == "engine" else bound.kind


def _change(one, two, unit: str) -> str:
    if one is None or two is None:
        return ""
    if unit == "%":
        return f"{two.value - one.value:+.1f} pt"
    return f"{two.value / one.value:.2f} x" if one.value else "new"


def _verdict(a: Summary, b: Summary) -> str:
    """One sentence: which is faster, and what changed most on the critical path."""
    before, after = a["total_time"], b["total_time"]
    if not before or not after:
        return "one of the two takes no time"
    names = sorted(set(a.path) | set(b.path))
    moved = {n: b.path.get(n, 0.0) * after - a.path.get(n, 0.0) * before for n in names}
    most = max(names, key=lambda n: abs(moved[n]), default="")
    ratio = before / after
    said = f"the second takes {1 / ratio:.2f} x as long"
    if ratio >= 1:
        said = f"the second is {ratio:.2f} x as fast"
    if not most or abs(moved[most]) < 1e-3 * max(before, after):
        return said
    sign = "less" if moved[most] < 0 else "more"
    amount = f"{seconds_text(abs(moved[most]))} {sign} {most}"
    return f"{said}; most of it: {amount} on the critical path"
