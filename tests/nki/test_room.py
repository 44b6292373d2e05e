"""Kernels whose tiles do not fit SBUF or PSUM are refused when they run, not only when checked;
where the compiler spills tiles, that is noticed."""

import numpy as np
import pytest

from opentrn import hw, nki
from opentrn.base import CapacityError
from opentrn.nki import beta1, check
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.nki.beta1 import language as ol

X = np.ones((128, 512), np.float32)
GIVEN = {"x": nki.Shaped(nl.float32, (128, 512))}


def one_tile(x):
    nisa.memset(nl.ndarray((128, 60000), nl.float32), 0.0)
    return x


@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_a_tile_of_240_000_bytes_is_refused_where_it_is_made(target):
    with nki.use_target(target), pytest.raises(CapacityError) as caught:
        nki.run(one_tile, X)
    assert caught.value.code == "sim.sbuf_capacity"
    assert "240,000 bytes" in caught.value.what
    assert f"{int(hw.chip(target).core.sbuf_usable):,}" in caught.value.what
    assert caught.value.at.text.startswith("nisa.memset(nl.ndarray((128, 60000)")
    assert [e.code for e in check(one_tile, target, GIVEN).refusals] == ["sim.sbuf_capacity"]


def psum_tiles(x, count=9, together=True):
    """`count` PSUM tiles of a bank each, read together at the end or one after the other."""
    made = [nl.ndarray((128, 512), nl.float32, buffer=nl.psum, name=f"p{n}") for n in range(count)]
    kept = nl.ndarray((128, 512), nl.float32)
    for tile in made:
        nisa.memset(tile, 1.0)
        if not together:
            nisa.tensor_copy(kept, tile)
    if together:
        for tile in made:
            nisa.tensor_copy(kept, tile)
    return x


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_nine_live_psum_tiles_are_one_bank_too_many(target):
    with nki.use_target(target):
        nki.run(psum_tiles, X, 8)
        nki.run(psum_tiles, X, 9, False)  # all can be reached, but one lives at a time
        with pytest.raises(CapacityError) as caught:
            nki.run(psum_tiles, X)
    assert caught.value.code == "sim.psum_capacity"
    text = str(caught.value)
    assert "18,432 bytes" in text
    assert "16,384 are usable" in text
    assert "p0" in text
    assert "made = [nl.ndarray((128, 512)" in text


def test_sbuf_is_counted_by_lives_not_by_how_many_tiles_were_made():
    def kernel(x, keep):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        made = []
        for _ in range(5):
            tile = nl.ndarray((128, 12800), nl.float32)
            nisa.memset(tile, 1.0)
            nl.store(out, tile[:, 0:512])
            made = [*made, tile] if keep else []
        for tile in made:
            nl.store(out, tile[:, 0:512])
        return out

    assert (nki.run(kernel, X, False).outputs == 1).all()
    assert nki.run(kernel, X, False).findings == ()
    kept = nki.run(kernel, X, True)  # 5 x 51,200 bytes: the compiler spills one
    assert (kept.outputs == 1).all()
    assert [one.code for one in kept.findings] == ["sim.spilled"]
    assert "5 tiles alive" in kept.findings[0].what
    assert "need 256,000 bytes" in kept.findings[0].what


def test_device_loops_cores_and_the_older_language_are_counted_too():
    def looped(x):
        made = [nl.full((128, 20000), 0.0, nl.float32) for _ in range(3)]

        def body(i):
            for tile in made:
                nisa.tensor_scalar(tile, tile, nl.add, 1.0)

        nl.fori_loop(0, 2, body)
        return x

    with pytest.raises(CapacityError):
        nki.run(looped, X)
    with pytest.raises(CapacityError):
        nki.run(nki.jit(psum_tiles)[2], X)

    @beta1.jit
    def older(x):
        tiles = [ol.ndarray((128, 12800), dtype=ol.float32, buffer=ol.sbuf) for _ in range(5)]
        for tile in tiles:
            tile[...] = ol.zeros((128, 12800), dtype=ol.float32, buffer=ol.sbuf)
        for tile in tiles:
            ol.store(x, tile[:, 0:512])

    with nki.watch() as runs:
        older(X.copy())
    assert [one.code for one in runs[0].findings] == ["sim.spilled"]
