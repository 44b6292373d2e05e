"""Pipeline schedules as policy: which micro-batch goes forward or back, in what order; no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from opentrn.base import UsageError, declare

declare(
    "workloads.pipeline",
    "A pipeline schedule must be possible.",
    rule="stages, micro-batches and chunks are at least 1; with chunks > 1 the micro-batches are a "
    "multiple of the stages",
    fix="change the batch, or use one chunk a stage",
)


class Work(NamedTuple):
    """One piece: micro-batch `batch` through chunk `chunk` of a stage, forward or back."""

    forward: bool
    batch: int
    chunk: int


@dataclass(frozen=True)
class Pipeline:
    """1F1B (one forward, one backward) over `stages`, interleaved when `chunks` > 1.

    Narayanan et al., arXiv 2104.04473: stage s warms up with stages - s - 1 forward pieces (for
    interleaved: (stages - s - 1) 2 + (chunks - 1) stages), then alternates.
    """

    stages: int
    batches: int
    chunks: int = 1

    def __post_init__(self):
        if min(self.stages, self.batches, self.chunks) < 1:
            raise UsageError(
                f"{self.stages} stages, {self.batches} micro-batches, {self.chunks} chunks",
                code="workloads.pipeline",
            )
        if self.chunks > 1 and self.batches % self.stages:
            raise UsageError(
                f"{self.batches} micro-batches are no multiple of {self.stages} stages",
                code="workloads.pipeline",
            )

    @property
    def bubble(self) -> float:
        """Idle time as a share of the work of one stage: (stages - 1) / (chunks x batches)."""
        return (self.stages - 1) / (self.chunks * self.batches)

    def warmup(self, stage: int) -> int:
        """Forward pieces that a stage does before its first backward one."""
        ahead = self.stages - stage - 1
        pieces = self.batches * self.chunks
        if self.chunks == 1:
            return min(ahead, pieces)
        return min(2 * ahead + (self.chunks - 1) * self.stages, pieces)

    def in_flight(self, stage: int = 0) -> int:
        """Most pieces whose activations a stage holds at once."""
        return min(self.warmup(stage) + 1, self.batches * self.chunks)

    def _piece(self, number: int, forward: bool) -> Work:
        group = self.stages * self.chunks
        within = number % group
        chunk = within // self.stages
        if not forward:
            chunk = self.chunks - chunk - 1
        batch = number // group * self.stages + within % self.stages
        return Work(forward, batch if self.chunks > 1 else number, chunk)

    def order(self, stage: int) -> tuple[Work, ...]:
        """All pieces of one stage in the order it does them."""
        count, warm = self.batches * self.chunks, self.warmup(stage)
        found = [self._piece(n, True) for n in range(warm)]
        for n in range(count - warm):
            found += [self._piece(warm + n, True), self._piece(n, False)]
        return (*found, *(self._piece(n, False) for n in range(count - warm, count)))
