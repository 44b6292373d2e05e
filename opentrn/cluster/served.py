"""What serving some traffic was like: latencies, throughput, and objectives kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from opentrn.base import seconds_text
from opentrn.cost import table_text
from opentrn.plan import styled

QUANTILES = (0.5, 0.9, 0.99)
LATENCIES = (("first token", "ttft"), ("each later token", "tpot"), ("whole answer", "latency"))
"""What latencies are called, and their columns."""


@dataclass(frozen=True, eq=False)
class Served:
    """Requests of the simulated replicas, in the order of arrival within each.

    `ttft` is seconds from arrival to the first token, `tpot` seconds for each later token (NaN for
    answers of one), `latency` seconds to the end. Rates are of all `replicas`. `batch` is the mean
    number of answers made at once, `busy` the share of time replicas worked.
    """

    name: str
    replicas: int
    simulated: int
    arrival: np.ndarray
    ttft: np.ndarray
    tpot: np.ndarray
    latency: np.ndarray
    requests_per_s: float
    tokens_per_s: float
    batch: float
    busy: float
    in_system: float
    ttft_s: float | None
    tpot_s: float | None

    @classmethod
    def of(cls, service: Any, served: Iterable[tuple], simulated: int, ttft_s: float | None,
           tpot_s: float | None) -> Served:  # fmt: skip
        """Put the replicas together: `simulated` of them, those that idled are not in `served`."""
        rows = list(served)
        ttft = np.concatenate([begun - part.arrival for _, part, begun in rows])
        latency = np.concatenate([one.end - part.arrival for one, part, _ in rows])
        answers = np.concatenate([part.answer for _, part, _ in rows])
        begun = np.concatenate([begun for _, _, begun in rows])
        end = np.concatenate([one.end for one, _, _ in rows])
        with np.errstate(invalid="ignore"):
            tpot = np.where(answers > 1, (end - begun) / np.maximum(answers - 1, 1), np.nan)
        begin = min(float(part.arrival[0]) for _, part, _ in rows)
        span = max(float(one.end.max()) for one, _, _ in rows) - begin
        scale = service.replicas / simulated / span if span else 0.0
        made = sum(one.made for one, _, _ in rows)
        return cls(
            arrival=np.concatenate([part.arrival for _, part, _ in rows]),
            name=service.name, replicas=service.replicas, simulated=simulated, ttft=ttft,
            tpot=tpot, latency=latency, requests_per_s=len(ttft) * scale,
            tokens_per_s=float(answers.sum()) * scale,
            batch=sum(one.batches for one, _, _ in rows) / made if made else 1.0,
            busy=sum(one.busy for one, _, _ in rows) / simulated / span if span else 0.0,
            in_system=float(latency.sum()) * scale, ttft_s=ttft_s, tpot_s=tpot_s,
        )  # fmt: skip

    @property
    def kept(self) -> np.ndarray:
        """For each request whether it kept every objective that was given."""
        good = np.ones(len(self.ttft), dtype=bool)
        if self.ttft_s is not None:
            good &= self.ttft <= self.ttft_s
        if self.tpot_s is not None:
            good &= ~(self.tpot > self.tpot_s)
        return good

    @property
    def attainment(self) -> float:
        """The share of requests that kept the objectives."""
        return float(self.kept.mean())

    @property
    def overloaded(self) -> bool:
        """Whether waits grow with the run: the last quarter waits over twice as long as the first.

        Then more arrives than can be served, and every latency depends on how long the run is.
        """
        waits = self.ttft[np.argsort(self.arrival, kind="stable")]
        quarter = len(waits) // 4
        return quarter > 10 and waits[-quarter:].mean() > 2 * waits[:quarter].mean()

    def quantiles(self, name: str) -> dict[str, float]:
        """Median, 90 and 99 % quantiles and the mean of "ttft", "tpot" or "latency", in seconds."""
        column = getattr(self, name)
        column = column[~np.isnan(column)]
        if not len(column):
            return {}
        found = {f"p{q * 100:.0f}": float(np.quantile(column, q)) for q in QUANTILES}
        return found | {"mean": float(column.mean())}

    def json(self) -> dict[str, Any]:
        """As the command prints it with --json."""
        return {
            "name": self.name, "replicas": self.replicas, "simulated_replicas": self.simulated,
            "requests": len(self.ttft), "ttft_s": self.quantiles("ttft"),
            "tpot_s": self.quantiles("tpot"), "latency_s": self.quantiles("latency"),
            "requests_per_s": self.requests_per_s, "tokens_per_s": self.tokens_per_s,
            "slo": {"ttft_s": self.ttft_s, "tpot_s": self.tpot_s, "attainment": self.attainment,
                    "goodput_requests_per_s": self.attainment * self.requests_per_s},
            "overloaded": bool(self.overloaded), "mean_batch": self.batch, "busy": self.busy,
            "mean_in_system": self.in_system,
        }  # fmt: skip

    def _repr_html_(self) -> str:
        """What a notebook shows: latencies as a table and as curves."""
        from opentrn.cluster.page import serving_body  # which draws what this module holds
        return styled(serving_body(self))

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Latencies as a table: its head, and a row for each."""
        found = [(title, self.quantiles(name)) for title, name in LATENCIES]
        head = next((tuple(each) for _, each in found if each), ())
        rows = [(title, *map(seconds_text, each.values())) for title, each in found if each]
        return ("", *head), rows

    def notes(self) -> list[str]:
        """Rates and objectives in words."""
        lines = [f"{self.requests_per_s:,.2f} requests/s, {self.tokens_per_s:,.0f} tokens/s, "
                 f"{self.batch:.1f} answers at once, busy {self.busy:.0%}, "
                 f"{self.in_system:,.1f} requests in it on average"]  # fmt: skip
        asked = [f"{n} ≤ {seconds_text(s)}" for n, s in (("first token", self.ttft_s),
                 ("each later", self.tpot_s)) if s is not None]  # fmt: skip
        if asked:
            lines.append(f"{self.attainment:.1%} of requests keep {' and '.join(asked)}")
        return lines

    def __str__(self) -> str:
        head = (f"{self.name}, {self.replicas:,} replicas ({self.simulated} simulated), "
                f"{len(self.ttft):,} requests")  # fmt: skip
        return "\n".join([head, "", table_text(*self.table()), "", *self.notes()])
