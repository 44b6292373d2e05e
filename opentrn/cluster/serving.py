"""Simulate serving: continuous batching on replicas that are alike, from arrivals to latencies.

Between two events (a request joins or ends) every token of the batch takes a time that is linear in
the tokens in the caches, so many of them are one step: the cost follows the requests, not the
tokens. Replicas get requests in turn and do not meet; of many, some are simulated for all.
"""

from __future__ import annotations

import heapq
from collections import deque
from math import ceil, inf, sqrt

import numpy as np

from opentrn.base import CapacityError, UsageError
from opentrn.cluster.served import Served
from opentrn.cluster.service import Service
from opentrn.workloads import Traffic

FOLDED = 16
"""Replicas of one service that are simulated when there are MANY requests."""

MANY = 50_000
"""Requests up to which every replica is simulated."""


def tokens_before(pace: tuple[float, float], batch: int, cached: float, seconds: float) -> int:
    """How many tokens a batch makes until at least `seconds` have passed, at least one.

    The k-th takes fixed + each (cached + batch (k - 1)) seconds.
    """
    fixed, each = pace
    first = fixed + each * cached
    if seconds == inf:
        return 1 << 62
    if first <= 0 or seconds <= first:
        return 1
    half = each * batch / 2
    if half <= 0:
        return ceil(seconds / first - 1e-12)
    root = (half - first + sqrt((first - half) ** 2 + 4 * half * seconds)) / (2 * half)
    return max(ceil(root - 1e-12), 1)


def seconds_of(pace: tuple[float, float], batch: int, cached: float, count: int) -> float:
    """Seconds of `count` tokens of a batch."""
    fixed, each = pace
    return count * (fixed + each * (cached + batch * (count - 1) / 2))


class _Replica:
    """One replica while it is simulated."""

    def __init__(self, service: Service, traffic: Traffic, ready: np.ndarray | None):
        self.service, self.batcher, self.traffic = service, service.batcher, traffic
        count = len(traffic)
        self.ready = traffic.arrival if ready is None else ready
        self.elsewhere = ready is not None  # prompts are read by other replicas
        self.order = np.argsort(self.ready, kind="stable")
        self.first = np.array(self.ready, dtype=float)
        self.end = np.zeros(count)
        self.now, self.made, self.busy, self.batches = 0.0, 0, 0.0, 0.0
        self.coming = deque(int(n) for n in self.order)
        self.running: list[tuple[int, int]] = []  # (value of `made` at the end, request)
        self.cached, self.held = 0.0, 0
        self.reading: tuple[int, int] | None = None  # a prompt read in chunks: (request, tokens)

    def run(self) -> None:
        """Until every request has its answer."""
        while self.coming or self.running or self.reading:
            if not self.running and not self.reading:
                self.now = max(self.now, float(self.ready[self.coming[0]]))
            if self._next() is not None and not self.reading:
                self._join(self.coming.popleft())
            else:
                self._decode()

    def _next(self) -> int | None:
        """The request that may join now."""
        if not self.coming or self.ready[self.coming[0]] > self.now:
            return None
        who = self.coming[0]
        more = self.batcher.held(self.traffic.prompt[who], self.traffic.answer[who])
        count = len(self.running) + (self.reading is not None)
        return who if self.batcher.admits(count, self.held, more) else None

    def _join(self, who: int) -> None:
        prompt, answer = int(self.traffic.prompt[who]), int(self.traffic.answer[who])
        self.held += self.batcher.held(prompt, answer)
        if self.elsewhere:
            self._begin(who)
        elif self.batcher.chunk:
            self.reading = (who, 0)
        else:
            self._pass(self.service.prefill(self.batcher.padded(prompt)))
            self.first[who] = self.now
            self._begin(who)

    def _begin(self, who: int) -> None:
        """A request whose prompt is read, and whose first token is made, runs."""
        prompt, answer = int(self.traffic.prompt[who]), int(self.traffic.answer[who])
        if answer == 1:
            self.end[who] = self.now
            self.held -= self.batcher.held(prompt, answer)
            return
        heapq.heappush(self.running, (self.made + answer - 1, who))
        self.cached += prompt + 1

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        self.busy += seconds

    def _decode(self) -> None:
        """Tokens for all that run, until one ends or another may join; or one, and a chunk."""
        batch = len(self.running)
        count = 1
        if batch and not self.reading:
            count = min(self.running[0][0] - self.made, self._until_arrival(batch))
        seconds = self._chunk()
        if batch:
            seconds += seconds_of(self.service.decode(batch), batch, self.cached, count)
            self.made += count
            self.batches += batch * count
            self.cached += batch * count
        self._pass(seconds)
        while self.running and self.running[0][0] == self.made:
            self._finish(heapq.heappop(self.running)[1])
        if self.reading and self.reading[1] >= self.traffic.prompt[self.reading[0]]:
            who, self.reading = self.reading[0], None
            self.first[who] = self.now
            self._begin(who)

    def _until_arrival(self, batch: int) -> int:
        """Tokens until the next request arrives, if it could join then."""
        if not self.coming:
            return 1 << 62
        who = self.coming[0]
        more = self.batcher.held(self.traffic.prompt[who], self.traffic.answer[who])
        if not self.batcher.admits(batch, self.held, more):
            return 1 << 62
        left = float(self.ready[who]) - self.now
        return tokens_before(self.service.decode(batch), batch, self.cached, left)

    def _chunk(self) -> float:
        """Seconds of the next piece of the prompt that is read beside the answers."""
        if not self.reading:
            return 0.0
        who, done = self.reading
        upto = min(done + self.batcher.chunk, int(self.traffic.prompt[who]))
        self.reading = (who, upto)
        read = self.service.prefill(self.batcher.padded(upto))
        before = self.service.prefill(self.batcher.padded(done)) if done else 0.0
        return max(read - before, self.service.prefill(self.batcher.padded(upto - done)))

    def _finish(self, who: int) -> None:
        prompt, answer = int(self.traffic.prompt[who]), int(self.traffic.answer[who])
        self.end[who] = self.now
        self.held -= self.batcher.held(prompt, answer)
        self.cached -= prompt + answer


def _prefilled(service: Service, traffic: Traffic) -> tuple[np.ndarray, np.ndarray]:
    """(when the first token is there, when the caches are) with prompts read by a pool, in turn."""
    free = [0.0] * service.prefill_replicas
    first = np.empty(len(traffic))
    ready = np.empty(len(traffic))
    for n, (arrival, prompt) in enumerate(zip(traffic.arrival, traffic.prompt, strict=True)):
        begin = max(float(arrival), heapq.heappop(free))
        first[n] = begin + service.prefill(service.batcher.padded(prompt))
        ready[n] = first[n] + service.transfer(int(prompt))
        heapq.heappush(free, first[n])
    return first, ready


def _fits(service: Service, traffic: Traffic) -> None:
    longest = int((traffic.prompt + traffic.answer).max())
    if longest > service.batcher.tokens:
        raise CapacityError(
            f"a request has {longest:,} tokens, the cache of a replica "
            f"{service.batcher.tokens:,.0f}",
            code="workloads.batcher",
        )


def serve(
    service: Service, traffic: Traffic, *, ttft_s: float | None = None, tpot_s: float | None = None
) -> Served:
    """Serve the traffic; latencies of all requests, and how many kept the objectives.

    `ttft_s` is the most seconds until the first token, `tpot_s` for each later one. Of more than
    50,000 requests only those of 16 replicas are simulated; with fewer requests than replicas some
    idle. Raises CapacityError `workloads.batcher` for a request that fits no cache, UsageError
    `cluster.service` for an objective that is not above zero.

    Source: continuous batching of Orca (OSDI 2022), chunks of Sarathi (arXiv 2308.16369).
    """
    for name, most in (("ttft_s", ttft_s), ("tpot_s", tpot_s)):
        if most is not None and not most > 0:
            raise UsageError(f"{name} is {most:g}", code="cluster.service",
                             rule="objectives are seconds above zero",
                             fix=f"give {name} more than zero, or leave it out")  # fmt: skip
    _fits(service, traffic)
    first = ready = None
    if service.prefill_replicas:
        first, ready = _prefilled(service, traffic)
    few = service.replicas if len(traffic) <= MANY else FOLDED
    simulated, served = min(service.replicas, few), []
    for number in range(min(simulated, len(traffic))):
        own = slice(number, None, service.replicas)
        part = traffic.part(number, service.replicas)
        replica = _Replica(service, part, None if ready is None else ready[own])
        replica.run()
        begun = replica.first if first is None else first[own]
        served.append((replica, part, begun))
    return Served.of(service, served, simulated, ttft_s, tpot_s)
