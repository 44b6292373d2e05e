"""Addresses an integer on chip decides, reductions over program instances, atomic updates."""

import importlib

import numpy as np
import pytest

from opentrn import dropin
from opentrn.base import TrnError
from opentrn.nki import PerRank, simulate
from opentrn.nki import beta1 as nki
from opentrn.nki.beta1 import isa as nisa
from opentrn.nki.beta1 import language as nl

RNG = np.random.default_rng(11)


@nki.jit
def gathered(data, offsets, width):
    """Parts of `width` columns, each at an offset that a tile holds."""
    out = nl.ndarray((128, offsets.shape[1] * width), data.dtype, buffer=nl.shared_hbm)
    tile, places = nl.load(data), nl.load(offsets)
    parts = nl.ndarray(out.shape, data.dtype, buffer=nl.sbuf)
    ix, iy = nl.mgrid[0:128, 0:width]
    for n in nl.affine_range(offsets.shape[1]):
        parts[ix, n * width + iy] = nisa.tensor_copy_dynamic_src(tile[ix, places[0, n] + iy])
    nl.store(out, parts)
    return out


@pytest.mark.parametrize("width", [1, 3])
def test_a_copy_from_a_place_a_tile_holds(width):
    data = RNG.random((128, 40)).astype(np.float32)
    offsets = RNG.integers(0, 40 - width + 1, (1, 7)).astype(np.int32)
    wanted = np.concatenate([data[:, o : o + width] for o in offsets[0]], axis=1)
    np.testing.assert_array_equal(gathered(data, offsets, width), wanted)


def test_a_place_outside_the_tile_is_refused_while_it_runs():
    offsets = np.array([[38]], np.int32)
    gathered(RNG.random((128, 40)).astype(np.float32), offsets, 2)
    with pytest.raises(TrnError, match="dynamic index 38 is outside `data`|is outside `src`"):
        gathered(RNG.random((128, 40)).astype(np.float32), offsets, 3)


def test_an_integer_of_a_tile_selects_in_one_of_several_free_dimensions():
    @nki.jit
    def rows(data, offsets):
        out = nl.ndarray((128, offsets.shape[1], 4), data.dtype, buffer=nl.shared_hbm)
        tile, places = nl.load(data), nl.load(offsets)
        parts = nl.ndarray(out.shape, data.dtype, buffer=nl.sbuf)
        ix, _, iz = nl.mgrid[0:128, 0:1, 0:4]
        for n in range(offsets.shape[1]):
            parts[ix, n, iz] = nisa.tensor_copy_dynamic_src(tile[ix, places[0, n], iz])
        nl.store(out, parts)
        return out

    data = RNG.random((128, 16, 4)).astype(np.float32)
    offsets = np.array([[3, 15, 0, 3]], np.int32)
    np.testing.assert_array_equal(rows(data, offsets), data[:, offsets[0]])


def test_a_copy_to_a_place_a_tile_holds():
    @nki.jit
    def scattered(data, offsets):
        out = nl.ndarray(data.shape, data.dtype, buffer=nl.shared_hbm)
        tile, places = nl.load(data), nl.load(offsets)
        moved = nl.zeros(data.shape, data.dtype, buffer=nl.sbuf)
        ix, iy = nl.mgrid[0:128, 0:2]
        for n in range(offsets.shape[1]):
            place = moved[ix, iy + places[0, n] * 2]
            nisa.tensor_copy_dynamic_dst(dst=place, src=tile[ix, 2 * n + iy])
        nl.store(out, moved)
        return out

    data = RNG.random((128, 8)).astype(np.float32)
    offsets = np.array([[2, 0, 3]], np.int32)
    wanted = np.zeros_like(data)
    for n, o in enumerate(offsets[0]):
        wanted[:, 2 * o : 2 * o + 2] = data[:, 2 * n : 2 * n + 2]
    np.testing.assert_array_equal(scattered(data, offsets), wanted)


@pytest.mark.parametrize(
    "key",
    [
        lambda ix, iy, t: (t[0, 0], iy),
        lambda ix, iy, t: (ix, t[0:1, 0:2]),
        lambda ix, iy, t: (ix, t[0, 0] * 1.5 + iy),
    ],
    ids=["partition", "several", "float"],
)
def test_places_the_hardware_cannot_follow_are_refused(key):
    @nki.jit
    def wrong(data, offsets):
        ix, iy = nl.mgrid[0:128, 0:2]
        tile, places = nl.load(data), nl.load(offsets)
        nisa.tensor_copy_dynamic_src(tile[key(ix, iy, places)])

    with pytest.raises(TrnError) as refused:
        wrong(RNG.random((128, 8)).astype(np.float32), np.zeros((1, 2), np.int32))
    assert refused.value.code == "beta1.indirect"


# ---------------------------------------------------------------------- program instances


@nki.jit
def reduced(data, op, axes):
    """`op` over the tiles of the program instances along `axes`."""
    out = nl.ndarray(data.shape, data.dtype, buffer=nl.shared_hbm)
    i, j = nl.program_id(0), nl.program_id(1)
    nl.store(out[i, j], nl.all_reduce(nl.load(data[i, j]), op=op, program_axes=axes))
    return out


@pytest.mark.parametrize(
    ("axes", "numpy_axes"), [(0, 0), ([1], 1), ((0, 1), (0, 1))], ids=["first", "second", "both"]
)
@pytest.mark.parametrize("op", [np.add, np.maximum])
def test_a_reduction_over_program_instances_gives_every_one_the_same(op, axes, numpy_axes):
    data = RNG.standard_normal((3, 2, 16, 8)).astype(np.float32)
    wanted = op.reduce(data.astype(np.float64), axis=numpy_axes, keepdims=True)
    got = reduced[3, 2](data, op, axes)
    np.testing.assert_allclose(got, np.broadcast_to(wanted, data.shape), rtol=1e-6, atol=1e-6)


def test_axes_the_launch_grid_does_not_have_are_refused():
    with pytest.raises(TrnError) as refused:
        reduced[3, 2](np.ones((3, 2, 16, 8), np.float32), np.add, 2)
    assert refused.value.code == "beta1.program_axes"


def test_a_reduction_only_some_instances_take_part_in_never_ends_and_says_so():
    @nki.jit
    def alone(data):
        tile = nl.load(data)
        if nl.program_id(0) == 1:
            nl.all_reduce(tile, op=np.add, program_axes=0)

    with pytest.raises(TrnError, match=r"program instance \[1\] waits") as refused:
        alone[2](np.ones((4, 4), np.float32))
    assert refused.value.code == "sim.deadlock"


# ---------------------------------------------------------------------- atomic updates


@nki.jit
def histogram(bins, weights):
    """Rows of `weights` added to the rows that `bins` names."""
    out = nl.ndarray((8, weights.shape[1]), weights.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.zeros(out.shape, out.dtype))
    ix = nl.arange(weights.shape[1])[None, :]
    nl.atomic_rmw(out[nl.load(bins), ix], value=nl.load(weights), op=np.add)
    return out


def test_atomic_updates_add_to_a_row_as_often_as_it_is_named():
    bins = np.array([[0], [3], [3], [3], [7]], np.int32)
    weights = RNG.integers(0, 100, (5, 4)).astype(np.float32)
    wanted = np.zeros((8, 4), np.float32)
    np.add.at(wanted, bins[:, 0], weights)
    np.testing.assert_array_equal(histogram(bins, weights), wanted)


def test_other_atomic_updates_are_refused():
    @nki.jit
    def plain(data):
        out = nl.ndarray(data.shape, data.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(data))
        nl.atomic_rmw(out, value=nl.load(data), op=np.add)
        return out

    with pytest.raises(TrnError) as refused:
        plain(np.ones((4, 4), np.float32))
    assert refused.value.code == "beta1.atomic"


def test_what_python_raises_inside_opentrn_is_a_refusal_at_the_kernels_line():
    @nki.jit
    def wrong(data):
        nisa.activation(np.exp, nl.load(data), scale="two")

    with pytest.raises(TrnError) as refused:
        wrong(np.ones((4, 4), np.float32))
    assert refused.value.at.file == __file__


# ---------------------------------------------------------------------- ranks


GROUPS = [[0, 1], [2, 3]]


def exchanged(call, shape):
    """A kernel that exchanges a copy of its argument and returns what arrives."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray(shape, x.dtype, buffer=nl.shared_hbm)
        sent = nl.ndarray(x.shape, x.dtype, buffer=nl.hbm)
        received = nl.ndarray(shape, x.dtype, buffer=nl.hbm)
        nl.store(sent, nl.load(x))
        call(sent, received)
        nl.store(out, nl.load(received))
        return out

    return kernel


def on_four_ranks(call, shape):
    """What each of four ranks receives; rank r sends RANKS[r]."""
    return simulate(exchanged(call, shape), ranks=4)(PerRank(RANKS))


RANKS = [RNG.integers(0, 50, (4, 6)).astype(np.float32) for _ in range(4)]


def test_ranks_of_a_group_reduce_among_themselves():
    got = on_four_ranks(
        lambda a, b: nki.nccl.all_reduce(op=np.add, srcs=[a], dsts=[b], replica_groups=GROUPS),
        (4, 6),
    )
    for rank, first in enumerate((0, 0, 2, 2)):
        np.testing.assert_array_equal(got[rank], RANKS[first] + RANKS[first + 1])


def test_ranks_gather_scatter_and_send_round():
    everyone = list(range(4))
    gathered = on_four_ranks(
        lambda a, b: nki.nccl.all_gather(
            op=np.add, srcs=[a], dsts=[b], replica_groups=everyone, all_gather_dim=0, dtype=a.dtype
        ),
        (16, 6),
    )
    rows = on_four_ranks(
        lambda a, b: nki.nccl.all_gather(
            op=np.add,
            srcs=[a[0:1]],
            dsts=[b],
            replica_groups=everyone,
            all_gather_dim=1,
        ),
        (1, 24),
    )
    scattered = on_four_ranks(
        lambda a, b: nki.nccl.reduce_scatter(
            op=np.maximum, srcs=[a], dsts=[b], replica_groups=[everyone], reduce_scatter_dim=0
        ),
        (1, 6),
    )
    swapped = on_four_ranks(
        lambda a, b: nki.nccl.all_to_all(np.add, [a], [b], everyone, 0, 0), (4, 6)
    )
    ring = on_four_ranks(
        lambda a, b: nki.nccl.collective_permute(
            dst=b, src=a, source_target_pairs=[(r, (r + 1) % 4) for r in everyone]
        ),
        (4, 6),
    )
    for rank in everyone:
        np.testing.assert_array_equal(gathered[rank], np.concatenate(RANKS))
        np.testing.assert_array_equal(rows[rank][0], np.concatenate([x[0] for x in RANKS]))
        greatest = np.maximum.reduce(RANKS)
        np.testing.assert_array_equal(scattered[rank], greatest[rank : rank + 1])
        np.testing.assert_array_equal(swapped[rank], np.stack([x[rank] for x in RANKS]))
        np.testing.assert_array_equal(ring[rank], RANKS[rank - 1])


def test_alone_a_kernel_is_the_only_rank():
    kernel = exchanged(
        lambda a, b: nki.nccl.all_reduce(op=np.add, srcs=[a], dsts=[b], replica_groups=GROUPS),
        (4, 6),
    )
    with pytest.raises(TrnError, match="there is 1 rank") as refused:
        kernel(RANKS[0])
    assert refused.value.code == "nki.ranks"
    alone = exchanged(
        lambda a, b: nki.nccl.all_reduce(op=np.add, srcs=[a], dsts=[b], replica_groups=[[0]]),
        (4, 6),
    )
    np.testing.assert_array_equal(alone(RANKS[0]), RANKS[0])


def test_an_array_given_to_every_rank_is_not_written_back_to():
    @nki.jit
    def filled(x):
        nl.store(x, nl.load(x) * 2.0)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x))
        return out

    shared = np.ones((4, 4), np.float32)
    got = simulate(filled, ranks=2)(shared)
    assert all((one == 2.0).all() for one in got)
    assert (shared == 1.0).all()
    filled(shared)
    assert (shared == 2.0).all()


def test_collectives_that_are_not_built_say_so():
    with pytest.raises(TrnError) as refused:
        nki.nccl.collective_permute_implicit  # noqa: B018
    assert refused.value.code == "beta1.collectives"


def test_importing_the_older_names_changes_nothing():
    with dropin.install("trn2"):
        found = importlib.import_module("neuronxcc.nki.nccl.collectives")
    assert found.all_reduce is nki.nccl.all_reduce
    alone = exchanged(
        lambda a, b: nki.nccl.all_reduce(op=np.add, srcs=[a], dsts=[b], replica_groups=[[0]]),
        (4, 6),
    )
    np.testing.assert_array_equal(alone(RANKS[0]), RANKS[0])
