"""Advice that is followed: the gain it predicts beside the gain a second kernel has."""

import linecache

import numpy as np
import pytest

import opentrn.nki as nki
from opentrn import hw
from opentrn.isa import for_chip
from opentrn.profiler import profile
from opentrn.sim import timeline
from tests.profiler import pairs
from tests.profiler.pairs import numbers

X, W = numbers(2048, 1024), numbers(1024, 256)
ROW, FACTORS = numbers(128, 4096, dtype=np.float32), numbers(2048, 1, dtype=np.float32)
DEEP, WIDE = numbers(1024, 512, dtype=np.float32), numbers(1024, 1024, dtype=np.float32)
APART = numbers(24, 128, 64, 64)
LONG = numbers(128, 16384)
TALL = numbers(10 * 128, 8192, dtype=np.float32)
PAIR = numbers(1024, 128), numbers(1024, 2048)

# advice: (kernel that needs it, its arguments, kernel that follows it, its arguments, its line)
PAIRS = {
    "overlap": (
        pairs.one_tile_for_all, (numbers(2048, 2048),), pairs.fresh_tiles, (numbers(2048, 2048),),
        "nisa.dma_copy(dst=",
    ),
    "small_transfers": (
        pairs.small_pieces, (numbers(128, 4096),), pairs.large_pieces, (numbers(128, 4096),),
        "nisa.dma_copy(dst=out[:, columns], src=done[:, columns])",
    ),
    "slow_transfers": (
        pairs.short_runs, (APART,), pairs.long_runs, (np.ascontiguousarray(APART[..., :32]),),
        "nisa.dma_copy(dst=tile, src=x[block, :, :, nl.ds(0, width)])",
    ),
    "transposes": (
        pairs.turned_on_chip, (X, W), pairs.turned_in_memory, (np.ascontiguousarray(X.T), W),
        "nisa.nc_matmul(dst=acc, stationary=part, moving=weights[:, k, :])",
    ),
    "fp32_matmul": (
        pairs.product, (DEEP, WIDE),
        pairs.product, (DEEP.astype(pairs.BF16), WIDE.astype(pairs.BF16)),
        "nisa.nc_matmul(",
    ),
    "psum_balance": (
        pairs.one_engine_copies, (numbers(128, 1024), numbers(128, 2048)),
        pairs.two_engines_copy, (numbers(128, 1024), numbers(128, 2048)),
        "nisa.tensor_copy(dst=result[:, columns], src=acc, engine=nisa.engine.vector)",
    ),
    "small_matmuls": (
        pairs.thin_multiplies, PAIR, pairs.full_multiplies, PAIR,
        "nisa.nc_matmul(dst=acc, stationary=left[:, g, :], moving=right[:, g, columns])",
    ),
    "split": (
        pairs.fresh_tiles, (LONG,), pairs.fresh_tiles, (LONG.reshape(4 * 128, 4096),),
        "nisa.",
    ),
    "spill": (
        pairs.all_held, (TALL,), pairs.one_at_a_time, (TALL,),
        "nisa.dma_copy(dst=tile, src=x[nl.ds(n * P, P)])",
    ),
    "reload": (
        pairs.read_each_time, (ROW, FACTORS), pairs.read_once, (ROW, FACTORS),
        "nisa.dma_copy(dst=tile, src=x)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("code", PAIRS)
def test_following_the_advice_helps_about_as_much_as_it_says(code):
    first, its, second, theirs, text = PAIRS[code]
    before, after = nki.run(first, *its), nki.run(second, *theirs)
    np.testing.assert_allclose(
        np.float32(before.outputs).ravel(), np.float32(after.outputs).ravel(), rtol=0.05,
        atol=0.05 * 32,
    )  # fmt: skip
    needs, follows = profile(before.timeline()), profile(after.timeline())
    given = {one.code: one for one in needs.summary.advice}
    assert code in given
    assert code not in {one.code for one in follows.summary.advice}
    predicted = given[code].predicted_gain
    measured = 1.0 - follows.summary["total_time"] / needs.summary["total_time"]
    assert predicted > 0.1
    assert measured > 0.1
    assert abs(predicted - measured) < max(0.1, 0.35 * measured)
    file, _, number = given[code].line.partition(":")
    assert file == "pairs.py"
    assert linecache.getline(pairs.__file__, int(number)).strip().startswith(text)


def test_a_warm_clock_saves_what_the_cold_one_costs():
    given = numbers(128, 128), numbers(128, 512)
    before, after = nki.run(pairs.short_bursts, *given), nki.run(pairs.long_bursts, *given)
    np.testing.assert_allclose(20.0 * before.outputs[:, 0], after.outputs[:, 0], rtol=1e-5)
    cold, warm = (profile(run.timeline()).summary for run in (before, after))
    (advice,) = [one for one in cold.advice if one.code == "throttle"]
    assert [one.code for one in cold.advice] == ["throttle"]  # the multiplies are not too small
    assert "throttle" not in {one.code for one in warm.advice}
    # The same multiplies without the limiter, and with longer bursts, which wait less besides.
    free = hw.variant(before.chip, ("tensor.cold_rate=1",))
    never = timeline(for_chip(before.program, free), free).total_ns * 1e-9
    assert advice.predicted_gain == pytest.approx(1.0 - never / cold["total_time"], abs=0.01)
    assert 0.1 < advice.predicted_gain < 1.0 - warm["total_time"] / cold["total_time"]
    assert advice.line.startswith("pairs.py:")


def test_fewer_transfers_help_a_queue_that_is_busy_issuing():
    """The gain counts what issuing costs; that longer runs also move faster comes on top."""
    runs = (nki.run(k, numbers(128, 512)) for k in (pairs.tiny_pieces, pairs.large_pieces))
    tiny, large = (profile(run.timeline()).summary for run in runs)
    given = {one.code: one for one in tiny.advice}
    measured = 1.0 - large["total_time"] / tiny["total_time"]
    assert 0.3 < given["issue"].predicted_gain <= measured
    assert "issue" not in {one.code for one in large.advice}


def test_what_happens_once_has_no_next_tile_to_load_before():
    once = profile(nki.run(pairs.fresh_tiles, LONG).timeline()).summary
    assert "overlap" not in {one.code for one in once.advice}
    small = profile(nki.run(pairs.fresh_tiles, numbers(128, 256)).timeline()).summary
    assert "split" not in {one.code for one in small.advice}


def test_what_is_read_again():
    read = profile(nki.run(pairs.read_each_time, ROW, FACTORS).timeline()).summary
    # 16 blocks of factors, each with the whole of x.
    assert read["hbm_reload_bytes"] == 15 * 128 * 4096 * 4
    (one,) = read.reloads
    assert (one.name, one.read, one.distinct) == ("x", 16 * 128 * 4096 * 4, 128 * 4096 * 4)
    once = profile(nki.run(pairs.read_once, ROW, FACTORS).timeline()).summary
    assert once["hbm_reload_bytes"] == 0
    assert once.reloads == ()
