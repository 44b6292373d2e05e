"""Step times: published runs, hand arithmetic of small cases, and laws that hold for any."""

import dataclasses
import tomllib
from pathlib import Path

import numpy as np
import pytest

from opentrn.base import LimitError, UnknownNameError, UsageError
from opentrn.comm import tiered_all_to_all, tiered_seconds, tiered_send
from opentrn.cost import Serving, Split, Training, memory, platform, step_time, training_parts
from opentrn.cost.demand import training_memory
from opentrn.plan.space import Columns
from opentrn.workloads import model

FLEET = Path(__file__).parents[2] / "bench" / "published" / "fleet"
RUNS = tomllib.loads((FLEET / "megatron.toml").read_text(encoding="utf-8"))


def predicted(run):
    job = {k: run[k] for k in ("batch", "sequence", "dtype", "attention")}
    return step_time(run["model"], run["machine"], Split(**run["split"]), Training(**job))


def test_megatron_on_selene_within_the_aims():
    errors = [float(predicted(run).seconds) / run["seconds"] - 1 for run in RUNS["run"]]
    assert len(errors) == 8
    assert np.mean(np.abs(errors)) < 0.0365  # what Calculon reaches on these runs
    assert np.max(np.abs(errors)) < 0.0887


@pytest.mark.parametrize("row", RUNS["memory"], ids=lambda row: row["model"])
def test_states_and_activations_are_those_of_figure_1(row):
    run = next(r for r in RUNS["run"] if r["model"] == row["model"])
    job = Training(batch=run["batch"], sequence=2048, attention="scores")
    m = model(row["model"])
    split = Split(**run["split"] | {"recompute": "none", "sequence": False})
    held = memory(m, platform("selene"), job, split)
    # The figure leaves out embeddings: 12 h^2 weights a layer, 18 bytes each.
    states = 18 * 12 * m.hidden**2 * m.layers / split.tp / split.pp / 2**30
    assert states == pytest.approx(row["states_gib"], rel=1e-9)
    ours = sum(float(held[k]) for k in ("weights", "gradients", "optimizer")) / 2**30
    ends = 18 * m.hidden * (51200 / split.tp + 2048) / 2**30  # embedding and positions
    assert ours == pytest.approx(states + ends, rel=2e-3)
    assert float(held["activations"]) / 2**30 == pytest.approx(row["activations_gib"], rel=0.01)


def test_ring_of_one_tier_is_the_textbook_formula():
    p = platform("selene").with_efficiency(link=0.5)
    # the model its 10 us come from counts them once for each collective
    wanted = 2 * (7 / 8) * 1e9 / (300e9 * 0.5) + 1e-5
    found = float(tiered_seconds("all_reduce", p.reached, 1e9, 8.0))
    assert found == pytest.approx(wanted, rel=1e-12)
    assert float(tiered_seconds("all_reduce", p.reached, 1e9, 1.0)) == 0.0


def test_a_group_of_two_tiers_reduces_inside_first():
    p = platform("selene").with_efficiency(link=1.0, network=1.0)
    bare = dataclasses.replace(p, tiers=tuple(dataclasses.replace(t, hop=0.0) for t in p.tiers))
    inside, outside = (7 / 8) * 1e9 / 300e9, (3 / 4) * (1e9 / 8) / 25e9
    found = float(tiered_seconds("all_gather", bare.reached, 1e9, 32.0))
    assert found == pytest.approx(inside + outside)
    # Ranks eight apart meet on the network only.
    found = float(tiered_seconds("all_gather", bare.reached, 1e9, 4.0, 8.0))
    assert found == pytest.approx((3 / 4) * 1e9 / 25e9)
    assert float(tiered_send(bare.reached, 1e9, 8.0)) == pytest.approx(1e9 / 25e9)
    assert float(tiered_send(bare.reached, 1e9, 1.0)) == pytest.approx(1e9 / 300e9)
    # Of what a rank sends to 32 others, 7/32 stays inside and 24/32 leaves.
    every = float(tiered_all_to_all(bare.reached, 1e9, 32.0, 1.0))
    assert every == pytest.approx(1e9 * 7 / 32 / 300e9 + 1e9 * 24 / 32 / 25e9)


def test_both_axes_of_a_torus_carry_one_ring():
    p = platform("trn2.48xlarge").with_efficiency(link=1.0, network=1.0)
    bare = dataclasses.replace(p, tiers=tuple(dataclasses.replace(t, hop=0.0) for t in p.tiers))
    # 4 logical cores a chip; 23 GB/s x 16 engines x 2 cores / 2 on the chip.
    chip = (3 / 4) * 1e9 / 368e9
    row, torus = 2 * 128e9 / 4, 4 * 128e9 / 4
    assert float(tiered_seconds("all_gather", bare.reached, 1e9, 16.0, 1.0)) == pytest.approx(
        chip + (3 / 4) * 1e9 / 4 / row)  # fmt: skip
    assert float(tiered_seconds("all_gather", bare.reached, 1e9, 64.0, 1.0)) == pytest.approx(
        chip + (15 / 16) * 1e9 / 4 / torus)  # fmt: skip


def test_memory_of_one_device_by_hand():
    m = model("llama-3.1-8b")
    job = Training(batch=64, sequence=4096)
    held = training_memory(m, platform("p5"), job, Split(dp=64, zero=1))
    n = 8_030_261_248
    assert float(held["weights"]) == 2 * n
    assert float(held["gradients"]) == 4 * n
    assert float(held["optimizer"]) == pytest.approx(12 * n / 64)
    everything = training_memory(m, platform("p5"), job, Split(dp=64, zero=3))
    assert float(everything["weights"]) == pytest.approx(2 * n / 64)
    # 34 numbers of the hidden size become: norms and inputs 4 h, q and out 2 h, k and v 2 kv, 3 ff.
    kept = 2 * (4 * 4096 + 2 * 4096 + 2 * 1024 + 3 * 14336)
    logits = 4 * 128256
    assert float(held["activations"]) == pytest.approx(4096 * (32 * kept + logits))


@pytest.mark.parametrize("ep", [1, 8])
def test_fully_sharded_weights_are_gathered_a_layer_at_a_time_experts_too(ep):
    m, job = model("mixtral-8x7b"), Training(batch=64, sequence=4096)
    held = training_memory(m, platform("p5"), job, Split(dp=64, ep=ep, zero=3))
    experts = 8 * 3 * 4096 * 14336  # of one layer
    others = (46_702_792_704 - 32 * experts) / 32
    # bfloat16, of this layer and the next; and four buffers of a layer's tokens
    gathered = 2 * 2 * (others + experts / ep)
    assert float(held["scratch"]) == pytest.approx(gathered + 4 * 4096 * 4096 * 2)
    # One layer of DeepSeek-V3 has 22.5 GB of experts, more than a core of 24 GiB takes twice.
    wide = training_memory(model("deepseek-v3"), platform("trn2.48xlarge"),
                           Training(batch=4096, sequence=4096), Split(dp=4096, zero=3))  # fmt: skip
    assert float(wide["scratch"]) > 2 * 2 * 256 * 3 * 7168 * 2048


def test_columns_and_single_splits_agree():
    m, p = model("mixtral-8x7b"), platform("trn2.48xlarge")
    job = Training(batch=512, sequence=8192)
    rows = [(8, 1, 2, 16, 4, 2, 4, 2, 1, 1), (4, 2, 1, 32, 8, 1, 1, 0, 1, 3),
            (1, 1, 4, 64, 1, 1, 2, 0, 0, 0)]  # fmt: skip
    columns = Columns(np.array(rows, dtype=float).T)
    together = training_parts(m, p, job, columns)
    held = training_memory(m, p, job, columns)
    for number in range(len(rows)):
        split = columns.split(number)
        for name, value in training_parts(m, p, job, split).items():
            assert np.broadcast_to(together[name], 3)[number] == pytest.approx(float(value))
        for name, value in training_memory(m, p, job, split).items():
            assert np.broadcast_to(held[name], 3)[number] == pytest.approx(float(value))


SPLITS = [
    Split(tp=8, pp=4, dp=2, micro_batch=1, chunks=2), Split(tp=32, dp=2, zero=3),
    Split(tp=4, cp=2, pp=2, dp=4, recompute="full"), Split(tp=8, dp=8, zero=0, sequence=False),
]  # fmt: skip


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_time_never_falls_when_a_rate_falls(split):
    job, base = Training(batch=64, sequence=8192), platform("trn2.48xlarge")
    before = float(step_time("llama-3.1-70b", base, split, job).seconds)
    for name in ("matmul", "memory", "link", "network", "overlap"):
        slow = base.with_efficiency(**{name: base.eff(name) / 2})
        assert float(step_time("llama-3.1-70b", slow, split, job).seconds) >= before * (1 - 1e-12)


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_nothing_beats_the_roofline_and_parts_add_up(split):
    m, p = model("llama-3.1-70b"), platform("trn2.48xlarge")
    step = step_time(m, p, split, Training(batch=64, sequence=8192))
    least = 6 * 69.5e9 * 64 * 8192 / (split.devices * 667e12 / 4)
    assert float(step.seconds) > least
    assert 0 < step.mfu < 1
    assert sum(float(part) for part in step.parts.values()) == pytest.approx(float(step.seconds))
    assert sum(step.seconds.shares.values()) == pytest.approx(1.0)


def test_decode_reads_weights_and_cache_once():
    p = platform("trn2.48xlarge").with_efficiency(memory=1.0, sync=0.0, link=1.0, launch=0.0)
    job = Serving(batch=1, prompt=1024, answer=1024)
    step = step_time("llama-3.1-8b", p, Split(tp=8, zero=0), job, "decode")
    weights = 2 * (8_030_261_248 - 128256 * 4096) / 8
    norms = 2 * (32 * 2 + 1) * 4096 * 7 / 8  # norms are on every device
    cache = 131072 / 8 * (1024 + 512)
    moved = float(step.parts["memory"]) + float(step.parts["compute"])
    assert moved == pytest.approx((weights + norms + cache) / (2.9e12 / 4), rel=1e-6)
    assert step.kind == "decode"


def test_impossible_requests_are_refused():
    with pytest.raises(UnknownNameError, match="nothing-9"):
        platform("nothing-9")
    with pytest.raises(LimitError):
        platform("trn1.32xlarge", 2)
    with pytest.raises(UsageError):
        Split(tp=0)
    with pytest.raises(UsageError):
        Split(dp=4, ep=3)
    with pytest.raises(UsageError):
        Split(recompute="some")
    with pytest.raises(UsageError):
        Training(batch=0, sequence=1)
    with pytest.raises(UsageError):
        Serving(batch=0)
    with pytest.raises(UsageError, match="do not divide"):
        step_time("llama-3.1-8b", "trn2.48xlarge", Split(dp=64), Training(batch=65, sequence=128))
    with pytest.raises(UsageError, match="phase"):
        step_time("llama-3.1-8b", "trn2.48xlarge", Split(), Serving(), "sleep")
    with pytest.raises(UsageError):
        platform("tpu-v5p").peak("float8")


def test_chunks_that_do_not_divide_the_layers_make_no_stage_fuller():
    # 126 layers on 16 stages: the fullest has 8, in however many chunks
    job = Training(batch=2048, sequence=8192)
    split = {"tp": 8, "pp": 16, "dp": 64}
    whole, cut = (step_time("llama-3.1-405b", "p5", Split(chunks=n, **split), job) for n in (1, 7))
    assert float(cut.parts["compute"]) == pytest.approx(float(whole.parts["compute"]))
    # 15 of 32 micro-batches idle at the ends, a seventh as long with seven chunks
    share = float(cut.parts["bubble"]) / float(whole.parts["bubble"])
    assert share == pytest.approx(1 / 7, rel=0.05)


def test_llama_3_of_405_b_on_8192_h100():
    # Grattafiori et al., arXiv 2407.21783, table 4: 430 TFLOP/s of 989 at TP 8, PP 16, DP 64, batch
    # 2,048 x 8,192 tokens, interleaved; chunks of one layer are supposed. Nothing is fitted to it.
    step = step_time("llama-3.1-405b", "p5", Split(tp=8, pp=16, dp=64, chunks=8),
                     Training(batch=2048, sequence=8192))  # fmt: skip
    assert step.mfu == pytest.approx(430 / 989, rel=0.2)
