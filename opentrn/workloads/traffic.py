"""Requests as they arrive: when, how long their prompts are, how long their answers. No clock."""

from __future__ import annotations

import csv
import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite, log, sqrt
from pathlib import Path

import numpy as np

from opentrn.base import FileFormatError, MissingFileError, UsageError, declare

declare(
    "workloads.traffic",
    "Traffic is requests in order of arrival, with prompts and answers of at least one token.",
    rule="rates, counts and lengths are above zero; spread and burst are not negative; a trace "
    "file is CSV with columns for arrival, prompt tokens and answer tokens",
    fix="correct the number or the line named above",
)

COLUMNS = {
    "arrival": ("arrival", "arrived_at", "timestamp", "time"),
    "prompt": ("prompt", "contexttokens", "input_length", "num_prefill_tokens", "prompt_tokens"),
    "answer": ("answer", "generatedtokens", "output_length", "num_decode_tokens",
               "completion_tokens"),
}  # fmt: skip
"""Names that trace files give the three columns, in small letters."""


@dataclass(frozen=True, eq=False)
class Traffic:
    """`arrival` seconds from the begin, rising; `prompt` and `answer` tokens of each request."""

    arrival: np.ndarray
    prompt: np.ndarray
    answer: np.ndarray

    def __post_init__(self):
        if not len(self.arrival) == len(self.prompt) == len(self.answer) > 0:
            raise UsageError("traffic without requests, or of unequal columns",
                             code="workloads.traffic")  # fmt: skip
        if not (np.diff(self.arrival) >= 0).all() or min(self.prompt.min(), self.answer.min()) < 1:
            raise UsageError("requests out of order, or without a token", code="workloads.traffic")

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def rate(self) -> float:
        """Requests a second on average; infinite when all come at once."""
        span = float(self.arrival[-1] - self.arrival[0])
        return (len(self) - 1) / span if span else float("inf")

    @classmethod
    def random(
        cls,
        rate: float,
        count: int,
        *,
        prompt: float = 1024,
        answer: float = 256,
        spread: float = 0.0,
        burst: float = 1.0,
        seed: int = 0,
    ) -> Traffic:
        """`count` requests at `rate` a second.

        Gaps have the coefficient of variation `burst` (1: Poisson, 0: even, more: gamma-distributed
        bursts), lengths `spread` around their means (0: all alike, else log-normal, at least 1).
        """
        numbers = np.array([rate, count, prompt, answer, spread, burst])
        if not np.isfinite(numbers).all() or numbers[:4].min() <= 0 or numbers[4:].min() < 0:
            raise UsageError(
                f"{count} requests at {rate:g} a second of {prompt:g} and {answer:g} tokens",
                code="workloads.traffic",
            )
        rng = np.random.Generator(np.random.Philox(seed))
        gaps = np.full(count, 1.0 / rate)
        if burst:
            gaps = rng.gamma(1.0 / burst**2, burst**2 / rate, count)
        lengths = [_lengths(rng, mean, spread, count) for mean in (prompt, answer)]
        return cls(np.cumsum(gaps), *lengths)

    @classmethod
    def read(cls, file: str | Path) -> Traffic:
        """The requests of a CSV file: seconds or ISO times, prompt tokens, answer tokens.

        The columns may have the names of public traces (`TIMESTAMP`, `ContextTokens`,
        `GeneratedTokens`, `arrived_at`, ...). Raises MissingFileError and FileFormatError
        `workloads.traffic`.
        """
        path = Path(file)
        try:
            with path.open(encoding="utf-8-sig", newline="") as text:
                return _parsed(path.name, csv.DictReader(text))
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise MissingFileError(f"cannot read {path}: {why}", code="workloads.traffic") from None

    def part(self, number: int, parts: int) -> Traffic:
        """Every `parts`-th request from `number` on: what one of so many replicas gets in turn."""
        return Traffic(
            *(column[number::parts] for column in (self.arrival, self.prompt, self.answer))
        )


def _lengths(rng: np.random.Generator, mean: float, spread: float, count: int) -> np.ndarray:
    if not spread:
        return np.full(count, max(round(mean), 1))
    sigma = sqrt(log(1 + spread**2))
    drawn = rng.lognormal(log(mean) - sigma**2 / 2, sigma, count)
    return np.maximum(np.rint(drawn), 1).astype(np.int64)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return datetime.datetime.fromisoformat(text.strip()[:26]).timestamp()


def _parsed(name: str, reader: csv.DictReader) -> Traffic:
    """The traffic of a file that is open."""
    there = {(field or "").strip().lower(): field for field in reader.fieldnames or ()}
    columns = {}
    for wanted, names in COLUMNS.items():
        found = next((there[n] for n in names if n in there), None)
        if found is None:
            raise FileFormatError(f"{name} has no column {wanted} (one of {', '.join(names)})",
                                  code="workloads.traffic")  # fmt: skip
        columns[wanted] = found
    rows = list(_rows(name, reader, columns))
    rows.sort(key=lambda row: row[0])
    if not rows:
        raise FileFormatError(f"{name} has no requests", code="workloads.traffic")
    arrival, prompt, answer = map(np.array, zip(*rows, strict=True))
    return Traffic(arrival - arrival[0], prompt, answer)


def _rows(name: str, reader: csv.DictReader, columns: dict) -> Iterable[tuple[float, int, int]]:
    for number, row in enumerate(reader, 2):
        try:
            prompt, answer = int(row[columns["prompt"]]), int(row[columns["answer"]])
            arrival = _seconds(row[columns["arrival"]])
            if min(prompt, answer) < 0 or not isfinite(arrival):
                raise ValueError(f"arrival {arrival:g}, {prompt} and {answer} tokens")
            yield arrival, max(prompt, 1), max(answer, 1)  # traces have answers of no token
        except (TypeError, ValueError) as error:
            raise FileFormatError(f"{name}, line {number}: {error}", code="workloads.traffic") \
                from None  # fmt: skip
