"""The search against a plain loop over everything, and what it says of those that lost."""

import itertools
import re
import time

import pytest

from opentrn.base import CapacityError, LimitError, UnknownNameError, UsageError
from opentrn.cost import Split, Training, platform, step_time
from opentrn.plan import Limits, compare, plan, plan_serving


def every_split(devices, batch, layers, heads):
    """All legal splits by a plain loop: no arrays, no pruning."""
    degrees = [d for d in range(1, devices + 1) if devices % d == 0]
    for tp, cp, pp in itertools.product([d for d in degrees if heads % d == 0], (1, 2), degrees):
        dp, rest = divmod(devices, tp * cp * pp)
        if rest or pp > layers or batch % dp:
            continue
        each = batch // dp
        for b in [b for b in range(1, 65) if each % b == 0]:
            deep = [1]
            if pp > 1 and layers % pp == 0 and (each // b) % pp == 0:
                deep = [v for v in range(1, 17) if layers // pp % v == 0]
            zeros = (0, 1, 2, 3) if dp * cp > 1 else (0,)
            sequences = (True, False) if tp > 1 else (False,)
            for v, r, s, z in itertools.product(deep, ("none", "full"), sequences, zeros):
                yield Split(tp=tp, cp=cp, pp=pp, dp=dp, micro_batch=b, chunks=v, recompute=r,
                            sequence=s, zero=z)  # fmt: skip


def test_the_best_plan_is_the_best_of_a_plain_loop():
    job = Training(batch=16, sequence=8192)
    where = platform("trn2.3xlarge")
    best, count = None, 0
    for split in every_split(8, 16, layers=32, heads=32):
        if split.tp > 4:
            continue  # beyond one machine's links
        count += 1
        step = step_time("llama-3.1-8b", where, split, job)
        if step.fits and (best is None or float(step.seconds) < best):
            best = float(step.seconds)
    found = plan("llama-3.1-8b", "trn2.3xlarge", 2, batch=16, sequence=8192, lnc=2)
    assert found.searched["legal"] == count
    assert found.gap == 0
    assert found.best.step_time_s == pytest.approx(best, rel=1e-12)
    assert found.best.step.fits


def test_plans_are_sorted_distinct_and_use_all_devices():
    found = plan("llama-3.1-70b", "trn2.48xlarge", 16, tokens=1e12)
    times = [one.step_time_s for one in found]
    assert times == sorted(times)
    assert all(one.split.devices in (16 * 64, 16 * 128) for one in found)
    keys = {(p.lnc, p.split.tp, p.split.cp, p.split.pp, p.split.dp, p.split.ep) for p in found}
    assert len(keys) == len(found) == 5
    best = found.best
    # 512 sequences of 8,192 tokens in a step; capacity blocks at 35.7608 $ an hour.
    assert best.hours == pytest.approx(1e12 / (512 * 8192) * best.step_time_s / 3600)
    assert best.cost_usd == pytest.approx(best.hours * 16 * 35.7608)


def test_every_rejected_choice_has_a_true_reason():
    found = plan("llama-3.1-405b", "trn2.48xlarge", 64, lnc=2)
    kinds = {one.kind for one in found.rejected}
    assert {"slower", "memory"} <= kinds
    for one in found.rejected:
        assert one.reason
        if one.kind == "slower":
            step = step_time("llama-3.1-405b", "trn2.48xlarge", one.split,
                             Training(batch=2048, sequence=8192))  # fmt: skip
            more = float(step.seconds) / found.best.step_time_s - 1
            assert more == pytest.approx(one.slower)
            assert step.fits
    found = plan("llama-3.1-70b", "trn2.48xlarge", 1, batch=64, optimizer="adamw-bf16", lnc=1)
    assert any(r.choice == "tp 128" and "64 heads" in r.reason for r in found.rejected)


def test_degrees_that_are_asked_for_are_kept():
    found = plan("llama-3.1-8b", "trn2.48xlarge", 4, wanted={"tp": 8, "recompute": "full"})
    assert {(p.split.tp, p.split.recompute) for p in found} == {(8, "full")}
    with pytest.raises(LimitError, match="32 heads do not divide by 12"):
        plan("llama-3.1-8b", "trn2.48xlarge", 4, wanted={"tp": 12})
    with pytest.raises(LimitError, match="32 layers"):
        plan("llama-3.1-8b", "trn2.48xlarge", 4, wanted={"pp": 64})
    with pytest.raises(UsageError, match="no degree"):
        plan("llama-3.1-8b", "trn2.48xlarge", wanted={"xp": 8})


def test_what_does_not_fit_says_what_would():
    with pytest.raises(CapacityError) as caught:
        plan("llama-3.1-405b", "trn2.48xlarge", 1)
    fix = caught.value.fix
    assert "would fit" in fix
    assert plan("llama-3.1-405b", "trn2.48xlarge", int(fix.split()[0])).best.step.fits
    # 405.85 B parameters x 18 bytes over 64 cores are 106 GiB: one machine cannot hold them.
    assert platform("trn2.48xlarge").memory < 405.85e9 * 18 / 64


def test_deadline_and_budget():
    ask = ("llama-3.1-8b", "trn2.48xlarge", 4)
    free = plan(*ask, tokens=1e12).best
    hours = free.hours
    assert plan(*ask, tokens=1e12, limits=Limits(deadline_s=hours * 3601)).best == free
    with pytest.raises(LimitError, match="deadline") as caught:
        plan(*ask, tokens=1e12, limits=Limits(deadline_s=hours * 1800))
    count = int(caught.value.fix.split(" x ")[0])  # what is named keeps the deadline
    assert plan(ask[0], ask[1], count, tokens=1e12).best.hours <= hours / 2
    assert plan(ask[0], ask[1], 6, tokens=1e12).best.hours > hours / 2  # and far fewer do not
    with pytest.raises(LimitError, match="deadline") as caught:
        plan(*ask, tokens=1e12, batch=4, sequence=512, limits=Limits(deadline_s=60.0))
    assert "no number tried keeps it" in caught.value.fix
    with pytest.raises(LimitError, match="budget"):
        plan(*ask, tokens=1e12, limits=Limits(budget_usd=free.cost_usd / 2))
    with pytest.raises(UsageError, match="tokens"):
        plan(*ask, limits=Limits(budget_usd=1e6))


@pytest.mark.parametrize(("kwargs", "kind"), [
    ({"count": 0}, UsageError), ({"tokens": -1.0}, UsageError), ({"batch": -2}, UsageError),
    ({"wanted": {"tp": 0}}, UsageError), ({"keep": 0}, UsageError),
    ({"sequence": 0}, UsageError), ({"optimizer": "adm"}, UnknownNameError),
    ({"wanted": {"zero": 4}}, UsageError), ({"dtype": "float4"}, UsageError),
    ({"target": "trn9"}, UnknownNameError), ({"what": "lama"}, UnknownNameError),
    ({"basis": "spot", "region": "eu-west-9"}, UnknownNameError),
])  # fmt: skip
def test_impossible_requests_are_refused(kwargs, kind):
    ask = {"what": "llama-3.1-8b", "target": "trn2.48xlarge", "count": 1} | kwargs
    with pytest.raises(kind):
        plan(ask.pop("what"), ask.pop("target"), ask.pop("count"), **ask)


def test_what_does_not_fit_is_told_for_the_core_it_nearly_fits():
    for target in ("trn2.3xlarge", "trn1.2xlarge"):
        with pytest.raises(CapacityError) as caught:
            plan("llama-3.1-8b", target, 1)
        least, room = re.findall(r"([0-9.]+) GiB", caught.value.what)
        assert float(least) > float(room)


def test_large_searches_are_fast():
    start = time.perf_counter()
    found = plan("llama-3.1-405b", "trn2.48xlarge", 256, tokens=15e12)
    assert time.perf_counter() - start < 10
    assert found.gap == 0
    start = time.perf_counter()
    plan("gpt-3-175b", "selene", 384, batch=3072, sequence=2048, attention="scores")
    assert time.perf_counter() - start < 10


def test_passing_over_changes_nothing(monkeypatch):
    ask = ("llama-3.1-70b", "trn2.48xlarge", 64)
    every = plan(*ask)
    monkeypatch.setattr("opentrn.plan.search.ALL", 0)
    bounded = plan(*ask)
    assert bounded.best == every.best
    assert bounded.searched["passed over"] > 0


def test_serving_keeps_its_limits_and_fills_the_machine():
    found = plan_serving("llama-3.1-70b", "trn2.48xlarge", 1, tpot_s=0.04)
    for one in found:
        assert one.extra["tpot_s"] <= 0.04
        assert one.step.fits
        assert one.split.devices * one.lnc == 128
        busy = 1024 * one.extra["tpot_s"] + one.extra["ttft_s"]
        assert one.extra["tokens_per_s"] == pytest.approx(one.extra["batch"] * 1024 / busy)
        assert one.cost_usd == pytest.approx(35.7608 / 3600 / one.extra["tokens_per_s"] * 1e6)
    with pytest.raises(LimitError, match="fast enough"):
        plan_serving("llama-3.1-70b", "trn2.48xlarge", 1, tpot_s=0.0001)
    with pytest.raises(CapacityError):
        plan_serving("deepseek-v3", "trn1.2xlarge", 1)
    with pytest.raises(UsageError):
        plan_serving("bert-large", "trn1.2xlarge", 1)


def test_comparison_tells_what_has_no_price_and_what_does_not_fit():
    names = ["trn1", "trn2", "p5", "tpu-v5p", "mi300x", "gaudi3", "trn3"]
    rows = compare("llama-3.1-70b", names, chips=64, tokens=1e12)
    by = {row.machine: row for row in rows}
    assert by["p5.48xlarge"].plan.cost_usd == pytest.approx(
        by["p5.48xlarge"].plan.hours * 8 * 55.04)  # fmt: skip
    tpu = by["tpu-v5p"]
    assert tpu.chips == 64
    assert tpu.plan.cost_usd == pytest.approx(tpu.plan.hours * 64 * 4.20)  # dollars a chip-hour
    for name, hourly in (("mi300x", 8 * 2.59), ("gaudi3", 19.92)):  # machines of eight
        assert by[name].plan.cost_usd == pytest.approx(by[name].plan.hours * 8 * hourly)
    bare = by["trn3-gen2-ultraserver"]
    assert bare.plan.cost_usd is None
    assert any("no price" in note and "--prices" in note for note in bare.assumptions)
    small = compare("llama-3.1-405b", ["p4d"], chips=8)
    assert small[0].plan is None
    assert "does not fit" in small[0].refused
    with pytest.raises(UnknownNameError):
        compare("llama-3.1-8b", ["p99"])


def test_a_basis_that_one_machine_lacks_leaves_it_without_dollars():
    rows = {row.machine: row for row in compare("llama-3.1-8b", ["trn1", "p5"], basis="spot")}
    trn1, p5 = rows["trn1.32xlarge"].plan, rows["p5.48xlarge"]
    assert trn1.cost_usd == pytest.approx(trn1.hours * trn1.count * 2.15)
    assert p5.plan.cost_usd is None
    assert any("on-demand (us-east-1)" in note for note in p5.assumptions)
    with pytest.raises(UnknownNameError, match="price"):
        compare("llama-3.1-8b", ["p5", "p4d"], basis="spot")
    with pytest.raises(UsageError, match="float4"):
        compare("llama-3.1-8b", ["trn1", "p5"], dtype="float4")


def test_own_prices_and_old_ones(tmp_path):
    file = tmp_path / "mine.toml"
    row = 'basis = "on-demand"\nregion = "home"\ndate = "2020-01-01"\nhourly = "10 $/h"\n'
    file.write_text(f'[[price]]\n{row}source = "me"\ngrade = "stated"\n[sources]\nme = "mine"\n')
    found = plan("llama-3.1-8b", "trn2.48xlarge", 4, tokens=1e12, prices=str(file))
    assert found.best.cost_usd == pytest.approx(found.best.hours * 4 * 10)
    assert any("days old" in note for note in found.assumptions)
    with pytest.raises(UnknownNameError, match="no spot price"):
        plan("llama-3.1-8b", "trn2.48xlarge", 4, prices=str(file), basis="spot")


def test_energy_is_design_power_times_time_where_a_figure_is_known():
    best = plan("llama-3.1-8b", "p5", 2, tokens=1e9).best  # 16 H100 of 700 W
    assert best.energy_kwh == pytest.approx(0.7 * 16 * best.hours)
    assert best.energy_grade == "stated"
    best = plan("llama-3.1-8b", "trn2.48xlarge", 1).best  # 500 W by the press
    assert best.energy_kwh == pytest.approx(0.5 * 16 * best.step_time_s / 3600)
    assert best.energy_grade == "assumed"
    assert "assumed" in best.energy
    best = plan("llama-3.1-8b", "trn1.32xlarge", 1).best
    assert best.energy_kwh is None
    assert "no figure" in best.energy


def test_a_million_requests_cost_their_answers():
    best = plan_serving("llama-3.1-8b", "trn1.32xlarge", 1, prompt=512, answer=200).best
    assert best.extra["cost_usd_per_million_requests"] == pytest.approx(best.cost_usd * 200)


def test_the_fewest_chips_that_hold_a_job():
    (row,) = compare("llama-3.1-70b", ["trn1"], chips=16)
    # 70.6e9 parameters with 18 bytes each are 1.27 TB: more than 2 x 512 GiB, less than 4.
    assert row.least == 64
    assert row.plan is None
    assert row.json()["chips_needed"] == 64
    (row,) = compare("llama-3.1-70b", ["p5"], chips=64, serve=True)
    assert row.least == 8  # 141 GB of weights, 8 x 80 GiB


def test_another_precision_is_told_and_not_taken():
    found = plan("llama-3.1-70b", "trn2.48xlarge", 16, batch=512)
    rows = {one.choice: one for one in found.rejected if one.kind == "precision"}
    assert set(rows) == {"float8", "float32"}
    for name, one in rows.items():
        other = plan("llama-3.1-70b", "trn2.48xlarge", 16, batch=512, dtype=name).best
        assert one.slower == pytest.approx(other.step_time_s / found.best.step_time_s - 1)
    assert rows["float8"].slower < 0 < rows["float32"].slower
    assert "faster" in rows["float8"].reason
    assert "slower" in rows["float32"].reason
    assert not any(r.kind == "precision" for r in plan("llama-3.1-8b", "selene", 8).rejected
                   if r.choice == "float8")  # fmt: skip


@pytest.mark.parametrize("count", [3, 7, 12, 100])
def test_the_batch_that_is_assumed_divides_among_odd_numbers_of_machines(count):
    found = plan("llama-3.1-8b", "trn2.48xlarge", count)
    batch = found.step_tokens // 8192
    odd = count
    while odd % 2 == 0:
        odd //= 2
    assert batch % odd == 0
    assert 512 / 2**0.5 <= batch <= 512 * 2**0.5  # 4 Mi tokens as nearly as may be
    assert found.best.split.dp % odd == 0
    # No machine idles in a forced pipeline: no worse than on the next power of two of them.
    more = plan("llama-3.1-8b", "trn2.48xlarge", 1 << count.bit_length()).best
    assert found.best.mfu > 0.95 * more.mfu


def test_compared_machines_do_one_job():
    rows = compare("llama-3.1-8b", ["trn2", "trn3"])
    assert {row.plan.extra["step_tokens"] for row in rows} == {512 * 8192}
    assert all("512 sequences of 8,192 tokens in a step" in row.assumptions for row in rows)


def test_selective_recomputation_of_flash_attention_says_what_it_is():
    found = plan("llama-3.1-8b", "trn2.48xlarge", 1, wanted={"recompute": "selective"})
    assert found.best.split.recompute == "none"
    assert any("selective recomputation is none" in note for note in found.assumptions)
    kept = plan("llama-3.1-8b", "trn2.48xlarge", 1, wanted={"recompute": "selective"},
                attention="scores")  # fmt: skip
    assert kept.best.split.recompute == "selective"
    assert not any("selective" in note for note in kept.assumptions)
