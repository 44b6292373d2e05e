"""The time of one collective as an Estimate: `comm.time` with its grades.

Planning over thousands of group sizes at once is `comm.tiers`; this is for one collective on
one named machine, with the algorithms, links and thresholds of `comm`.
"""

from __future__ import annotations

from opentrn import comm
from opentrn.cost.estimate import Estimate


def collective_time(
    collective: str,
    nbytes: float,
    ranks: int,
    on: str = "trn2.48xlarge",
    *,
    nodes: int = 1,
    algorithm: str | None = None,
    lnc: int | None = None,
) -> Estimate:
    """Seconds of a collective of `nbytes` (the larger buffer of a rank) among the first `ranks`.

    Raises what `comm.place` and `comm.time` raise.

    Source: `comm.time`.
    """
    timing = comm.time(collective, nbytes, comm.place(ranks, on, nodes, lnc), algorithm)
    return Estimate(timing.seconds, "s", timing.grades)
