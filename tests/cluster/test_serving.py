"""Serving against queueing formulas in their limits, and against a simulation token by token."""

import math
import time

import numpy as np
import pytest

from opentrn.base import CapacityError, UsageError
from opentrn.cluster import Pace, Service, serve
from opentrn.cluster.serving import seconds_of, tokens_before
from opentrn.cost import Serving, Split, platform, step_time
from opentrn.plan import plan_serving
from opentrn.workloads import Batcher, Traffic, kv_bytes, model


def service(slots=1, prefill=0.0, fixed=0.01, each=0.0, **more):
    batcher = Batcher(slots, bucket=1, chunk=more.pop("chunk", 0), tokens=more.pop("tokens", 1e30))
    read = prefill if callable(prefill) else lambda tokens: prefill
    return Service(batcher, read, lambda batch: Pace(fixed, each), **more)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.85])
def test_one_slot_and_equal_requests_are_m_d_1(load):
    # A prompt of 0.5 s and 50 tokens of 10 ms after the first: 1 s of service, none of it random.
    count = 40_000
    traffic = Traffic.random(load, count, prompt=10, answer=51, seed=1)
    found = serve(service(prefill=0.5), traffic)
    wait = load / (2 * (1 - load))
    # Waits are correlated over about 1 / (1 - load)^2 requests.
    error = 5 * wait / math.sqrt(count * (1 - load) ** 2)
    assert found.quantiles("ttft")["mean"] == pytest.approx(0.5 + wait, abs=error)
    assert found.busy == pytest.approx(load, rel=0.03)
    assert np.nanmax(abs(found.tpot - 0.01)) < 1e-9


def test_one_slot_and_random_answers_are_pollaczek_khinchine():
    traffic = Traffic.random(0.6, 40_000, prompt=10, answer=100, spread=1.0, seed=3)
    found = serve(service(fixed=0.01), traffic)
    time_ = (traffic.answer - 1) * 0.01
    rate = traffic.rate
    wait = rate * np.mean(time_**2) / (2 * (1 - rate * np.mean(time_)))
    assert found.quantiles("ttft")["mean"] == pytest.approx(wait, rel=0.12)


def test_separate_prefill_replicas_are_m_m_c():
    # Prompts of exponential length, three replicas: Erlang's C formula. Decoding takes nothing.
    rng, count, servers, load = np.random.default_rng(5), 60_000, 3, 0.8
    arrival = np.cumsum(rng.exponential(1 / (servers * load), count))
    prompt = np.maximum(np.rint(rng.exponential(1000, count)), 1).astype(int)
    traffic = Traffic(arrival, prompt, np.ones(count, dtype=int))
    one = service(slots=10, prefill=lambda tokens: tokens / 1000, prefill_replicas=servers)
    found = serve(one, traffic)
    offered = servers * load
    last = offered**servers / math.factorial(servers) / (1 - load)
    erlang = last / (sum(offered**k / math.factorial(k) for k in range(servers)) + last)
    wait = erlang / (servers * (1 - load))
    assert found.quantiles("ttft")["mean"] == pytest.approx(1 + wait, rel=0.08)


def test_waits_that_grow_with_the_run_are_noticed():
    for rate, grows in ((0.8, False), (1.3, True)):
        traffic = Traffic.random(rate, 4000, prompt=10, answer=101, seed=1)
        assert bool(serve(service(), traffic).overloaded) is grows


def test_littles_law_and_conservation():
    traffic = Traffic.random(8.0, 4000, prompt=100, answer=200, spread=0.8, burst=2.0, seed=2)
    one = service(slots=32, prefill=0.02, fixed=0.005, each=1e-7, replicas=2)
    found = serve(one, traffic, ttft_s=0.5, tpot_s=0.02)
    assert len(found.ttft) == 4000
    span = len(traffic) / found.requests_per_s
    assert found.in_system == pytest.approx(found.latency.sum() / span)
    assert found.tokens_per_s == pytest.approx(traffic.answer.sum() / span)
    assert (found.ttft >= 0.02 - 1e-9).all()
    assert np.allclose(
        found.latency,
        found.ttft + np.nan_to_num(found.tpot)
        * np.concatenate([np.maximum(traffic.part(n, 2).answer - 1, 0) for n in (0, 1)]),
    )  # fmt: skip
    good = (found.ttft <= 0.5) & ~(found.tpot > 0.02)
    assert found.attainment == pytest.approx(good.mean())


def test_a_full_batch_makes_what_arithmetic_says():
    # All at once: 64 answers of 101 tokens, 16 at a time; each round 100 tokens of 20 ms.
    traffic = Traffic(np.zeros(64), np.full(64, 10), np.full(64, 101))
    found = serve(service(slots=16, fixed=0.02), traffic)
    assert found.requests_per_s == pytest.approx(64 / (4 * 100 * 0.02))
    assert found.batch == pytest.approx(16)
    assert found.busy == pytest.approx(1)
    # A cache for four requests keeps four at a time.
    found = serve(service(slots=16, fixed=0.02, tokens=4 * 111), traffic)
    assert found.batch == pytest.approx(4)


class ByToken:
    """One token at a time: first and last seconds of every request."""

    def __init__(self, one, traffic):
        self.one, self.traffic, self.now, self.next = one, traffic, 0.0, 0
        self.left, self.cached, self.reading = {}, {}, None
        self.first, self.end = np.zeros(len(traffic)), np.zeros(len(traffic))
        while self.next < len(traffic) or self.left or self.reading:
            if not self.left and not self.reading:
                self.now = max(self.now, traffic.arrival[self.next])
            if not self.join():
                self.token()

    def size(self, who):
        return self.traffic.prompt[who] + self.traffic.answer[who]

    def join(self):
        who, batcher = self.next, self.one.batcher
        if who == len(self.traffic) or self.reading or self.traffic.arrival[who] > self.now:
            return False
        full = sum(map(self.size, self.left)) + self.size(who) > batcher.tokens
        if full or len(self.left) == batcher.slots:
            return False
        self.next += 1
        if batcher.chunk:
            self.reading = [who, 0]
        else:
            self.now += self.one.prefill(self.traffic.prompt[who])
            self.begin(who)
        return True

    def begin(self, who):
        self.first[who] = self.now
        self.left[who], self.cached[who] = (
            self.traffic.answer[who] - 1,
            self.traffic.prompt[who] + 1,
        )
        self.leave(who)

    def leave(self, who):
        if not self.left[who]:
            self.end[who] = self.now
            del self.left[who], self.cached[who]

    def token(self):
        if self.left:
            pace = self.one.decode(len(self.left))
            self.now += pace.fixed + pace.each * sum(self.cached.values())
        if self.reading:
            (who, done), read = self.reading, self.one.prefill
            upto = min(done + self.one.batcher.chunk, self.traffic.prompt[who])
            self.now += max(read(upto) - (read(done) if done else 0.0), read(upto - done))
            self.reading = [who, upto]
        for who in list(self.left):
            self.left[who] -= 1
            self.cached[who] += 1
            self.leave(who)
        if self.reading and self.reading[1] >= self.traffic.prompt[self.reading[0]]:
            who, self.reading = self.reading[0], None
            self.begin(who)


@pytest.mark.parametrize("chunk", [0, 64])
@pytest.mark.parametrize("each", [0.0, 1e-6])
def test_many_tokens_at_once_are_as_one_after_the_other(chunk, each):
    traffic = Traffic.random(5.0, 300, prompt=300, answer=40, spread=1.0, burst=1.5, seed=11)
    one = service(slots=8, prefill=lambda t: 0.001 + t * 1e-4, fixed=0.01, each=each, chunk=chunk,
                  tokens=6000)  # fmt: skip
    found = serve(one, traffic)
    slow = ByToken(one, traffic)
    assert np.allclose(found.ttft, slow.first - traffic.arrival, atol=1e-9)
    assert np.allclose(found.latency, slow.end - traffic.arrival, atol=1e-9)


def test_tokens_until_a_time():
    rng = np.random.default_rng(0)
    for _ in range(500):
        pace = Pace(rng.uniform(0.001, 0.1), rng.choice([0.0, 1e-7, 1e-4]))
        batch, cached = int(rng.integers(1, 64)), int(rng.integers(1, 10_000))
        left = rng.uniform(0, 100)
        count, spent = 0, 0.0
        while spent < left or not count:
            spent += pace.fixed + pace.each * (cached + batch * count)
            count += 1
        assert tokens_before(pace, batch, cached, left) == count
        assert seconds_of(pace, batch, cached, count) == pytest.approx(spent)


def test_many_replicas_are_folded_and_cost_little():
    traffic = Traffic.random(2000.0, 100_000, prompt=100, answer=100, spread=0.5, seed=1)
    one = service(slots=16, prefill=0.01, fixed=0.01, replicas=200)
    start = time.process_time()
    found = serve(one, traffic)
    assert time.process_time() - start < 10
    assert (found.simulated, found.replicas) == (16, 200)
    assert found.requests_per_s == pytest.approx(2000, rel=0.1)


def test_the_service_of_a_plan_takes_times_and_cache_from_it():
    where, m = platform("trn2.48xlarge"), model("llama-3.1-70b")
    best = plan_serving(m, "trn2.48xlarge", 1, prompt=1024, answer=512).best
    one = Service.of(best, m, where)
    split = best.split
    assert one.replicas == split.dp
    assert one.batcher.slots * split.dp == best.extra["batch"]
    alone = Split(tp=split.tp, pp=split.pp, zero=0)
    for batch, seen in ((1, 128), (7, 3000), (one.batcher.slots, 8192)):
        job = Serving(batch=batch, prompt=seen, answer=1)
        step = float(step_time(m, where, alone, job, "decode").seconds)
        pace = one.decode(batch)
        assert pace.fixed + pace.each * batch * (seen + 0.5) == pytest.approx(step, rel=1e-6)
    prompt = step_time(m, where, alone, Serving(prompt=1024), "prefill")
    assert one.prefill(1024) == pytest.approx(float(prompt.seconds))
    # The cache has what 24 GiB a core leave beside weights, scratch and the rest.
    held = best.step.memory
    free = best.step.capacity - sum(held.values()) + held["kv_cache"]
    copies = max(split.tp / m.kv_heads, 1)
    assert one.batcher.tokens == pytest.approx(free * split.tp * split.pp / kv_bytes(m, 1) / copies)
    assert one.transfer(1000) == pytest.approx(
        kv_bytes(m, 1000) / (where.tiers[-1].bandwidth * split.tp * split.pp)
    )
    low = serve(one, Traffic.random(0.05, 200, prompt=1024, answer=64, seed=1))
    assert low.quantiles("ttft")["p50"] == pytest.approx(one.prefill(1024), rel=1e-6)
    apart = Service.of(best, m, where, prefill_replicas=1)
    assert (apart.replicas, apart.prefill_replicas) == (split.dp - 1, 1)


def test_ranks_that_share_experts_are_one_replica():
    where, m = platform("trn2.48xlarge"), model("deepseek-v3")
    best = plan_serving(m, "trn2.48xlarge", 1, wanted={"tp": 16, "ep": 4}, tpot_s=None).best
    one = Service.of(best, m, where)
    assert (best.split.dp, one.replicas) == (4, 1)
    assert one.batcher.slots == best.extra["batch"]
    job = Serving(batch=8, prompt=1000, answer=1)
    step = step_time(m, where, Split(tp=16, dp=4, ep=4, zero=0), job, "decode")
    pace = one.decode(8)
    assert pace.fixed + pace.each * 8 * 1000.5 == pytest.approx(float(step.seconds), rel=1e-6)
    # Latent caches are whole on each of 16 ranks; four members hold four times as much.
    held = best.step.memory
    free = best.step.capacity - sum(held.values()) + held["kv_cache"]
    assert one.batcher.tokens == pytest.approx(4 * free / kv_bytes(m, 1))


def test_a_recurrent_state_has_no_length():
    where, m = platform("trn2.3xlarge"), model("mamba-2.8b")
    one = Service.of(plan_serving(m, "trn2.3xlarge", 1).best, m, where)
    assert one.batcher.tokens == float("inf")


def test_replicas_without_a_request_idle():
    traffic = Traffic.random(1.0, 3, prompt=10, answer=10, seed=2)
    few, many = serve(service(replicas=3), traffic), serve(service(replicas=6), traffic)
    assert np.array_equal(few.latency, many.latency)
    assert (many.replicas, many.simulated) == (6, 6)
    assert many.requests_per_s == pytest.approx(few.requests_per_s)
    assert many.busy == pytest.approx(few.busy / 2)


def test_what_cannot_be_served_is_refused():
    traffic = Traffic.random(1.0, 4, prompt=10, answer=10)
    with pytest.raises(CapacityError, match="20 tokens"):
        serve(service(tokens=19), traffic)
    for call, words in (
        (lambda: service(replicas=0), "0 replicas"),
        (lambda: Batcher(0), "cannot be"),
    ):
        with pytest.raises(UsageError, match=words):
            call()
