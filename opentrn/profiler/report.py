"""The summary as a page of text for people: at most 100 columns, readable without a manual."""

import os
import textwrap
from collections.abc import Iterator

from opentrn.base import bytes_text, flops_text, rate_text, seconds_text
from opentrn.profiler.bounds import RESOURCES
from opentrn.profiler.summary import Summary
from opentrn.profiler.table import DMA

WIDTH = 100
BAR = 24
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_KINDS = {
    "engine": "bound by an engine",
    "dma": "bound by DMA",
    "latency": "bound by latency",
    "dependency": "bound by dependencies",
    "none": "empty",
}


def report(summary: Summary) -> str:
    """The whole page: time, what bounds it, engines, DMA, arithmetic, memory, lines, advice."""
    parts = [_head(summary), _engines(summary), _facts(summary), _lines(summary),
             _advice(summary), _findings(summary)]  # fmt: skip
    return "\n\n".join("\n".join(part) for part in map(list, parts) if part) + "\n"


def bar(share: float, width: int = BAR) -> str:
    """A bar of `width` columns, filled in eighths of a column."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def shares_text(shares, least: float = 0.005) -> str:
    """`62 % dma, 30 % tensor`: shares of 1, largest first, without those below `least`."""
    rows = sorted(shares.items(), key=lambda row: (-row[1], row[0]))
    return ", ".join(f"{share:.0%} {name}".replace("%", " %") for name, share in rows if
                     share >= least)  # fmt: skip


def _wrapped(first: str, text: str, indent: int) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=first.ljust(indent), subsequent_indent=" " * indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _head(summary: Summary) -> Iterator[str]:
    time = f"device time {seconds_text(summary['total_time'])}"
    name = f"{summary.program or 'program'} on {summary.target}"
    room = WIDTH - len(time) - 2
    yield f"{_cut(name, room):{room}}  {time}"
    bound = summary.bound
    yield from _wrapped("", f"{_KINDS[bound.kind]}: {bound.reason}".replace("%", " %"), 2)
    for fact, value in summary.assumed.items():
        yield f"assumed for this run: {fact} = {value}"
    if summary.grades:
        yield f"this time rests on facts that are {shares_text(summary.grades, 0.0005)}"


def _engines(summary: Summary) -> Iterator[str]:
    total = summary["total_time"]
    path = summary.path
    yield f"{'':8} {'active':{BAR}} {'':7} {'time':>9}  {'count':>7}  idle, and why"
    for lane in RESOURCES:
        stem = DMA if lane == DMA else f"{lane}_engine"
        share = summary[f"{stem}_active_time_percent"] / 100
        count = summary[f"{DMA}_transfer_count" if lane == DMA else f"{stem}_instruction_count"]
        idle = summary.idle.get(lane, {})
        why = shares_text({c: s / total for c, s in idle.items()}) if total else ""
        head = (
            f"{lane:8} {bar(share)} {100 * share:5.1f} % "
            f"{seconds_text(summary[f'{stem}_active_time']) if count else '-':>9}  {count:7,}  "
        )
        yield (head + _cut(why, WIDTH - len(head))).rstrip()
    if path:
        yield from _wrapped("critical path", shares_text(path), 15)


def _facts(summary: Summary) -> Iterator[str]:
    get = summary.flat().get
    facts = {
        "arithmetic": f"{flops_text(get('model_flops'), 'FLOP')} on the Tensor Engine: MFU "
        f"{get('mfu_estimated_percent'):.1f} %, HFU {get('hfu_estimated_percent'):.1f} %, "
        f"{flops_text(get('transpose_flops'), 'FLOP')} of transposes",
        "roofline": _roofline(summary),
        "DMA": f"{get('dma_transfer_count'):,} transfers of "
        f"{bytes_text(get('dma_transfer_average_bytes'))} on average, "
        f"{rate_text(get('dma_bandwidth'))} while active: "
        f"{get('dma_bandwidth_percent'):.0f} % of the engines' rate",
        "HBM": f"read {bytes_text(get('hbm_read_bytes'))}, written "
        f"{bytes_text(get('hbm_write_bytes'))}, "
        f"MBU {get('mbu_estimated_percent'):.1f} % of a stack{_again(summary)}",
        "on chip": _on_chip(summary),
    }
    if get("device_run_time") is not None:
        facts["around it"] = (
            f"a run on the device lasts {seconds_text(get('device_run_time'))} with start and end; "
            f"the first one also loads libraries, {seconds_text(get('library_load_time'))}; the "
            f"host adds {seconds_text(get('host_launch_time'))} to each call"
        )
    for name, text in facts.items():
        yield from _wrapped(name, text, 15)


def _roofline(summary: Summary) -> str:
    get = summary.flat().get
    intensity, ridge = get("mm_arithmetic_intensity"), get("peak_flops_bandwidth_ratio")
    if intensity is None:
        return f"no HBM traffic; the ridge is at {ridge:,.0f} FLOP/B"
    if not intensity:
        least, share = seconds_text(get("roofline_time")), get("roofline_percent")
        return f"no matrix products; HBM traffic takes at least {least}, {share:.0f} % of this time"
    side = "memory" if intensity < ridge else "compute"
    return (
        f"{intensity:,.1f} FLOP/B, {side} side of the ridge at {ridge:,.0f}; at best "
        f"{seconds_text(get('roofline_time'))}, {get('roofline_percent'):.0f} % of this time"
    )


def _again(summary: Summary) -> str:
    """What is read from HBM more than once, and most of it."""
    if not summary.reloads:
        return ""
    most = summary.reloads[0]
    total = summary["hbm_reload_bytes"]
    return f"; {bytes_text(total)} of the reads are reloads, most of `{most.name}`"


def _on_chip(summary: Summary) -> str:
    get = summary.flat().get
    found = []
    if "sbuf_peak_bytes" in summary:
        share = get("sbuf_peak_percent")
        found.append(f"SBUF peak {bytes_text(get('sbuf_peak_bytes'))} ({share:.0f} % of usable)")
    if "psum_peak_banks" in summary:
        found.append(f"PSUM peak {get('psum_peak_banks')} banks")
    saved, again = (get(f"spill_{way}_bytes") for way in ("save", "reload"))
    found.append(f"spills {bytes_text(saved)}" + (f" out, {bytes_text(again)} in" if again else ""))
    if "throttle_time" in summary:
        found.append(f"throttled {seconds_text(get('throttle_time'))}")
    return ", ".join(found)


def _lines(summary: Summary) -> Iterator[str]:
    total = summary["total_time"]
    if not summary.lines or not total:
        return
    yield f"{'path':>6}  {'busy':>9}  {'count':>7}  {'on':6}  source"
    for line in summary.lines:
        share = f"{line.path / total:.1%}".replace("%", " %")
        head = f"{share:>7} {seconds_text(line.busy):>9}  {line.count:7,}  {line.resource:6}  "
        text = f"{line.place}: {line.where.text}" if line.where and line.where.text else line.place
        yield head + _cut(text, WIDTH - len(head))


def _advice(summary: Summary) -> Iterator[str]:
    for one in summary.advice:
        gain = f", about {one.predicted_gain:.0%} less time".replace("%", " %")
        place = f" ({one.line}{gain if one.predicted_gain >= 0.01 else ''})" if one.line else ""
        yield from _wrapped("advice", f"{one.seen}: {one.remedy}{place}", 15)


def _findings(summary: Summary) -> Iterator[str]:
    for one in summary.findings:
        at = one["at"]
        place = f" ({os.path.basename(at['file'])}:{at['line']})" if at else ""
        fault = f": {one['fault']} on the chip" if one["fault"] else ""
        if one["fault"] == "unvalidated":
            fault = ""
        yield from _wrapped("noticed", f"{one['what']}{place}{fault}", 15)


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(0, room - 1)] + "…"
