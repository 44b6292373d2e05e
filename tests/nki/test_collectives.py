"""Values of collectives inside kernels, against NumPy."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn import nki
from opentrn.base import BoundsError, LimitError, UsageError
from opentrn.nki import collectives as ncc
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl

OPS = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum}


def staged(x, name):
    """A copy of an input that a collective may read."""
    made = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name=name)
    nisa.dma_copy(made, x)
    return made


def room(shape, dtype, name):
    return nl.ndarray(shape, dtype, buffer=nl.shared_hbm, name=name)


def returned(tensor):
    out = nl.ndarray(tensor.shape, tensor.dtype, buffer=nl.shared_hbm, name="out")
    nisa.dma_copy(out, tensor)
    return out


@nki.jit
def all_reduce(x, group, op="add"):
    dst = room(x.shape, x.dtype, "dst")
    ncc.all_reduce([staged(x, "src")], [dst], group, op)
    return returned(dst)


@nki.jit
def all_gather(x, group, ranks):
    dst = room((ranks * x.shape[0], *x.shape[1:]), x.dtype, "dst")
    ncc.all_gather([staged(x, "src")], [dst], group, 0)
    return returned(dst)


@nki.jit
def reduce_scatter(x, group, ranks, op="add"):
    dst = room((x.shape[0] // ranks, *x.shape[1:]), x.dtype, "dst")
    ncc.reduce_scatter([staged(x, "src")], [dst], group, 0, op)
    return returned(dst)


@nki.jit
def all_to_all(x, group):
    dst = room(x.shape, x.dtype, "dst")
    ncc.all_to_all([staged(x, "src")], [dst], group, 0)
    return returned(dst)


def ranks_run(kernel, xs, *args, **more):
    return nki.simulate(kernel, ranks=len(xs), **more)(nki.PerRank(xs), *args)


@st.composite
def worlds(draw):
    """(lists of a replica group over shuffled ranks, one array for each rank)."""
    size, count = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    order = draw(st.permutations(range(size * count)))
    lists = [order[k * size : (k + 1) * size] for k in range(count)]
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    kind = draw(st.sampled_from([np.float32, np.int32, np.uint8]))
    random = np.random.default_rng(draw(st.integers(0, 999)))
    xs = [random.integers(0, 30, (size * rows, columns)).astype(kind) for _ in order]
    return lists, xs


@given(world=worlds(), op=st.sampled_from(sorted(OPS)))
@settings(deadline=None, max_examples=15)
def test_all_reduce_and_reduce_scatter(world, op):
    lists, xs = world
    group, size = ncc.ReplicaGroup(lists), len(lists[0])
    whole = ranks_run(all_reduce, xs, group, op)
    parts = ranks_run(reduce_scatter, xs, group, size, op)
    for one in lists:
        wanted = OPS[op].reduce([xs[r].astype(np.float64) for r in one])
        for place, rank in enumerate(one):
            assert whole[rank].dtype == xs[0].dtype
            assert np.array_equal(whole[rank], wanted)
            assert np.array_equal(parts[rank], np.split(wanted, size)[place])


@given(world=worlds())
@settings(deadline=None, max_examples=15)
def test_all_gather_and_all_to_all(world):
    lists, xs = world
    group, size = ncc.ReplicaGroup(lists), len(lists[0])
    gathered = ranks_run(all_gather, xs, group, size)
    exchanged = ranks_run(all_to_all, xs, group)
    for one in lists:
        for place, rank in enumerate(one):
            assert np.array_equal(gathered[rank], np.concatenate([xs[r] for r in one]))
            parts = [np.split(xs[r], size)[place] for r in one]
            assert np.array_equal(exchanged[rank], np.concatenate(parts))


def test_replica_groups_stay_apart():
    # users/cases TC-23: 3, 3, 7, 7 and not 10
    xs = [np.full((1,), v, np.float32) for v in (1, 2, 3, 4)]
    found = ranks_run(all_reduce, xs, ncc.ReplicaGroup([[0, 1], [2, 3]]))
    assert [x.tolist() for x in found] == [[3], [3], [7], [7]]


def test_reductions_round_at_each_step_to_the_dtype_of_the_tensors():
    # bfloat16 keeps 8 bits: 256 + 1 is 256 again, so a sum of 256, 1, 1, 1 depends on its order.
    values = np.array([[256], [1], [1], [1]], ml_dtypes.bfloat16)
    found = ranks_run(all_reduce, list(values), ncc.ReplicaGroup([[0, 1, 2, 3]]))
    # A mesh sums chunk 0 on rank 0: its own 256, then ranks 3, 2 and 1, each lost in rounding.
    assert [x.astype(float).tolist() for x in found] == [[256]] * 4
    floats = ranks_run(all_reduce, list(values.astype(np.float32)), ncc.ReplicaGroup([range(4)]))
    assert [x.tolist() for x in floats] == [[259]] * 4


def test_every_rank_holds_the_same_bits():
    random = np.random.default_rng(3)
    xs = [random.normal(size=(8, 33)).astype(np.float32) for _ in range(5)]
    found = ranks_run(all_reduce, xs, ncc.ReplicaGroup([range(5)]))
    wanted = np.sum(np.array(xs, np.float64), 0)
    for own in found:
        assert np.array_equal(own, found[0])
    assert np.allclose(found[0], wanted, rtol=1e-6, atol=1e-5)


def test_integers_pass_through_float32_as_dma_accumulation_does():
    xs = [np.array([2**24], np.int32), np.array([1], np.int32)]
    found = ranks_run(all_reduce, xs, ncc.ReplicaGroup([[0, 1]]))
    # 2**24 + 1 has no float32: it rounds to even
    assert [x.tolist() for x in found] == [[2**24]] * 2
    tops = [np.array([200], np.uint8)] * 2
    assert ranks_run(all_reduce, tops, ncc.ReplicaGroup([[0, 1]]))[0].tolist() == [255]


@pytest.mark.parametrize("nbytes", [1 << 20, 57_000_000])
def test_large_tensors_go_by_other_algorithms(nbytes):
    count = nbytes // 4
    xs = [np.full((count // 64, 64), r + 1, np.float32) for r in range(2)]
    for found in ranks_run(all_reduce, xs, ncc.ReplicaGroup([[0, 1]])):
        assert np.all(found == 3)


def test_several_tensors_in_one_collective():
    @nki.jit
    def both(x, y, group):
        dsts = [room(x.shape, x.dtype, "dx"), room(y.shape, y.dtype, "dy")]
        ncc.all_reduce([staged(x, "x"), staged(y, "y")], dsts, group, nl.maximum)
        return returned(dsts[0]), returned(dsts[1])

    xs = [np.array([[1, 8]], np.float32), np.array([[5, 2]], np.float32)]
    ys = [np.array([3, 3, 1], np.int32), np.array([2, 9, 4], np.int32)]
    group = ncc.ReplicaGroup([[0, 1]])
    for x, y in nki.simulate(both, ranks=2)(nki.PerRank(xs), nki.PerRank(ys), group):
        assert x.tolist() == [[5, 8]]
        assert y.tolist() == [3, 9, 4]


@pytest.mark.parametrize("dim", [0, 1])
def test_gathering_in_sbuf(dim):
    @nki.jit
    def gather(x, group, ranks):
        shape = (x.shape[0] * (ranks if dim == 0 else 1), x.shape[1] * (ranks if dim else 1))
        dst = nl.ndarray(shape, x.dtype, buffer=nl.sbuf)
        ncc.all_gather([nl.load(x)], [dst], group, dim)
        out = nl.ndarray(shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, dst)
        return out

    xs = [np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3) + 10 * r for r in range(3)]
    for found in ranks_run(gather, xs, ncc.ReplicaGroup([[0, 1, 2]]), 3):
        assert np.array_equal(found.astype(float), np.concatenate(xs, dim).astype(float))


def test_reduce_scatter_in_sbuf():
    @nki.jit
    def scatter(x, group):
        dst = nl.ndarray((x.shape[0] // 2, x.shape[1]), x.dtype, buffer=nl.sbuf)
        ncc.reduce_scatter([nl.load(x)], [dst], group, 0, nl.add)
        out = nl.ndarray(dst.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, dst)
        return out

    xs = [np.arange(12, dtype=np.float32).reshape(4, 3) * (r + 1) for r in range(2)]
    found = ranks_run(scatter, xs, ncc.ReplicaGroup([[1, 0]]))
    assert np.array_equal(found[1], 3 * xs[0][:2])
    assert np.array_equal(found[0], 3 * xs[0][2:])


def test_one_tensor_may_be_source_and_target():
    @nki.jit
    def in_place(x, group):
        both = staged(x, "both")
        ncc.collective_permute_implicit([[both]], [[both]], group)
        return returned(both)

    xs = [np.full((2,), r, np.float32) for r in range(3)]
    found = ranks_run(in_place, xs, ncc.ReplicaGroup([[0, 1, 2]]))
    assert [x[0] for x in found] == [2, 0, 1]


# --------------------------------------------------------------------------------------- permutes


def test_permutes_by_pairs_leave_others_alone():
    @nki.jit
    def permute(x, pairs):
        dst = staged(x, "dst")
        ncc.collective_permute([staged(x, "src")], [dst], pairs)
        return returned(dst)

    xs = [np.full((2, 2), r, np.float32) for r in range(4)]
    found = ranks_run(permute, xs, [(0, 3), (3, 1), (1, 0)])
    assert [x[0, 0] for x in found] == [1, 3, 2, 0]


def test_a_ring_gathers_by_permutes_and_asks_whose_data_it_has():
    ranks = 4

    @nki.jit
    def ring(x, group):
        buffers = [staged(x, "ring0"), room(x.shape, x.dtype, "ring1")]
        width = x.shape[1]
        out = nl.ndarray((ranks, *x.shape), x.dtype, buffer=nl.shared_hbm)
        for step in range(ranks):
            here, there = buffers[step % 2], buffers[(step + 1) % 2]
            whose = ncc.collective_permute_implicit_current_processing_rank_id(step, group)
            if step < ranks - 1:
                ncc.collective_permute_implicit([[here]], [[there]], group)
            to = out.ap([[width, x.shape[0]], [1, width]], scalar_offset=whose, indirect_dim=0)
            nisa.dma_copy(to, here)
        return out

    xs = [np.full((3, 5), r, np.float32) for r in range(ranks)]
    for found in ranks_run(ring, xs, ncc.ReplicaGroup([[2, 0, 3, 1]])):
        assert np.array_equal(found, np.stack(xs))


def test_rank_ids_are_registers():
    @nki.jit
    def who(x):
        tile = nl.ndarray((1, 1), nl.int32)
        nisa.register_store(tile, ncc.rank_id())
        out = nl.ndarray((1, 1), nl.int32, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    assert [x.item() for x in nki.simulate(who, ranks=3)(np.zeros(1, np.float32))] == [0, 1, 2]
    assert nki.simulate(who)(np.zeros(1, np.float32)).item() == 0


def test_a_permute_that_reduces_on_two_channels():
    @nki.jit
    def step(x, y, group):
        a, b = staged(x, "a"), staged(y, "b")
        dsts = [room(x.shape, x.dtype, "d0"), room(x.shape, x.dtype, "d1")]
        ncc.collective_permute_implicit_reduce(
            [[a], [b]], [[b], [b]], [[d] for d in dsts], group, nl.add, [0, 1]
        )
        return returned(dsts[0]), returned(dsts[1])

    xs = [np.full((2,), 10.0 * r, np.float32) for r in range(3)]
    ys = [np.full((2,), r + 1, np.float32) for r in range(3)]
    group = ncc.ReplicaGroup([[0, 1, 2]])
    found = nki.simulate(step, ranks=3)(nki.PerRank(xs), nki.PerRank(ys), group)
    for rank in range(3):
        before = (rank - 1) % 3
        assert found[rank][0][0] == 10 * before + before + 1
        assert found[rank][1][0] == 2 * (before + 1)


# -------------------------------------------------------------------------------- variable lengths


@nki.jit
def dispatch(x, meta, group, size, known=False):
    src, table = staged(x, "src"), staged(meta, "meta")
    dst = room((size,), x.dtype, "dst")
    zeros = nl.full((1, size), 0.0, x.dtype)
    nisa.dma_copy(dst.reshape((1, size)), zeros)
    ncc.all_to_all_v([src], [dst], group, table, recv_counts_known=known)
    return returned(dst), returned(table)


def metadata(counts, starts):
    return np.array([counts, starts, [99] * len(counts)], np.uint32)


@pytest.mark.parametrize("known", [False, True])
def test_all_to_all_v_reads_counts_and_tells_them(known):
    counts = np.array([[1, 3], [2, 0]])
    xs = [np.arange(4, dtype=np.float32) + 10 * (r + 1) for r in range(2)]
    metas = [metadata(c, [0, c[0]]) for c in counts]
    found = nki.simulate(dispatch, ranks=2, nodes=2)(
        nki.PerRank(xs), nki.PerRank(metas), ncc.ReplicaGroup([[0, 1]]), 8, known
    )
    # slots of 4: from rank 0, then from rank 1
    assert found[0][0].tolist() == [10, 0, 0, 0, 20, 21, 0, 0]
    assert found[1][0].tolist() == [11, 12, 13, 0, 0, 0, 0, 0]
    told = [table[2].tolist() for _, table in found]
    assert told == ([[99, 99]] * 2 if known else [[1, 2], [3, 0]])


@pytest.mark.parametrize(
    ("counts", "starts", "word"),
    [([3, 3], [0, 3], "`srcs` has 4"), ([4, 0], [0, 0], "there is room for 3")],
)
def test_counts_beyond_the_buffers_are_refused(counts, starts, word):
    x, meta = np.zeros(4, np.float32), metadata(counts, starts)
    with pytest.raises(BoundsError, match=word) as caught:
        nki.simulate(dispatch, ranks=2, nodes=2)(x, meta, ncc.ReplicaGroup([[0, 1]]), 6)
    assert caught.value.code == "sim.counts"
    assert "ncc.all_to_all_v" in str(caught.value)


def test_all_to_all_v_on_trn3_with_receive_offsets():
    ranks = 8

    @nki.jit
    def place(x, meta, group):
        src = staged(x, "src")
        table = nl.ndarray((1, 4, ranks), nl.uint32)
        nisa.dma_copy(table, meta)
        dst = room((ranks,), x.dtype, "dst")
        ncc.all_to_all_v([src], [dst], group, table, has_rdispls=True)
        counts = nl.ndarray((1, 4, ranks), nl.uint32, buffer=nl.shared_hbm)
        nisa.dma_copy(counts, table)
        return returned(dst), counts

    xs = [np.arange(ranks, dtype=np.float32) + 100 * r for r in range(ranks)]
    one, places = [1] * ranks, list(range(ranks))
    meta = np.array([[one, places, [0] * ranks, places[::-1]]], np.uint32)
    with nki.use_target("trn3"):
        found = nki.simulate(place[2], ranks=ranks)(
            nki.PerRank(xs), meta, ncc.ReplicaGroup([range(ranks)])
        )
    for rank, (got, counts) in enumerate(found):
        assert got.tolist() == [100 * s + rank for s in reversed(range(ranks))]
        assert counts[0, 2].tolist() == one


@nki.jit
def gather_v(x, meta, group):
    src, table = staged(x, "src"), staged(meta, "meta")
    dst = room((8,), x.dtype, "dst")
    nisa.dma_copy(dst.reshape((1, 8)), nl.full((1, 8), 0.0, x.dtype))
    ncc.all_gather_v([src], [dst], group, table)
    return returned(dst), returned(table)


def test_all_gather_v_sends_one_chunk_to_all():
    counts, starts = [1, 2, 0, 2], [2, 0, 0, 1]
    metas = [metadata([c, 0, 0, 0], [s, 0, 0, 0]) for c, s in zip(counts, starts, strict=True)]
    xs = [np.arange(3, dtype=np.float32) + 10 * r for r in range(4)]
    group = ncc.ReplicaGroup([[0, 1, 2, 3]])
    found = nki.simulate(gather_v[2], ranks=4)(nki.PerRank(xs), nki.PerRank(metas), group)
    for got, table in found:
        assert got.tolist() == [2, 0, 10, 11, 0, 0, 31, 32]
        assert table[2].tolist() == counts


def test_where_variable_collectives_may_run():
    x, meta, group = np.zeros(3, np.float32), metadata([0] * 4, [0] * 4), [[0, 1, 2, 3]]
    with pytest.raises(LimitError, match="LNC=2") as caught:
        nki.simulate(gather_v, ranks=4)(x, meta, ncc.ReplicaGroup(group))
    assert caught.value.code == "nki.rank_places"
    far = ncc.ReplicaGroup([[0, 1, 2, 4]])
    with pytest.raises(LimitError, match="lie on one chip"):
        nki.simulate(gather_v[2], ranks=5)(x, meta, far)
    with pytest.raises(LimitError, match="different nodes"):
        nki.simulate(dispatch, ranks=4)(x, meta, ncc.ReplicaGroup(group), 8)
    with nki.use_target("trn3"):
        with pytest.raises(LimitError, match="more than one chip"):
            nki.simulate(dispatch[2], ranks=4)(x, meta, ncc.ReplicaGroup(group), 8)
        with pytest.raises(LimitError, match="sequential ranks"):
            nki.simulate(dispatch[2], ranks=5)(x, meta, far, 8)


def test_gaps_in_the_metadata_are_refused():
    @nki.jit
    def gaps(x, group):
        table = nl.ndarray((3, 8), nl.uint32, buffer=nl.shared_hbm)
        ncc.all_gather_v([x], [room((8,), x.dtype, "d")], group, table[:, 0:4])

    with pytest.raises(LimitError, match="has gaps"):
        nki.run(gaps, np.zeros(2, np.float32), ncc.ReplicaGroup([[0, 1, 2, 3]]))


# ---------------------------------------------------------------------------------------- refusals


def test_replica_groups_are_checked_when_made():
    assert ncc.ReplicaGroup([[0, 1]]) == ncc.ReplicaGroup(((0, 1),))
    for wrong in ([[0, 1], [1, 2]], [[0], [1, 2]], [], [[-1, 0]]):
        with pytest.raises(UsageError) as caught:
            ncc.ReplicaGroup(wrong)
        assert caught.value.code == "comm.group"


def test_lists_of_tensors_are_lists():
    @nki.jit
    def bare(x, group):
        src = staged(x, "src")
        ncc.all_reduce(src, [src], group, nl.add)

    @nki.jit
    def flat(x, group):
        src = staged(x, "src")
        ncc.collective_permute_implicit([src], [[src]], group)

    x, group = np.zeros((2, 2), np.float32), ncc.ReplicaGroup([[0]])
    with pytest.raises(UsageError, match="`srcs` is a NkiTensor"):
        nki.run(bare, x, group)
    with pytest.raises(UsageError, match="a list of exactly one tile"):
        nki.run(flat, x, group)


def test_channels_of_a_small_group():
    @nki.jit
    def four(x, group):
        src = [[staged(x, f"s{n}")] for n in range(4)]
        dst = [[room(x.shape, x.dtype, f"d{n}")] for n in range(4)]
        ncc.collective_permute_implicit(src, dst, group, [0, 1, 2, 3])

    x = np.zeros((2,), np.float32)
    with pytest.raises(LimitError, match="at most 2"):
        nki.simulate(four, ranks=2)(x, ncc.ReplicaGroup([[0, 1]]))


def test_collectives_on_inputs_and_outputs_are_noticed():
    @nki.jit
    def direct(x, group):
        out = room(x.shape, x.dtype, "out")
        ncc.all_reduce([x], [out], group, nl.add)
        return out

    run = nki.run(direct, np.ones((2, 2), np.float32), ncc.ReplicaGroup([[0]]))
    assert np.all(run.outputs == 1)
    assert [f.code for f in run.findings] == ["nki.collective_io"] * 2
    assert {"input `x`" in f.what for f in run.findings} == {True, False}


def test_reading_what_nobody_wrote_is_noticed():
    @nki.jit
    def unwritten(x, group):
        dst = room(x.shape, x.dtype, "dst")
        ncc.all_reduce([room(x.shape, x.dtype, "src")], [dst], group, nl.add)
        return returned(dst)

    run = nki.run(unwritten, np.ones((2, 2), np.float32), ncc.ReplicaGroup([[0]]))
    assert "sim.uninitialised" in [f.code for f in run.findings]
