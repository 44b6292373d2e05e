"""Requests without a legal split: what is in the way, and that what is named as nearest works."""

import re

import pytest

from opentrn.base import LimitError, UnknownNameError, UsageError
from opentrn.plan import fits, plan, plan_serving


@pytest.mark.parametrize(("model", "wanted", "told"), [
    ("llama-3.1-8b", {"micro_batch": 128}, "tried up to 64"),
    ("llama-3.1-8b", {"cp": 64}, "at least 4,096 tokens"),
    ("llama-3.1-8b", {"dp": 5}, "over 64 devices .LNC 2. .* dp 5 does not divide 64 devices"),
    ("mixtral-8x7b", {"ep": 3}, "does not divide 8 experts"),
    ("mixtral-8x7b", {"tp": 64, "ep": 8}, "32 heads do not divide by 64"),
])  # fmt: skip
def test_a_degree_that_is_wrong_by_itself_is_named(model, wanted, told):
    with pytest.raises(LimitError, match=told) as caught:
        plan(model, "trn2.48xlarge", 1, wanted=wanted)
    assert "legal: tp 1, 2, 4" in caught.value.fix


def test_a_degree_that_the_smaller_logical_core_allows_is_not_called_wrong():
    # 64 cores of LNC 2 do not divide by 128, the 128 of LNC 1 do; with tp 2 there are too few.
    with pytest.raises(LimitError, match="do not go together") as caught:
        plan("llama-3.1-8b", "trn2.48xlarge", 1, wanted={"dp": 128, "tp": 2})
    assert caught.value.fix == "tp 1 with the others as asked for"
    assert plan("llama-3.1-8b", "trn2.48xlarge", 1, wanted={"dp": 128, "tp": 1}).best.lnc == 1


def test_links_of_one_machine_bound_tensor_parallelism():
    with pytest.raises(LimitError, match="fast links join fewer"):
        plan("llama-3.1-8b", "trn2.3xlarge", 16, wanted={"tp": 32}, lnc=2)


@pytest.mark.parametrize(("model", "wanted"), [
    ("llama-3.1-8b", {"chunks": 3}), ("llama-3.1-8b", {"chunks": 7, "pp": 4}),
    ("mixtral-8x7b", {"ep": 8, "dp": 4}),
    ("llama-3.1-8b", {"tp": 8, "pp": 2, "dp": 16, "cp": 1}),
])  # fmt: skip
def test_degrees_that_do_not_go_together_get_the_nearest_that_do(model, wanted):
    with pytest.raises(LimitError, match="do not go together") as caught:
        plan(model, "trn2.48xlarge", 1, wanted=wanted, optimizer="adamw-bf16", batch=64, lnc=2)
    name, value = re.match(r"([a-z-]+) (\d+)", caught.value.fix).groups()
    found = plan(model, "trn2.48xlarge", 1, optimizer="adamw-bf16", batch=64, lnc=2,
                 wanted=wanted | {name.replace("-", "_"): int(value)})  # fmt: skip
    assert found.best.step.fits


@pytest.mark.parametrize("count", [10**6, 10**12, 10**18])
def test_a_batch_that_divides_nowhere_gets_one_that_does(count):
    with pytest.raises(LimitError, match="batch of 512 does not divide") as caught:
        plan("llama-3.1-8b", "trn2.48xlarge", count, batch=512)
    batch = int(re.search(r"batch of ([0-9,]+)", caught.value.fix)[1].replace(",", ""))
    assert plan("llama-3.1-8b", "trn2.48xlarge", count, batch=batch, lnc=2).best.step.fits


def test_the_batch_that_is_named_is_the_nearest_of_all():
    # The fewest replicas: 64 x 10^12 cores of LNC 2 by tensor 32 x context 2 x pipeline 32.
    with pytest.raises(LimitError) as caught:
        plan("llama-3.1-8b", "trn2.48xlarge", 10**12, batch=512)
    assert caught.value.fix == f"a batch of {64 * 10**12 // (32 * 2 * 32):,}, or fewer machines"


def test_an_enormous_batch_takes_no_time():
    assert plan("llama-3.1-8b", "trn2.3xlarge", 4, batch=10**14, sequence=512).best.step.fits


@pytest.mark.parametrize("sequence", [197, 1000, 6000])
def test_the_batch_that_is_assumed_divides_for_any_sequence(sequence):
    found = plan("llama-3.1-8b", "trn2.48xlarge", 4, sequence=sequence)
    assert 2**21.5 <= found.step_tokens <= 2**22.5  # 4 Mi tokens as nearly as a power of two goes
    assert found.best.split.devices in (256, 512)


@pytest.mark.parametrize(("model", "wanted", "told"), [
    ("llama-3.1-8b", {"tp": 7}, "32 heads do not divide by 7"),
    ("llama-3.1-8b", {"pp": 32}, "at most 16 stages"),
    ("llama-3.1-8b", {"ep": 2}, "needs experts"),
    ("mixtral-8x7b", {"ep": 8, "pp": 2}, "without a pipeline"),
])  # fmt: skip
def test_serving_tells_which_degree_is_in_the_way(model, wanted, told):
    with pytest.raises(LimitError, match=told) as caught:
        plan_serving(model, "trn2.48xlarge", 1, wanted=wanted)
    assert caught.value.code == "plan.request"
    assert "legal: tp 1, 2, 4" in caught.value.fix


def test_learned_positions_end_and_a_context_is_told():
    # GPT-3 has a table of 2,048 positions (Brown et al., section 2.1), BERT one of 512.
    for ask in (
        lambda: plan("gpt-3-6.7b", "trn2.48xlarge", 1, sequence=4096),
        lambda: plan("bert-large", "trn2.48xlarge", 1, sequence=513),
        lambda: plan("opt-13b", "trn2.48xlarge", 1, sequence=2049),
        lambda: plan_serving("gpt-3-6.7b", "trn2.48xlarge", 1, prompt=2048, answer=1),
        lambda: fits("gpt-3-6.7b", "trn2.48xlarge", context=2049),
    ):
        with pytest.raises(LimitError, match="learned positions"):
            ask()
    told = "beyond the 8,192 that llama-3-8b was made for"
    notes = plan("llama-3-8b", "trn2.48xlarge", 1, sequence=16384, batch=256).assumptions
    assert any(told in note for note in notes)
    notes = plan_serving("llama-3-8b", "trn2.48xlarge", 1, prompt=8192, answer=1).assumptions
    assert any(told in note for note in notes)
    assert any(told in note for note in fits("llama-3-8b", "trn2.48xlarge", context=9000).warnings)
    assert not any("beyond" in note for note in plan("llama-3-8b", "trn2.48xlarge", 1).assumptions)
    assert fits("gpt-3-6.7b", "trn2.48xlarge").kv_total == 2048 * 2 * 32 * 4096 * 2


@pytest.mark.parametrize("options", [
    {"tp": 128}, {"tp": 0}, {"weight_bytes": 0.0}, {"weight_bytes": float("nan")}, {"context": 0},
])  # fmt: skip
def test_a_fit_that_cannot_be_is_refused(options):
    with pytest.raises(UsageError):
        fits("llama-3.1-8b", "trn2.48xlarge", **options)


@pytest.mark.parametrize(("name", "near"), [
    ("trn9", "trn3"), ("p99", "p5"), ("p5.48xl", "p5.48xlarge"), ("tpuv5p", "tpu-v5p"),
    ("?", "trn2"),
])  # fmt: skip
def test_an_unknown_machine_gets_a_few_that_are_near(name, near):
    with pytest.raises(UnknownNameError) as caught:
        plan("llama-3.1-8b", name, 1)
    names = caught.value.fix.removeprefix("try ").split(", ")
    assert len(names) <= 7
    assert any(one.startswith(near) for one in names)
