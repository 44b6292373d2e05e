"""What a search returns: plans with their numbers, others with reasons; as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from opentrn.base.units import bytes_text, dollars_text, seconds_text
from opentrn.cost import COMMUNICATION, Platform, Split, StepTime, table_text
from opentrn.plan.legal import CONTEXTS
from opentrn.plan.space import MOST_CHUNKS, MOST_SEQUENCES

DAY, HOUR = 86400.0, 3600.0


def time_text(seconds: float) -> str:
    """A time of a run: days from two days on."""
    return f"{seconds / DAY:,.4g} days" if seconds >= 2 * DAY else seconds_text(seconds)


def energy_text(kilowatt_hours: float) -> str:
    """An amount of energy: `119 Wh`, `3,975 MWh`."""
    steps = ((1e3, "MWh"), (1.0, "kWh"), (1e-3, "Wh"))
    size, unit = next((s for s in steps if kilowatt_hours >= s[0]), steps[-1])
    return f"{kilowatt_hours / size:,.4g} {unit}"


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
        told = f"{energy_text(self.energy_kwh)} {self.cost_for}, chips alone at their design power"
        return f"{told} ({self.energy_grade})"

    @property
    def served(self) -> bool:
        """Whether it is a plan of serving."""
        return "tpot_s" in self.extra

    @property
    def used(self) -> float:
        """Bytes of the fullest core."""
        return sum(self.step.memory.values())

    @property
    def cost(self) -> str:
        """Dollars, or that no price is known."""
        return "no price known" if self.cost_usd is None else dollars_text(self.cost_usd)

    @property
    def grades(self) -> str:
        """The grades its time rests on, with their shares from half a percent on."""
        shares = self.step.seconds.grade_shares
        return ", ".join(f"{share:.0%} {grade}" for grade, share in shares if share >= 0.005)

    @property
    def basis(self) -> str:
        """The basis of its price, or a dash."""
        return self.price.split(", ")[1] if self.price else "-"

    def degrees(self, lnc: bool) -> str:
        """How the devices are divided, with what else matters for this kind of job."""
        shown = self.split.degrees if self.served else str(self.split)
        return f"{shown}, LNC {self.lnc}" if lnc else shown

    def __str__(self) -> str:
        of = f"{bytes_text(self.used)} of {bytes_text(self.step.capacity)} a core"
        if self.served:
            told = (f"{self.extra['batch']:,.0f} at once, first token "
                    f"{seconds_text(self.extra['ttft_s'])}, each {seconds_text(self.step_time_s)}, "
                    f"{self.extra['tokens_per_s']:,.0f} tokens/s")  # fmt: skip
        else:
            told = f"{seconds_text(self.step_time_s)} a step, MFU {self.mfu:.1%}"
        return f"{self.degrees(self.lnc > 1)}: {told}, {of}, {self.cost} {self.cost_for}"


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

    def summary(self) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
        """The plans as a table: its head, and a row for each."""
        per, lnc = self.best.cost_for, any(one.lnc > 1 for one in self.plans)
        rows: list[tuple[object, ...]] = []
        for number, one in enumerate(self.plans, 1):
            shares = (f"{one.mfu:.1%}", bytes_text(one.used))
            if one.served:
                requests = one.extra.get("cost_usd_per_million_requests")
                rows.append((
                    number, one.degrees(lnc), f"{one.extra['batch']:,.0f}",
                    seconds_text(one.extra["ttft_s"]), seconds_text(one.step_time_s),
                    f"{one.extra['tokens_per_s']:,.0f}", *shares, one.cost,
                    "" if requests is None else dollars_text(requests),
                ))  # fmt: skip
            else:
                run = [] if per == "a step" else [time_text(one.hours * HOUR)]
                rows.append((number, one.degrees(lnc), seconds_text(one.step_time_s), *shares, *run,
                             one.cost))  # fmt: skip
        if self.best.served:
            return ("", "split", "at once", "first token", "each token", "tokens/s", "MFU",
                    "a core", "$ / M tokens", "$ / M requests"), rows  # fmt: skip
        run = () if per == "a step" else ("time",)
        return ("", "split", "step", "MFU", "a core", *run, f"cost {per}"), rows

    def parts(self) -> str:
        """Seconds of a step and bytes of a core by kind, a column for each plan."""
        head = ("", *(str(number) for number in range(1, len(self.plans) + 1)))
        steps = [one.step.parts for one in self.plans]
        times = [
            (part_name(name), *(_share(float(part[name]), one.step_time_s)
                            for part, one in zip(steps, self.plans, strict=True)))
            for name in steps[0] if any(float(part[name]) > 0 for part in steps)
        ]  # fmt: skip
        held = [
            (name, *(bytes_text(one.step.memory[name]) for one in self.plans))
            for name in self.best.step.memory
            if any(one.step.memory[name] > 0 for one in self.plans)
        ]
        held.append(("there are", *(bytes_text(one.step.capacity) for one in self.plans)))
        return "\n".join([
            table_text(("seconds of a step", *head[1:]), times),
            "", table_text(("bytes of a core", *head[1:]), held),
        ])  # fmt: skip

    def __str__(self) -> str:
        best = self.best
        head, rows = self.summary()
        lines = [
            f"best of {self.searched['legal']:,} splits on {best.count} x {best.machine}:",
            table_text(head, rows, left=(0, 1)), "", self.parts(), "",
            f"the time of 1 rests on: {best.grades}", f"energy of 1: {best.energy}",
            f"price: {best.price or 'none known'}",
        ]  # fmt: skip
        lines += [f"legal {n}: {', '.join(map(str, v))}" for n, v in self.legal.items()]
        why = table_text(("why not", ""), ((r.choice, r.reason) for r in self.rejected), (0, 1))
        lines += ["", why, ""] if self.rejected else []
        passed = self.searched.get("passed over", 0)
        told = "every legal split was looked at"
        if passed:
            told += f", or ({passed:,}) proven slower by a lower bound"
        if not best.served:
            told += (
                f": tensor parallelism within fast links, context up to {CONTEXTS[-1]}, "
                f"micro-batches up to {MOST_SEQUENCES}, chunks up to {MOST_CHUNKS}"
            )
        lines += [told, *(f"assumed: {one}" for one in self.assumptions)]
        return "\n".join(lines)


def part_name(name: str) -> str:
    """What a part of a step is called: communication says so."""
    return f"{name} communication" if name in COMMUNICATION else name


def _share(seconds: float, whole: float) -> str:
    return f"{seconds_text(seconds)} {seconds / whole:4.0%}"
