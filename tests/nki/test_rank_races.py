"""Bytes that ranks, or cores beside a collective, touch without an order; ordered twins."""

from types import SimpleNamespace

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import OrderError, Where
from opentrn.nki import collectives as ncc
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.sim import Piece, landing
from opentrn.sim import races as races_of

PAIR = ncc.ReplicaGroup([[0, 1]])


def shared(shape, name="t"):
    return nl.ndarray(shape, nl.float32, buffer=nl.shared_hbm, name=name)


def returned(tensor):
    out = shared(tensor.shape, "out")
    nisa.dma_copy(out, tensor)
    return out


def found(kernel, *args, ranks=2, **more):
    """(findings of every rank, outputs)."""
    with nki.watch() as seen:
        nki.simulate(kernel, ranks=ranks, **more)(*args)
    return [run.findings for run in seen], [run.outputs for run in seen]


# ------------------------------------------------------- results over what is sent


def rows_of(x):
    made = shared((8, *x.shape[1:]))
    for k in range(2):
        nisa.dma_copy(made[nl.ds(4 * k, 4)], x)
    return made


def reduce(x, t, group, rank):
    ncc.all_reduce([t[0:4]], [t[0:4]], group, nl.add)


def shifted_reduce(x, t, group, rank):
    ncc.all_reduce([t[0:4]], [t[2:6]], group, nl.add)


def gather_in_place(x, t, group, rank):
    ncc.all_gather([t[nl.ds(4 * rank, 4)]], [t], group, 0)


def gather_into_the_peers_place(x, t, group, rank):
    ncc.all_gather([t[nl.ds(4 - 4 * rank, 4)]], [t], group, 0)


def scatter_in_place(x, t, group, rank):
    ncc.reduce_scatter([t], [t[nl.ds(4 * rank, 4)]], group, 0, nl.add)


def scatter_over_the_peers_chunk(x, t, group, rank):
    ncc.reduce_scatter([t], [t[nl.ds(4 - 4 * rank, 4)]], group, 0, nl.add)


def exchange_over_itself(x, t, group, rank):
    ncc.all_to_all([t], [t], group, 0)


def exchange_apart(x, t, group, rank):
    ncc.all_to_all([t[0:4]], [t[4:8]], group, 0)


def permute_over_itself(x, t, group, rank):
    ncc.collective_permute([t], [t], [(0, 1), (1, 0)])


def permute_apart(x, t, group, rank):
    ncc.collective_permute([t[0:4]], [t[4:8]], [(0, 1), (1, 0)])


def two_results_in_one_place(x, t, group, rank):
    ncc.all_reduce([t[0:2], t[2:4]], [t[4:6], t[5:7]], group, nl.add)


def result_over_the_other_source(x, t, group, rank):
    ncc.all_reduce([t[0:2], t[2:4]], [t[2:4], t[4:6]], group, nl.add)


FINE = [reduce, gather_in_place, scatter_in_place, exchange_apart, permute_apart]
RACING = [
    (shifted_reduce, "`dsts0` lies over `srcs0`"),
    (gather_into_the_peers_place, "`dsts0` lies over `srcs0`"),
    (scatter_over_the_peers_chunk, "`dsts0` lies over `srcs0`"),
    (exchange_over_itself, "`dsts0` lies over `srcs0`"),
    (permute_over_itself, "`dsts0` lies over `srcs0`"),
    (two_results_in_one_place, "`dsts0` and `dsts1` are written over each other"),
    (result_over_the_other_source, "`dsts0` lies over `srcs1`"),
]


def with_body(body):
    @nki.jit
    def kernel(x, group, rank):
        t = rows_of(x)
        body(x, t, group, rank)
        return returned(t)

    return kernel


def races(findings):
    return [one for one in findings if one.code == "sim.rank_race"]


@pytest.mark.parametrize("body", FINE, ids=lambda body: body.__name__)
def test_a_rank_may_write_where_it_alone_reads(body):
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    findings, _ = found(with_body(body), x, PAIR, nki.PerRank([0, 1]))
    assert findings == [(), ()]


@pytest.mark.parametrize(("body", "words"), RACING, ids=lambda one: getattr(one, "__name__", ""))
def test_a_result_over_what_is_still_sent_is_a_race_of_each_rank_at_its_line(body, words):
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    for findings in found(with_body(body), x, PAIR, nki.PerRank([0, 1]))[0]:
        (race,) = races(findings)
        assert words in race.what
        assert race.where.function == body.__name__


def test_a_rank_by_itself_has_no_peer_to_race_with():
    x = np.ones((4, 2), np.float32)
    alone = ncc.ReplicaGroup([[0]])
    findings, (out,) = found(with_body(lambda x, t, group, rank: ncc.all_reduce(
        [t[0:4]], [t[0:4]], group, nl.add)), x, alone, 0, ranks=1)  # fmt: skip
    assert races(findings[0]) == []
    assert np.array_equal(out, np.ones((8, 2)))


# ------------------------------------------------------- two peers write one place


@nki.jit
def placed(x, meta, group):
    src, dst = shared(x.shape, "src"), shared((16,), "dst")
    nisa.dma_copy(src, x)
    nisa.dma_copy(dst, x)
    table = nl.ndarray(meta.shape, nl.uint32, buffer=nl.shared_hbm)
    nisa.dma_copy(table, meta)
    ncc.all_to_all_v([src], [dst], group, table, has_rdispls=True)
    return returned(dst)


def metadata(places):
    """Each of 8 ranks sends two elements to each; those of rank k land at places[k]."""
    return np.array([[2] * 8, [2 * k for k in range(8)], [0] * 8, places], np.uint32)


@pytest.mark.parametrize("twin", [False, True])
def test_chunks_of_two_peers_on_the_same_elements_are_a_race_of_the_receiver(twin):
    places = [2 * k for k in range(8)]
    if not twin:
        places[5] = 3  # over the second element of rank 1's chunk and the first of rank 2's
    xs = [np.arange(16, dtype=np.float32) + 100 * rank for rank in range(8)]
    group = ncc.ReplicaGroup([range(8)])
    with nki.use_target("trn3"):
        findings, _ = found(placed[2], nki.PerRank(xs), metadata(places), group, ranks=8)
    for own in findings:
        told = [one.what for one in races(own)]
        assert len(told) == (0 if twin else 2)
        if not twin:
            assert "elements 3 to 4 of `dsts0` come from rank 1" in told[0]
            assert "and rank 5" in told[0]
            assert "elements 4 to 5 of `dsts0` come from rank 5" in told[1]
            assert all("all_to_all_v" in what for what in told)


def test_a_long_chunk_meets_all_that_begin_inside_it():
    pieces = [Piece(start, np.zeros(count), sender)
              for sender, (start, count) in enumerate([(0, 8), (1, 2), (5, 9), (14, 1)])]
    senders = [(f"rank {n}", Where("k.py", n + 1, "k")) for n in range(4)]
    one = SimpleNamespace(opcode="all_to_all_v", where=Where("k.py", 9, "k"))
    told = [race.what for race in landing(one, "dsts0", pieces, senders)]
    assert [what.split(" of ")[0].split(": ")[1] for what in told] == [
        "elements 1 to 3", "elements 5 to 8"]  # fmt: skip
    assert all("rank 0 (at k.py:1 in k)" in what for what in told)
    assert list(landing(one, "dsts0", [], [])) == []


# ------------------------------------------------------- cores of a rank beside a collective


@pytest.mark.parametrize("ordered", [False, True])
def test_a_core_that_reads_what_the_others_collective_brings_races_with_it(ordered):
    @nki.jit
    def kernel(x, group, ordered):
        into = shared(x.shape, "into")
        mine = nl.ndarray(x.shape, x.dtype, buffer=nl.private_hbm, name="mine")
        nisa.dma_copy(mine, x)
        if nl.program_id(0) == 0:
            ncc.all_reduce([mine], [into], group, nl.add)
        if ordered:
            nisa.core_barrier(into, (0, 1))
        if nl.program_id(0) == 1:
            nl.load(into)
        return returned_by_core_0(into)

    def returned_by_core_0(into):
        out = shared(into.shape, "out")
        if nl.program_id(0) == 0:
            nisa.dma_copy(out, into)
        return out

    x = np.ones((4, 2), np.float32)
    findings, outputs = found(kernel[2], x, PAIR, ordered)
    for own, out in zip(findings, outputs, strict=True):
        assert np.array_equal(out, np.full((4, 2), 2.0))
        codes = [one.code for one in own if "race" in one.code]
        assert codes == ([] if ordered else ["nki.core_race"])
        if not ordered:
            (race,) = (one for one in own if one.code == "nki.core_race")
            assert "ncc.all_reduce([mine], [into]" in race.what
            assert "nl.load(into)" in race.what


@pytest.mark.parametrize("apart", [False, True])
def test_what_arrives_in_a_tile_races_with_another_tile_at_its_address(apart):
    """The exchange writes `into`; the Vector Engine reads `other`, which lies over it or not."""

    @nki.jit
    def kernel(x, apart):
        tile = nl.load(x)
        into = nl.ndarray((4, 2), nl.float32, buffer=nl.sbuf, address=(0, 0))
        other = nl.ndarray((4, 2), nl.float32, buffer=nl.sbuf, address=(0, 64 if apart else 4))
        nisa.memset(other, 1.0)
        nisa.sendrecv(tile, into, 1 - nl.program_id(0), 1 - nl.program_id(0), 0)
        kept = nl.add(other, 1.0)
        out = shared((2, 2, 4, 2), "out")
        nisa.dma_copy(out[nl.program_id(0), 0], into)
        nisa.dma_copy(out[nl.program_id(0), 1], kept)
        return out

    run = nki.run(kernel[2], np.ones((4, 2), np.float32), apart)
    for program in run.programs:
        told = [one.what for one in races_of(program, run.chip)]
        arriving = [what for what in told if "nisa.sendrecv(tile, into" in what]
        assert (not told) is apart
        assert bool(arriving) is not apart


def test_a_one_sided_exchange_and_sizes_that_differ_name_both_lines():
    @nki.jit
    def kernel(x, far):
        tile = nl.load(x)
        into = nl.ndarray((4, 2) if far else tile.shape, tile.dtype)
        me = nl.program_id(0)
        if me == 0:
            nisa.sendrecv(tile, nl.ndarray(tile.shape, tile.dtype), 1, 1, 0)
        else:
            nisa.sendrecv(tile[:, 0:1], into[:, 0:1], 0, 0, 0)
        return returned(x)

    with pytest.raises(OrderError) as caught:
        nki.run(kernel[2], np.ones((4, 2), np.float32), 0)
    assert caught.value.code == "nki.exchange"
    assert "[4, 2]" in caught.value.what
    assert "[4, 1]" in caught.value.what


def test_a_partner_that_does_not_exist_is_refused():
    @nki.jit
    def kernel(x):
        tile = nl.load(x)
        nisa.sendrecv(tile, nl.ndarray(tile.shape, tile.dtype), 5, 5, 0)
        return returned(x)

    with pytest.raises((OrderError, ValueError)) as caught:
        nki.run(kernel[2], np.ones((4, 2), np.float32))
    assert "nisa.sendrecv" in str(caught.value)
