"""What a search returns: plans with their numbers, others with reasons; as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from opentrn.base.units import bytes_text, dollars_text, seconds_text
from opentrn.cost import COMMUNICATION, Platform, Split, StepTime


@dataclass(frozen=True)
class Plan:
    """One way to run a job: the split, its step time and its memory, and what the job costs.

    `hours` and `cost_usd` are for the whole run when its tokens are known, else for one step
    (training) or a million answered tokens (serving); `cost_for` says which. `extra` holds what
    belongs to one kind of job (TTFT and throughput of serving). `energy_kwh` is what the chips take
    at their design power over that time, hosts and cooling not counted; None without a figure.
    """

    split: Split
    step: StepTime
    machine: str
    lnc: int
    count: int
    hours: float
    cost_usd: float | None
    cost_for: str
    price: str = ""
    extra: Mapping[str, float] = field(default_factory=dict)
    energy_kwh: float | None = None
    energy_grade: str = ""

    @property
    def step_time_s(self) -> float:
        """Seconds of one step."""
        return float(self.step.seconds)

    @property
    def mfu(self) -> float:
        """Share of all devices' peak that the model's own flops make up."""
        return self.step.mfu

    def json(self) -> dict[str, Any]:
        """As the command prints it with --json."""
        parts = {name: float(part) for name, part in self.step.parts.items()}
        held = dict(self.step.memory)
        held |= {"total": sum(held.values()), "capacity": self.step.capacity}
        return {
            "mfu": self.mfu, "step_time_s": self.step_time_s, "cost_usd": self.cost_usd,
            "cost_for": self.cost_for, "hours": self.hours, "price": self.price,
            "split": {**self.split.row(), "lnc": self.lnc, "devices": self.split.devices},
            "memory_per_core": held, "breakdown": parts,
            "grades": dict(self.step.seconds.shares), "machine": self.machine,
            "count": self.count, "energy_kwh": self.energy_kwh,
            "energy_grade": self.energy_grade, **self.extra,
        }  # fmt: skip

    @property
    def energy(self) -> str:
        """The energy in words."""
        if self.energy_kwh is None:
            return "no figure of the chip's power is known"
        told = f"{self.energy_kwh:,.4g} kWh {self.cost_for}, chips alone at their design power"
        return f"{told} ({self.energy_grade})"

    def breakdown(self) -> str:
        """The parts of the step as shares, largest first."""
        whole = self.step_time_s
        rows = sorted(self.step.parts.items(), key=lambda row: -float(row[1]))
        shown = [(n, float(p) / whole) for n, p in rows if float(p) / whole >= 0.005]
        return ", ".join(
            f"{n}{' communication' if n in COMMUNICATION else ''} {s:.0%}" for n, s in shown
        )

    def __str__(self) -> str:
        used = sum(self.step.memory.values())
        cost = dollars_text(self.cost_usd) if self.cost_usd is not None else "no price known"
        return (
            f"{self.split}: {seconds_text(self.step_time_s)} a step, MFU {self.mfu:.1%}, "
            f"{bytes_text(used)} of {bytes_text(self.step.capacity)} a core, {cost} "
            f"{self.cost_for}"
        )


def energy(where: Platform, count: int, hours: float) -> dict[str, Any]:
    """`energy_kwh` of the chips of `count` machines over so many hours, and how sure it is."""
    if not where.watts:
        return {}
    taken = where.watts * where.chips * count * hours / 1000.0
    return {"energy_kwh": taken, "energy_grade": where.grade("power")}


@dataclass(frozen=True)
class Rejected:
    """A way that was not chosen, and why: `reason` is one sentence, `kind` a word for it.

    Kinds: "memory" (does not fit), "slower", "illegal", "deadline", "precision".
    """

    choice: str
    kind: str
    reason: str
    split: Split | None = None
    slower: float | None = None

    def json(self) -> dict[str, Any]:
        """As the command prints it with --json."""
        return {
            "choice": self.choice, "kind": self.kind, "reason": self.reason,
            "slower": self.slower, "split": self.split.row() if self.split else None,
        }  # fmt: skip

    def __str__(self) -> str:
        return f"{self.choice}: {self.reason}"


@dataclass(frozen=True)
class Plans:
    """The best plans, best first, and why others lost.

    `searched` counts the splits: legal ones, those that fit, those passed over because a lower
    bound of theirs is slower than a plan already found. `gap` is how much faster than the best
    an unseen plan could be at most; 0, since nothing else is left out. `assumptions` say what was
    not asked; `step_tokens` are the tokens of one training step.
    """

    plans: tuple[Plan, ...]
    rejected: tuple[Rejected, ...]
    searched: Mapping[str, int]
    gap: float
    assumptions: tuple[str, ...]
    legal: Mapping[str, tuple[int, ...]]
    step_tokens: int = 0

    def __len__(self) -> int:
        return len(self.plans)

    def __iter__(self) -> Iterator[Plan]:
        return iter(self.plans)

    def __getitem__(self, place: int) -> Plan:
        return self.plans[place]

    @property
    def best(self) -> Plan:
        """The first."""
        return self.plans[0]

    def _repr_html_(self) -> str:
        """What a notebook shows: a table, the step breakdown and the memory map."""
        from opentrn.plan.page import fragment  # which draws what this module holds

        return fragment(self)

    def json(self) -> dict[str, Any]:
        """As the command prints it with --json."""
        return {
            "plans": [one.json() for one in self.plans],
            "rejected": [one.json() for one in self.rejected],
            "searched": dict(self.searched), "gap": self.gap,
            "assumptions": list(self.assumptions),
            "legal": {name: list(values) for name, values in self.legal.items()},
        }  # fmt: skip

    def __str__(self) -> str:
        best = self.best
        lines = [f"best of {self.searched['legal']:,} splits on {best.count} x {best.machine}:"]
        for number, one in enumerate(self.plans, 1):
            lines += [f"{number}. {one}", f"   {one.breakdown()}"]
        held = [f"{n} {bytes_text(b)}" for n, b in best.step.memory.items() if b > 0]
        shares = ", ".join(f"{s:.0%} {g}" for g, s in best.step.seconds.grade_shares)
        lines += [f"memory of a core: {', '.join(held)}", f"the time rests on: {shares}"]
        lines += [f"energy: {best.energy}"]
        lines += [f"legal {n}: {', '.join(map(str, v))}" for n, v in self.legal.items()]
        lines += ["why not:"] + [f"  {one}" for one in self.rejected]
        passed = self.searched.get("passed over", 0)
        told = "every legal split was looked at"
        if passed:
            told += f", or ({passed:,}) proven slower by a lower bound"
        lines += [told, *(f"assumed: {one}" for one in self.assumptions)]
        return "\n".join(lines)
