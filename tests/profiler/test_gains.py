"""Advice that is followed: the gain it predicts beside the gain a second kernel has."""

import linecache

import numpy as np
import pytest

import opentrn.nki as nki
from opentrn.profiler import profile
from tests.profiler import pairs
from tests.profiler.pairs import numbers

X, W = numbers(2048, 1024), numbers(1024, 256)
ROW, FACTORS = numbers(128, 4096, dtype=np.float32), numbers(2048, 1, dtype=np.float32)
DEEP, WIDE = numbers(1024, 512, dtype=np.float32), numbers(1024, 1024, dtype=np.float32)
APART = numbers(24, 128, 64, 64)
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
        np.float32(before.outputs), np.float32(after.outputs), rtol=0.05, atol=0.05 * 32
    )
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


def test_a_fuller_array_helps_where_no_gain_is_predicted():
    before, after = nki.run(pairs.thin_multiplies, *PAIR), nki.run(pairs.full_multiplies, *PAIR)
    np.testing.assert_allclose(before.outputs, after.outputs, rtol=1e-3, atol=0.1)
    thin, full = (profile(run.timeline()).summary for run in (before, after))
    assert "small_matmuls" in {one.code for one in thin.advice}
    assert "small_matmuls" not in {one.code for one in full.advice}
    assert full["total_time"] < 0.8 * thin["total_time"]


def test_fewer_transfers_help_a_queue_that_is_busy_issuing():
    """The gain counts what issuing costs; that longer runs also move faster comes on top."""
    runs = (nki.run(k, numbers(128, 512)) for k in (pairs.tiny_pieces, pairs.large_pieces))
    tiny, large = (profile(run.timeline()).summary for run in runs)
    given = {one.code: one for one in tiny.advice}
    measured = 1.0 - large["total_time"] / tiny["total_time"]
    assert 0.3 < given["issue"].predicted_gain <= measured
    assert "issue" not in {one.code for one in large.advice}


def test_what_happens_once_has_no_next_tile_but_can_be_cut_into_tiles():
    x = numbers(128, 16384)
    runs = [nki.run(pairs.fresh_tiles, given) for given in (x, x.reshape(8 * 128, 2048))]
    once, cut = (profile(run.timeline()).summary for run in runs)
    codes = {one.code for one in once.advice}
    assert "split" in codes
    assert "overlap" not in codes
    assert "split" not in {one.code for one in cut.advice}
    assert cut["total_time"] < 0.8 * once["total_time"]
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
