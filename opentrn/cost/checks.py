"""The kinds of checks a claim can need; each takes a row of `claims.toml` and returns findings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from opentrn import hw, workloads
from opentrn.base import units
from opentrn.cost.claims import (
    AGREES,
    CONTRADICTS,
    ITSELF,
    TOLERANCE,
    UNCHECKED,
    Finding,
    data,
)
from opentrn.cost.roof import roofline

Check = dict[str, Any]
Features = Mapping[str, Callable[[], tuple[bool, str]]]

_BINARY = {"kB": "KiB", "KB": "KiB", "MB": "MiB", "GB": "GiB", "TB": "TiB"}


# ------------------------------------------------------------------------------------------- words


def _machine(name: str) -> Any:
    """The machine of "chip trn2", "instance trn1.32xlarge" or "accelerator h100"."""
    kind, _, rest = name.partition(" ")
    return {"chip": hw.chip, "instance": hw.instance, "accelerator": hw.accelerator}[kind](rest)


def _fact(machine: Any, path: str) -> hw.Fact:
    """A fact; a bare name is one of the machine's main section."""
    return machine.fact(path if "." in path else f"{machine.main}.{path}")


def _cited(machine: Any, fact: hw.Fact) -> str:
    return f"{fact.source}: {machine.sources.get(fact.source, fact.source)}"


def _in(claimed: str, value: float) -> str:
    """A value in the unit the claim is written in: "2.05 TB"."""
    _, _, unit = claimed.partition(" ")
    scale = units.parse(f"1 {unit}").value if unit else 1.0
    return f"{value / scale:.4g} {unit}".strip()


def _readings(claimed: str) -> list[float]:
    """The SI values a figure may have: as written, and in binary bytes where it is of bytes."""
    number, _, unit = claimed.partition(" ")
    found = [units.parse(claimed).value]
    return [*found, units.parse(f"{number} {_BINARY[unit]}").value] if unit in _BINARY else found


def _near(a: float, b: float, within: float = TOLERANCE) -> bool:
    return abs(a / b - 1) <= within


def _far(claimed: float, true: float) -> str:
    share = claimed / true - 1
    return f"{abs(share):.1%} {'above' if share > 0 else 'below'}"


def _number(path: str) -> str:
    """A figure of the article itself: "A04.peak"."""
    claim, _, name = path.partition(".")
    return next(row["numbers"][name] for row in data()["claim"] if row["id"] == claim)


# ------------------------------------------------------------------------------------------ numbers


def quantity(check: Check) -> Iterable[Finding]:
    """A claimed figure against a fact."""
    machine, claimed = _machine(check["machine"]), check["claimed"]
    fact = _fact(machine, check["fact"])
    agrees = any(_near(reading, fact.value) for reading in _readings(claimed))
    said = f"{check['name']}: {fact.text if isinstance(fact.text, str) else fact.value}"
    if agrees:
        yield Finding(AGREES, said, "", (_cited(machine, fact),))
        return
    far = _far(units.parse(claimed).value, fact.value)
    reason = f"{check['name']} {claimed} is {far} the {said.split(': ')[1]} of {machine.name}"
    yield Finding(CONTRADICTS + fact.source, said, reason, (_cited(machine, fact),))


def total(check: Check) -> Iterable[Finding]:
    """count x each, both figures of the article, against the total it gives."""
    count, each = float(_number(check["count"])), _number(check["each"])
    claimed = check["claimed"]
    made = count * units.parse(each).value
    told = f"{count:g} x {each} = {_in(claimed, made)}"
    names = f"{check['count']}, {check['each']}"
    if _near(units.parse(claimed).value, made):
        yield Finding(AGREES, told, f"{check['name']} {claimed} is the sum of its own figures")
        return
    reason = f"{check['name']} {claimed} is not {told} ({names} of the same article)"
    yield Finding(ITSELF, told, reason, (data()["source"],))


def ratio(check: Check) -> Iterable[Finding]:
    """A claimed ratio of two facts."""
    above, below = _machine(check["above"]), _machine(check["below"])
    top, bottom = _fact(above, check["above_fact"]), _fact(below, check["below_fact"])
    value, claimed = top.value / bottom.value, float(check["claimed"])
    told = f"{check['name']}: {top.text} / {bottom.text} = {value:.2f}"
    sources = (_cited(above, top), _cited(below, bottom))
    if _near(value, claimed, check.get("about", TOLERANCE)):
        yield Finding(AGREES, told, f"{check['name']} is {value:.2f} times", sources)
    else:
        yield Finding(CONTRADICTS + top.source, told, f"{told}, not {claimed:g}", sources)


def aside(check: Check) -> Iterable[Finding]:
    """A ratio told beside the claim."""
    above, below = _machine(check["above"]), _machine(check["below"])
    top, bottom = _fact(above, check["fact"]), _fact(below, check["fact"])
    told = f"{check['name']}: {top.value / bottom.value:.2f} times"
    yield Finding("", told, "", (_cited(above, top), _cited(below, bottom)))


def more(check: Check) -> Iterable[Finding]:
    """A fact that must be at least the claimed figure."""
    machine = _machine(check["machine"])
    fact = _fact(machine, check["fact"])
    told = f"{check['name']}: {fact.text if isinstance(fact.text, str) else fact.value}"
    if fact.value >= units.parse(check["claimed"]).value:
        yield Finding(AGREES, told, "", (_cited(machine, fact),))
    else:
        reason = f"{told} is less than {check['claimed']}"
        yield Finding(CONTRADICTS + fact.source, told, reason, (_cited(machine, fact),))


# ---------------------------------------------------------------------------------- dates and words


def date(check: Check) -> Iterable[Finding]:
    """A claimed year, month or day against a date of the file."""
    fact = data()["fact"][check["fact"]]
    told = f"{check['name']}: {fact['value']}"
    if str(fact["value"]).startswith(check["claimed"]):
        yield Finding(AGREES, told, "", (fact["source"],))
    else:
        reason = f"{check['name']} {check['claimed']}, but {fact['value']}"
        yield Finding(CONTRADICTS + _who(fact), told, reason, (fact["source"],))


def _who(fact: dict[str, Any]) -> str:
    """The short name of a source of the file, or its site."""
    return fact.get("name") or re.split("[,/: ]", fact["source"])[0]


def note(check: Check) -> Iterable[Finding]:
    """A claimed word against one of the file."""
    fact = data()["fact"][check["fact"]]
    same = fact["value"] == check["claimed"]
    reason = "" if same else f"{check['name']} {check['claimed']}, but {fact['value']}"
    verdict = AGREES if same else CONTRADICTS + _who(fact)
    yield Finding(verdict, f"{check['name']}: {fact['value']}", reason, (fact["source"],))


def stated(check: Check) -> Iterable[Finding]:
    """What a source says of the claim, in a few words of the file; `agrees` or not."""
    fact = data()["fact"][check["fact"]]
    told = f"{check['name']}: {fact['value']}"
    verdict = AGREES if check["agrees"] else CONTRADICTS + _who(fact)
    yield Finding(verdict, told, told, (fact["source"],))


def note_more(check: Check) -> Iterable[Finding]:
    """A number of chips of the file, at least as claimed, with the peak they would have."""
    fact = data()["fact"][check["fact"]]
    machine = _machine(check["machine"])
    peak = _fact(machine, "peak_bf16")
    count = int(fact["value"])
    told = f"{check['name']}: {count:,}, {count * peak.value / 1e18:.0f} EFLOP/s of 16 bits"
    verdict = AGREES if count >= check["claimed"] else CONTRADICTS + _who(fact)
    yield Finding(verdict, told, "", (fact["source"], _cited(machine, peak)))


def unknown(check: Check) -> Iterable[Finding]:
    """What nothing decides."""
    yield Finding(UNCHECKED, "", f"{check['name']}: {check['why']}")


def aside_note(check: Check) -> Iterable[Finding]:
    """A remark that decides nothing."""
    yield Finding("", "", f"{check['name']}: {check['why']}")


# ---------------------------------------------------------------------------------- this package


def feature(check: Check, features: Features) -> Iterable[Finding]:
    """Whether this package does what the claim speaks of: `features` try it."""
    try_it = features.get(check["feature"])
    if try_it is None:
        reason = f"{check['name']}: not tried here; `opentrn claims` does"
        yield Finding("" if check.get("beside") else UNCHECKED, "", reason)
        return
    try:
        works, told = try_it()
    except Exception as error:  # whatever goes wrong is the answer
        works, told = False, f"failed with {type(error).__name__}: {error}".splitlines()[0]
    said = f"{check['name']}: {told}"
    if check.get("beside"):
        yield Finding("", said, said if works else "")
    elif works:
        yield Finding(AGREES, said, said)
    else:
        yield Finding(UNCHECKED, said, f"does not work here: {said}")


# ----------------------------------------------------------------------------- memory, money, speed


def fit(check: Check) -> Iterable[Finding]:
    """Whether the states of training so many parameters fit the memory of a machine."""
    machine, count = hw.instance(check["machine"]), float(check["claimed"])
    memory = machine.fact("totals.hbm")
    source = _cited(machine, memory)

    def told(name: str) -> tuple[str, float]:
        each = workloads.optimizer(name).total
        share = count * each / memory.value
        return (
            f"{name}: {each} B x {count:.0e} = {count * each / 1e12:.3g} TB of "
            f"{memory.value / 1e12:.3g} TB", share,
        )  # fmt: skip

    first, share = told(check["optimizer"])
    others = [told(name) for name in check["others"]]
    computed = "; ".join([first, *(text for text, _ in others)])
    if share <= 1:
        yield Finding(AGREES, computed, "the states of training fit", (source,))
        return
    largest = memory.value / workloads.optimizer(check["optimizer"]).total
    reason = (
        f"the states of training need {share:.1f} of the machine's memories, before activations; "
        f"the largest model that fits has {largest / 1e9:.0f} billion parameters"
    )
    yield Finding(CONTRADICTS + memory.source, computed, reason, (source,))


def _hourly(name: str, basis: str) -> hw.Price | None:
    ours = name in hw.instances()
    listed = hw.prices(name) if ours else hw.accelerator_prices(name)
    found = [p for p in listed if p.basis == basis]
    return max(found, key=lambda p: p.date) if found else None


def _peak(name: str) -> float:
    """Dense 16-bit flop/s of a whole instance."""
    if name in hw.instances():
        return float(hw.instance(name).fact("totals.peak_bf16").value)
    system = hw.accelerator(name)
    return float(system.fact("accelerator.peak_bf16").value * system.system.accelerators)


def savings(check: Check) -> Iterable[Finding]:
    """Dollars for a flop at peak, ours beside theirs, on each basis both have a price for."""
    found: list[tuple[float, str]] = []
    sources: list[str] = []
    for basis in hw.BASES:
        for mine in check["ours"]:
            for other in check["theirs"]:
                a, b = _hourly(mine, basis), _hourly(other, basis)
                if a is None or b is None:
                    continue
                saved = 1 - (a.hourly / _peak(mine)) / (b.hourly / _peak(other))
                found.append((saved, f"{mine} for {other}, {basis}"))
                sources += [str(a), str(b)]
    if not found:
        yield Finding(UNCHECKED, "", "no two prices on one basis are known")
        return
    (low, worst), (high, best) = min(found), max(found)
    claimed = units.parse(check["claimed"]).value
    told = f"{check['name']}: saves {low:.0%} ({worst}) to {high:.0%} ({best})"
    cited = tuple(dict.fromkeys(sources))
    if high >= claimed - TOLERANCE:
        enough = sum(saved >= claimed - TOLERANCE for saved, _ in found)
        reason = (
            f"{enough} of {len(found)} pairs with prices on one basis reach {claimed:.0%}, if both "
            "use the same share of their peak; the others save less"
        )
        yield Finding(AGREES, told, reason, cited)
    else:
        yield Finding(CONTRADICTS + "prices", told, f"no pair reaches {claimed:.0%}", cited)


def regions(check: Check) -> Iterable[Finding]:
    """Claimed regions against those a source lists and those with a price of a Trainium."""
    fact = data()["fact"][check["fact"]]
    priced = {
        price.region: str(price)
        for name in hw.instances() if name.startswith("trn")
        for price in hw.prices(name) if price.region != "unstated"
    }  # fmt: skip
    there = set(fact["value"]) | set(priced)
    absent = [region for region in check["claimed"] if region not in there]
    seen = ", ".join(region for region in check["claimed"] if region in there) or "none"
    more = ", ".join(sorted(there - set(check["claimed"])))
    told = f"regions with a Trainium instance or its price: {', '.join(sorted(there))}"
    reason = f"of them there are {seen}"
    reason += f", not {', '.join(absent)}" if absent else ""
    reason += f"; the claim leaves out {more}" if more else ""
    verdict = CONTRADICTS + _who(fact) if absent else AGREES
    yield Finding(verdict, told, reason, (fact["source"], *priced.values()))


def latency(check: Check) -> Iterable[Finding]:
    """The roofline of one token of a model on a machine: all weights read once, in 16 bits."""
    model, machine = workloads.model(check["model"]), hw.instance(check["machine"])
    nbytes = 2.0 * workloads.parameters(model)
    bound = roofline(0.0, nbytes / machine.chips, machine.chip)
    told = f"{check['name']}: {bound.seconds.value * 1e3:.2f} ms for {model.name} on {machine.name}"
    source = _cited(machine.chip, machine.chip.fact("chip.hbm_bandwidth"))
    yield Finding("", told, "", (source,))


def reached(check: Check) -> Iterable[Finding]:
    """A measured rate of one core as a share of what its array can do."""
    fact, chip = data()["fact"][check["fact"]], hw.chip(check["machine"])
    peak = 2.0 * chip.tensor.rows * chip.tensor.columns * chip.tensor.clock
    share = units.parse(fact["value"]).value / peak
    told = f"{check['name']}: {fact['value']} of {peak / 1e12:.1f} = {share:.0%}"
    verdict = AGREES if share >= check["least"] else CONTRADICTS + _who(fact)
    sources = (fact["source"], _cited(chip, chip.fact("tensor.clock")))
    yield Finding(verdict, told, f"{check['name']} reaches {share:.0%} of the peak", sources)


def peers(check: Check) -> Iterable[Finding]:
    """Peak rates of other systems as shares of ours."""
    machine = _machine(check["machine"])
    mine = _fact(machine, "peak_bf16")
    told, sources = [], [_cited(machine, mine)]
    for name in check["systems"]:
        system = hw.accelerator(name)
        fact = _fact(system, "peak_bf16")
        told.append(f"{system.title} {fact.value / mine.value:.2f}")
        sources.append(_cited(system, fact))
    yield Finding("", f"{check['name']}: {', '.join(told)}", "", tuple(dict.fromkeys(sources)))


KINDS: dict[str, Callable[[Check], Iterable[Finding]]] = {
    "quantity": quantity, "sum": total, "ratio": ratio, "aside": aside, "more": more, "date": date,
    "note": note, "stated": stated, "note-more": note_more,
    "unknown": unknown, "aside-note": aside_note, "fit": fit, "savings": savings,
    "regions": regions, "latency": latency, "reached": reached, "peers": peers,
}  # fmt: skip
"""The kinds, as the file names them; `feature` is the one more that needs something to try."""
