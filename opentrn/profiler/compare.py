"""Two summaries side by side: what became faster, and where."""

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
    rows = [("", _title(a), _title(b), "")]
    for name in SHOWN:
        one, two = a.metrics.get(name), b.metrics.get(name)
        if one is None and two is None:
            continue
        unit = (one or two).unit
        cells = [value_text(m.value, unit) if m else "-" for m in (one, two)]
        if cells != ["-", "-"] and not _both_nothing(one, two):
            rows.append((name, *cells, _change(one, two, unit)))
    rows.append(("bound by", _bound(a), _bound(b), ""))
    widths = [max(len(row[n]) for row in rows) for n in range(4)]
    lines = [
        f"{row[0]:{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  "
        f"{row[3]:>{widths[3]}}".rstrip()
        for row in rows
    ]
    return "\n".join([*lines, "", _verdict(a, b)]) + "\n"


def _title(summary: Summary) -> str:
    return f"{summary.program or 'program'} on {summary.target}"[:32]


def _bound(summary: Summary) -> str:
    bound = summary.bound
    return f"{bound.resource} {bound.share:.0%}" if bound.kind == "engine" else bound.kind


def _both_nothing(one, two) -> bool:
    return one is not None and two is not None and not one.value and not two.value


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
