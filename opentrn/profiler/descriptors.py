"""Metrics of transfers by who makes their descriptors: statically, by software, or by hardware.

Names and meanings after the Neuron Explorer profile schema (see `metrics`).
"""

from typing import Any

import numpy as np

from opentrn.profiler.details import Detail
from opentrn.profiler.table import DMA, Table, covered

MAKERS = {"static": "before the run", "software_dynamic": "by GpSimd", "hardware_dynamic": "by DGE"}
"""Kinds of transfers, with who makes their descriptors."""

KINDS = {
    f"{maker}_dma_{what}": (unit, f"{meaning} with descriptors made {who}")
    for what, unit, meaning in (
        ("size", "B", "bytes of transfers"),
        ("size_percent", "%", "share of the bytes of transfers"),
        ("active_time", "s", "DMA engines move bytes"),
        ("active_time_percent", "%", "share of the time in which DMA engines move bytes"),
    )
    for maker, who in MAKERS.items()
} | {
    f"dynamic_dma_{what}_percent": ("%", f"{meaning} with descriptors made during the run")
    for what, meaning in (("size", "share of the bytes of transfers"),
                          ("active_time", "share of the time in which DMA engines move bytes"))
}  # fmt: skip
"""`{metric: (unit, meaning)}`."""


def by_maker(table: Table, known: list[Detail | None], size: np.ndarray) -> dict[str, Any]:
    """The metrics of KINDS; none where no event's program is known.

    `size` is the bytes of each event; times in s.
    """
    if all(detail is None for detail in known):
        return {}
    maker = np.array(["" if d is None else d.dynamic for d in known], dtype=object)
    on, found = table.on(DMA), {}
    rows = {name: on & (maker == name.split("_")[0]) for name in MAKERS}
    rows["dynamic"] = rows["software_dynamic"] | rows["hardware_dynamic"]
    whole = float(size[on].sum())
    for name, mine in rows.items():
        nbytes, active = float(size[mine].sum()), covered(table.start[mine], table.done[mine])
        found[f"{name}_dma_size"] = int(nbytes)
        found[f"{name}_dma_size_percent"] = 100.0 * nbytes / whole if whole else 0.0
        found[f"{name}_dma_active_time"] = active * 1e-9
        share = 100.0 * active / table.total if table.total else 0.0
        found[f"{name}_dma_active_time_percent"] = share
    return {name: value for name, value in found.items() if name in KINDS}


__all__ = ["KINDS", "by_maker"]
