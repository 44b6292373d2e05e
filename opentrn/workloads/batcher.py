"""Continuous batching as a policy: which requests may join those that are running. No clock."""

from __future__ import annotations

from dataclasses import dataclass

from opentrn.base import UsageError, declare

declare(
    "workloads.batcher",
    "A batcher has slots and room for the tokens of a request.",
    rule="slots, tokens and bucket are at least 1; a request's prompt and answer fit the cache",
    fix="take fewer or shorter requests, or more devices for each replica",
)


@dataclass(frozen=True)
class Batcher:
    """Iteration-level scheduling (Orca, OSDI 2022): requests join and leave between two tokens.

    At most `slots` run at once, and their prompts and answers together take at most `tokens` of
    cache: a request that joins has room for its whole answer, so none is ever put out again. They
    join in order of arrival. Prompts are padded to multiples of `bucket` tokens. With `chunk` 0
    a prompt is read alone while answers wait; else `chunk` tokens of it beside every token of the
    answers (Sarathi, arXiv 2308.16369).
    """

    slots: int
    tokens: float = float("inf")
    bucket: int = 128
    chunk: int = 0

    def __post_init__(self):
        if min(self.slots, self.tokens, self.bucket) < 1 or self.chunk < 0:
            raise UsageError(f"{self} cannot be", code="workloads.batcher")

    def padded(self, prompt: int) -> int:
        """Tokens that are read for a prompt."""
        return -(-int(prompt) // self.bucket) * self.bucket

    def held(self, prompt: int, answer: int) -> int:
        """Tokens of cache that a request takes until it ends."""
        return int(prompt) + int(answer)

    def admits(self, running: int, held: float, more: int) -> bool:
        """Whether a request of `more` tokens may join `running` others that hold `held`."""
        return running < self.slots and held + more <= self.tokens
