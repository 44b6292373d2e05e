"""Facts of a chip refitted to times somebody measured, and how well that would have predicted them.

Only facts that nobody states are moved (grades fitted and assumed), and few of them: at most one
for every three measurements that are used, chosen one after another by what each explains.  The
fit is least squares in logarithms, so that all errors count by ratio:

    sum over measurements of log(predicted / measured)^2  +  PRIOR * sum over facts of log(scale)^2

The second sum is what keeps a fact that hardly matters near its published value.  The error to
believe is the cross-validated one: each measurement predicted by a fit that did not see it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from opentrn.base import UsageError, declare
from opentrn.hw import Chip, Fact, variant

declare(
    "cost.calibrate",
    "Too little, or nothing usable, to calibrate with.",
    rule="at least three measurements to fit, each a positive time, and facts that are fitted or "
    "assumed",
    fix="measure more kernels; `opentrn show <chip>` prints the grade of every fact",
)

USES = ("fit", "check")
MOVABLE = ("fitted", "assumed")
SECTIONS = ("tensor", "vector", "scalar", "gpsimd", "dma", "semaphore", "launch")
MOST_FACTS = 4
ROWS_PER_FACT = 3
FOLDS = 5
LIMIT = math.log(4.0)  # a fact moves by at most this factor, up or down

# As if each fact were known to a factor of two and each measurement to 10 %.
PRIOR = (math.log(1.1) / math.log(2.0)) ** 2
_STEP = math.log(1.1)
_ROUNDS = 4
_LEAST_GAIN = 0.02  # of the sum of squares, for one more fact

Predict = Callable[[Chip], Sequence[float]]


@dataclass(frozen=True)
class Sample:
    """One measured time in seconds; `use` is "fit", or "check" for one that is only compared."""

    name: str
    measured: float
    use: str = "fit"


@dataclass(frozen=True)
class Change:
    """A fact before and after, as text with its unit; `setting` is what `--set` takes."""

    fact: str
    before: str
    after: str
    setting: str


@dataclass(frozen=True)
class Calibration:
    """The refitted chip, what changed, and errors as shares of the measured times.

    `before`, `after` and `cross` have an entry for each sample to fit (`cross` predicted by a fit
    without it), `checked_before` and `checked` one for each sample to check.
    """

    chip: Chip
    changes: tuple[Change, ...]
    fitted: tuple[Sample, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    cross: tuple[float, ...]
    checks: tuple[Sample, ...]
    checked_before: tuple[float, ...]
    checked: tuple[float, ...]


def movable(chip: Chip) -> list[Fact]:
    """The facts a calibration may move: times and cycles of engines that nobody states."""
    return [
        fact
        for fact in chip
        if fact.grade in MOVABLE
        and fact.unit in ("s", "cycle")
        and fact.path.partition(".")[0] in SECTIONS
        and fact.path != "launch.graph"  # the host's, not the device's
        and fact.value > 0
    ]


def calibrate(
    chip: Chip, samples: Sequence[Sample], predict: Predict, facts: Sequence[str] = ()
) -> Calibration:
    """Refit `facts` of `chip` (default: those that explain most) to the samples.

    `predict(chip)` gives seconds for each sample, in their order.  Raises UsageError
    `cost.calibrate`, UnknownNameError `hw.fact`, and what `predict` raises.
    """
    own = [n for n, s in enumerate(samples) if s.use == "fit"]
    _check(chip, samples, own, facts)
    fit = _Fit(chip, np.array([s.measured for s in samples]), predict)
    chosen = tuple(facts) or fit.chosen(own)
    scales = fit.fitted(chosen, own)
    cross = {}
    folds = [own[k::FOLDS] for k in range(min(FOLDS, len(own)))]
    for fold in folds:
        left = [n for n in own if n not in fold]
        # The choice of facts is part of the fit, so it is made again without the fold.
        seen = tuple(facts) or fit.chosen(left)
        errors = fit.errors(seen, fit.fitted(seen, left))
        cross.update((n, errors[n]) for n in fold)
    before, after = fit.errors((), np.zeros(0)), fit.errors(chosen, scales)
    checks = [n for n, s in enumerate(samples) if s.use == "check"]
    return Calibration(
        fit.chip(chosen, scales),
        tuple(fit.change(fact, scale) for fact, scale in zip(chosen, scales, strict=True)),
        tuple(samples[n] for n in own),
        *(tuple(float(errors[n]) for n in own) for errors in (before, after, cross)),
        tuple(samples[n] for n in checks),
        *(tuple(float(errors[n]) for n in checks) for errors in (before, after)),
    )


def _check(chip: Chip, samples: Sequence[Sample], own: list[int], facts: Sequence[str]) -> None:
    def refuse(what: str) -> UsageError:
        return UsageError(what, code="cost.calibrate")

    for sample in samples:
        if not (sample.measured > 0.0 and math.isfinite(sample.measured)):
            raise refuse(f"{sample.name}: {sample.measured} s is no time")
        if sample.use not in USES:
            raise refuse(f"{sample.name}: use is {sample.use!r}, not one of {', '.join(USES)}")
    if len(own) < ROWS_PER_FACT:
        told = "1 measurement" if len(own) == 1 else f"{len(own)} measurements"
        raise refuse(f"{told} to fit, at least {ROWS_PER_FACT} are needed")
    if len(facts) * ROWS_PER_FACT > len(own):
        raise refuse(f"{len(facts)} facts and {len(own)} measurements: one fact for every three")
    known = {fact.path for fact in movable(chip)}
    for path in facts:
        if path not in known:
            fact = chip.fact(path)
            raise refuse(f"{path} of {chip.name} is {fact.grade} ({fact.text}) and is not moved")


class _Fit:
    """Predictions of one set of samples under scaled facts, each asked for once."""

    def __init__(self, chip: Chip, measured: np.ndarray, predict: Predict):
        self.base, self.measured, self.predict = chip, measured, predict
        self.known: dict[tuple[str, ...], np.ndarray] = {}
        self.slopes: dict[str, np.ndarray] = {}

    def setting(self, fact: str, scale: float) -> str:
        """The fact at exp(`scale`) times its value, as people write it; cycles are whole."""
        known = self.base.fact(fact)
        value = known.value * math.exp(scale)
        text = f"{value * 1e9:.6g} ns" if known.unit == "s" else f"{max(1, round(value))} cycle"
        return f"{fact}={text}"

    def chip(self, facts: Sequence[str], scales: np.ndarray) -> Chip:
        """The chip with its facts scaled."""
        return variant(self.base, map(self.setting, facts, scales))

    def change(self, fact: str, scale: float) -> Change:
        """What is told of one fact."""
        text = self.setting(fact, scale)
        _, _, after = text.partition("=")
        return Change(fact, self.base.fact(fact).text, after, f"{self.base.name}.{text}")

    def logs(self, facts: Sequence[str], scales: np.ndarray) -> np.ndarray:
        """log(predicted / measured) of every sample."""
        key = tuple(map(self.setting, facts, scales))
        if key not in self.known:
            predicted = np.asarray(self.predict(self.chip(facts, scales)), float)
            self.known[key] = np.log(predicted / self.measured)
        return self.known[key]

    def errors(self, facts: Sequence[str], scales: np.ndarray) -> np.ndarray:
        """Errors as shares of what was measured."""
        return np.expm1(self.logs(facts, scales))

    def slope(self, fact: str) -> np.ndarray:
        """How the logarithms move with the fact's, at its published value."""
        if fact not in self.slopes:
            moved = self.logs((fact,), np.array([_STEP]))
            self.slopes[fact] = (moved - self.logs((), np.zeros(0))) / _STEP
        return self.slopes[fact]

    def chosen(self, own: list[int]) -> tuple[str, ...]:
        """Facts added one by one, each time the one that explains most, while that is worth it."""
        left = [fact.path for fact in movable(self.base)]
        base = self.logs((), np.zeros(0))[own]
        most = min(MOST_FACTS, len(own) // ROWS_PER_FACT)
        chosen: list[str] = []
        best = float(base @ base)
        while left and len(chosen) < most:
            tried = {fact: self._linear([*chosen, fact], base, own) for fact in left}
            fact = min(tried, key=tried.__getitem__)
            if tried[fact] >= best * (1.0 - _LEAST_GAIN):
                break
            chosen.append(fact)
            left.remove(fact)
            best = tried[fact]
        return tuple(chosen)

    def _linear(self, facts: list[str], base: np.ndarray, own: list[int]) -> float:
        """The objective of the best small step in these facts, were predictions linear in them."""
        slopes = np.stack([self.slope(fact)[own] for fact in facts], axis=1)
        step = _solved(slopes, base, np.zeros(len(facts)))
        rest = base + slopes @ step
        return float(rest @ rest + PRIOR * step @ step)

    def fitted(self, facts: Sequence[str], own: list[int]) -> np.ndarray:
        """Logarithms of the scales, by Gauss-Newton; a step that does not help is halved."""
        scales = np.zeros(len(facts))
        if not facts:
            return scales
        best = self._objective(facts, scales, own)
        for _ in range(_ROUNDS):
            base = self.logs(facts, scales)[own]
            slopes = np.stack([
                (self.logs(facts, scales + _STEP * unit)[own] - base) / _STEP
                for unit in np.eye(len(facts))
            ], axis=1)  # fmt: skip
            step = _solved(slopes, base, scales)
            for part in (1.0, 0.5, 0.25):
                tried = np.clip(scales + part * step, -LIMIT, LIMIT)
                found = self._objective(facts, tried, own)
                if found < best:
                    scales, best = tried, found
                    break
            else:
                break
        return scales

    def _objective(self, facts: Sequence[str], scales: np.ndarray, own: list[int]) -> float:
        rest = self.logs(facts, scales)[own]
        return float(rest @ rest + PRIOR * scales @ scales)


def _solved(slopes: np.ndarray, base: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The step that makes the linearised objective least."""
    matrix = slopes.T @ slopes + PRIOR * np.eye(len(scales))
    return np.linalg.solve(matrix, -(slopes.T @ base + PRIOR * scales))


__all__ = ["Calibration", "Change", "Sample", "calibrate", "movable"]
