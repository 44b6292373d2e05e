"""Spills: a program whose tiles do not fit SBUF computes the same with them, and then fits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn import nki
from opentrn.base import CapacityError
from opentrn.hw import chip
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.profiler import profile
from opentrn.sim import Replay, place, spilled, spills_of, timeline

TRN2 = chip("trn2")
WIDTH = 8192  # float32: 32 KiB of each partition, of which six fit the 208 KiB
TILE = 128 * WIDTH * 4


def kernel(x, order=(), update=True):
    """x + n for the n-th block of rows: all are loaded, then stored in `order`."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tiles = []
    for n in range(x.shape[0] // 128):
        tile = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf, name=f"t{n}")
        nisa.dma_copy(dst=tile, src=x[nl.ds(n * 128, 128)])
        if update:
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=float(n))
        tiles.append(tile)
    for n in order or range(len(tiles)):
        nisa.dma_copy(dst=out[nl.ds(n * 128, 128)], src=tiles[n])
    return out


def numbers(blocks):
    return np.random.default_rng(3).standard_normal((blocks * 128, WIDTH)).astype(np.float32)


def refusal(program, target=TRN2):
    with pytest.raises(CapacityError) as caught:
        place(program, target)
    return caught.value


def traffic(program):
    return {name: sum(one.form.move.nbytes for one in found)
            for name, found in spills_of(program).items()}  # fmt: skip


def test_two_tiles_of_eight_go_and_come_back():
    x = numbers(8)
    ran = nki.run(kernel, x)
    added = np.repeat(np.arange(8, dtype=np.float32), 128)[:, None]
    np.testing.assert_array_equal(ran.outputs, x + added)
    assert [one.code for one in ran.findings] == ["sim.spilled"]
    assert "8.00 MiB are spilled to HBM, 8.00 MiB come back" in ran.findings[0].what
    made = spilled(ran.program, TRN2, refusal(ran.program))
    # Six tiles of 32 KiB fit 208 KiB, so the seventh and the eighth need a place each.
    assert traffic(made) == {"spill_save": 2 * TILE, "spill_reload": 2 * TILE}
    place(made, TRN2)
    np.testing.assert_array_equal(Replay(made, TRN2)([x])[0], x + added)


def test_a_tile_that_is_a_copy_of_an_input_is_read_again_and_not_saved():
    x = numbers(8)
    ran = nki.run(kernel, x, (*range(8), *range(8)), False)
    made = spilled(ran.program, TRN2, refusal(ran.program))
    found = traffic(made)
    assert found["spill_save"] == 0
    assert found["spill_reload"] > 0
    (again, *_), (_, *_) = spills_of(made)["spill_reload"], ran.program.body
    assert [view.buffer.name for view in again.reads()] == ["x"]
    np.testing.assert_array_equal(Replay(made, TRN2)([x])[0], x)


def test_a_load_whose_tile_is_not_used_meanwhile_moves():
    """Each tile is used once: the loads of those that do not fit come later, nothing is doubled."""
    ran = nki.run(kernel, numbers(8), (), False)
    made = spilled(ran.program, TRN2, refusal(ran.program))
    assert traffic(made) == {"spill_save": 0, "spill_reload": 0}
    assert len(made.body) == len(ran.program.body)


@settings(deadline=None, max_examples=8)
@given(st.permutations(range(9)), st.booleans(), st.lists(st.integers(0, 8), max_size=6))
def test_a_program_with_its_spills_computes_the_same(order, update, more):
    x = numbers(9)[:, :WIDTH]
    with nki.use_target("trn2"):
        program = nki.record(kernel, TRN2, *_like(x), tuple(order) + tuple(more), update).program
    made = spilled(program, TRN2, refusal(program))
    place(made, TRN2)
    np.testing.assert_array_equal(Replay(made, TRN2)([x])[0], Replay(program, TRN2)([x])[0])
    ours = [one for one in made.body if one.name not in ("spill_save", "spill_reload")]
    assert sorted(one.opcode for one in ours) == sorted(one.opcode for one in program.body)


def _like(x):
    from opentrn.base import float32
    from opentrn.isa import Buffer, view_of

    return (view_of(Buffer(0, "hbm", x.shape, float32)),)


def test_the_profile_counts_them_and_names_the_tile():
    program = nki.run(kernel, numbers(8)).program
    found = profile(timeline(program, TRN2)).summary
    assert found["spill_save_bytes"] == found["spill_reload_bytes"] == 2 * TILE
    assert found["hbm_reload_bytes"] == 0  # no input is read twice
    # 8 loads and 8 stores of the kernel, 2 of either for the spills.
    assert found["dma_transfer_total_bytes"] == (16 + 4) * TILE
    assert "spills 8.00 MiB out, 8.00 MiB in" in str(found)
    (advice,) = [one for one in found.advice if one.code == "spill"]
    assert advice.line.startswith("test_spill.py:")


def test_what_has_an_address_or_a_loop_or_no_room_is_refused():
    def placed(x):
        for n in range(8):
            tile = nl.ndarray((128, WIDTH), nl.float32, buffer=nl.sbuf, address=(0, 0))
            nisa.dma_copy(dst=tile, src=x[nl.ds(n * 128, 128)])
        tiles = [nl.ndarray((128, WIDTH), nl.float32, buffer=nl.sbuf) for _ in range(8)]
        for tile in tiles:
            nisa.memset(dst=tile, value=1.0)
        for tile in tiles:
            nisa.dma_copy(dst=x[0:128], src=tile)
        return x

    def together(x):
        a, b = (nl.ndarray((128, 30_000), nl.float32, buffer=nl.sbuf) for _ in range(2))
        nisa.memset(dst=a, value=0.0)
        nisa.memset(dst=b, value=0.0)
        nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add)
        nisa.dma_copy(dst=x[0:128], src=a[:, 0:WIDTH])
        return x

    for refused in (placed, together):
        with pytest.raises(CapacityError, match="SBUF is full"):
            nki.run(refused, numbers(8))


def reloaded(x, turns):
    """The same eight tiles are loaded and stored in each turn."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tiles = [nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf) for _ in range(8)]
    for _ in range(turns):
        for n, tile in enumerate(tiles):
            nisa.dma_copy(dst=tile, src=x[nl.ds(n * 128, 128)])
        for n, tile in enumerate(tiles):
            nisa.dma_copy(dst=out[nl.ds(n * 128, 128)], src=tile)
    return out


def test_a_value_that_is_overwritten_is_neither_saved_nor_brought_back():
    x = numbers(8)
    ran = nki.run(reloaded, x, 2)
    made = spilled(ran.program, TRN2, refusal(ran.program))
    assert traffic(made) == {"spill_save": 0, "spill_reload": 0}
    assert len(made.body) == 2 * 16
    np.testing.assert_array_equal(Replay(made, TRN2)([x])[0], x)

    def zeroed(x):
        """What the tiles hold is dropped for zeros before anyone reads it again."""
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tiles = [nl.ndarray((128, WIDTH), dtype=x.dtype, buffer=nl.sbuf) for _ in range(8)]
        for value in (1.0, 0.0):
            for tile in tiles:
                nisa.memset(dst=tile, value=value)
        for n, tile in enumerate(tiles):
            nisa.dma_copy(dst=out[nl.ds(n * 128, 128)], src=tile)
        return out

    ran = nki.run(zeroed, x)
    made = spilled(ran.program, TRN2, refusal(ran.program))
    assert traffic(made) == {"spill_save": 2 * TILE, "spill_reload": 2 * TILE}  # the zeros
    np.testing.assert_array_equal(Replay(made, TRN2)([x])[0], np.zeros_like(x))


def test_a_copy_of_an_input_is_not_read_again_before_it_is_overwritten():
    def twice(x):
        """Eight tiles of x are stored, filled with zeros and stored again."""
        out = nl.ndarray((2 * x.shape[0], WIDTH), dtype=x.dtype, buffer=nl.shared_hbm)
        tiles = [nl.ndarray((128, WIDTH), dtype=x.dtype, buffer=nl.sbuf) for _ in range(8)]
        for n, tile in enumerate(tiles):
            nisa.dma_copy(dst=tile, src=x[nl.ds(n * 128, 128)])
        for n, tile in enumerate(tiles):
            nisa.dma_copy(dst=out[nl.ds(n * 128, 128)], src=tile)
        for tile in tiles:
            nisa.memset(dst=tile, value=0.0)
        for n, tile in enumerate(tiles):
            nisa.dma_copy(dst=out[nl.ds((8 + n) * 128, 128)], src=tile)
        return out

    x = numbers(8)
    ran = nki.run(twice, x)
    made = spilled(ran.program, TRN2, refusal(ran.program))
    loads = [one for one in made.body if any(v.buffer in made.inputs for v in one.reads())]
    assert len(loads) == 8  # the last two are loaded when there is room; none for the zeros
    np.testing.assert_array_equal(Replay(made, TRN2)([x])[0], np.vstack((x, np.zeros_like(x))))


def test_tiles_of_many_sizes_fit_in_spite_of_the_holes_between_them():
    rng, plan = np.random.default_rng(1), []
    for n in range(1000):
        width = int(rng.choice([512, 1024, 2048, 4096, 1536]))
        plan.append((width, *(rng.integers([61, 60]).tolist() if n >= 60 else (0, 0))))

    def mixed(x, sums):
        out = nl.ndarray((1, 1), dtype=x.dtype, buffer=nl.shared_hbm)
        held = []
        for width, one, other in plan:
            tile = nl.ndarray((128, width), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x[:, 0:width])
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
            held.append(tile)
            if len(held) > 60:
                left = held.pop(one)
                into = held[other]
                least = min(left.shape[1], into.shape[1])
                both = into[:, 0:least]
                nisa.tensor_tensor(dst=both, data1=left[:, 0:least], data2=both, op=nl.add)
        for n, tile in enumerate(held):
            nisa.dma_copy(dst=sums[n : n + 1, 0 : tile.shape[1]], src=tile[0:1])
        nisa.dma_copy(dst=out, src=held[0][0:1, 0:1])
        return out

    x = np.random.default_rng(5).integers(-4, 5, (128, 4096)).astype(np.float32)
    sums = np.zeros((60, 4096), np.float32)
    program = nki.run(mixed, x, sums).program
    made = spilled(program, TRN2, refusal(program))
    place(made, TRN2)
    held = []
    for width, one, other in plan:
        held.append(x[0, :width].astype(np.float64) + 1)
        if len(held) > 60:
            left = held.pop(one)
            into = held[other]
            least = min(len(left), len(into))
            into[:least] += left[:least]
    replay = Replay(made, TRN2)
    assert replay([x, sums])[0] == held[0][0]
    written = replay.read(made.inputs[1])
    for row, wanted in zip(written, held, strict=True):
        np.testing.assert_array_equal(row[: len(wanted)], wanted)


def test_a_program_asked_about_again_is_the_same_and_noticed_once():
    program = nki.run(kernel, numbers(8)).program
    one, other = timeline(program, TRN2), timeline(program, TRN2)
    assert one.program is other.program is not program
    assert [found.code for found in other.placement.findings] == ["sim.spilled"]
