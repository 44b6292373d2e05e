"""Collectives as instructions: what they refuse, what a lone rank computes, what they cost."""

import numpy as np
import pytest

from opentrn import comm, isa
from opentrn.base import LimitError, SpaceError, TrnError, UsageError, dtype
from opentrn.hw import chip
from opentrn.isa import INSTRUCTIONS, OperandForm

TRN2, TRN3 = chip("trn2"), chip("trn3")
GROUP = ((0, 1), (2, 3))
FOUR = ((0, 1, 2, 3),)


def tile(*shape, kind="float32", space="hbm", **more):
    return OperandForm(space, shape, dtype(kind), run=int(np.prod(shape)), **more)


def form(name, tiles, flags, on=TRN2):
    """The form of a collective; `tiles` by operand name, `flags` in order."""
    cls = INSTRUCTIONS[name]
    usual = [f.default for f in cls.flags.values()]
    given_flags = (*flags, *usual[len(flags) :])
    return isa.form(cls, on, tuple(tiles.get(n) for n in cls.operand_names), given_flags)


def pair(source, target):
    return {"srcs0": source, "dsts0": target}


def channel(source, target):
    return {"srcs_by_channel0": source, "dsts_by_channel0": target}


def refused(name, tiles, flags, word, kind=LimitError, on=TRN2):
    with pytest.raises(kind) as caught:
        form(name, tiles, flags, on)
    assert word in str(caught.value)
    assert isinstance(caught.value, TrnError)


ROW, BIG = tile(2, 4), tile(4, 4)
META = tile(3, 4, kind="uint32")
REFUSALS = [
    ("all_reduce", pair(ROW, tile(2, 5)), (GROUP, "add"), "as large as its source"),
    ("all_reduce", pair(ROW, ROW), (GROUP, "multiply"), "nl.add, nl.minimum or nl.maximum"),
    ("all_reduce", pair(ROW, tile(2, 4, space="sbuf")), (GROUP, "add"), "all in SBUF"),
    ("all_reduce", pair(ROW, tile(2, 4, kind="bfloat16")), (GROUP, "add"), "one dtype"),
    ("all_reduce", pair(ROW, ROW), (((0, 1), (2,)), "add"), "equally long"),
    ("all_reduce", pair(ROW, ROW), (GROUP, "add", 0), "NeuronCore-v4"),
    ("all_reduce", pair(ROW, ROW) | {"srcs1": ROW}, (GROUP, "add"), "as many `dsts` as `srcs`"),
    ("all_reduce", pair(ROW, ROW._replace(indirect="scalar")), (GROUP, "add"), "addresses"),
    ("all_gather", pair(ROW, ROW), (GROUP, 0), "holds the source of every rank"),
    ("all_gather", pair(ROW, BIG), (GROUP, 1), "it is 0 for tensors in HBM"),
    (
        "all_gather",
        pair(tile(2, 2, 2, space="sbuf"), tile(2, 2, 4, space="sbuf")),
        (GROUP, 1),
        "two dimensions",
    ),
    (
        "all_gather",
        pair(tile(2, 4, space="sbuf"), tile(4, 4, space="sbuf")),
        (GROUP, 1),
        "dimension 0 of",
    ),
    ("reduce_scatter", pair(BIG, BIG), (GROUP, 0, "add"), "one rank's part"),
    ("reduce_scatter", pair(BIG, ROW), (GROUP, 1, "add"), "`collective_dim` is 1"),
    ("all_to_all", pair(tile(3), tile(3)), (GROUP, 0), "no multiple of the 2 ranks"),
    ("all_to_all", pair(BIG, BIG), (GROUP, 1), "`collective_dim` is 1"),
    ("collective_permute", pair(ROW, ROW), (((0, 1),),), "circular"),
    ("collective_permute", pair(ROW, ROW), (((0, 1), (0, 2)),), "circular"),
    ("collective_permute", pair(ROW, ROW), (((0, 1, 2),),), "pairs of ranks"),
    ("collective_permute_implicit", channel(ROW, ROW), (GROUP, [1]), "channel_ids are 0 to 0"),
    ("collective_permute_implicit", channel(ROW, BIG), (GROUP,), "as large as its source"),
    ("all_gather_v", pair(ROW, BIG) | {"metadata_tensor": META}, (GROUP,), "columns"),
    (
        "all_gather_v",
        pair(ROW, tile(4, 4)) | {"metadata_tensor": tile(4, 4, kind="uint32")},
        (FOUR, False, True),
        "not supported",
    ),
    (
        "all_gather_v",
        pair(ROW, BIG) | {"metadata_tensor": tile(3, 2, kind="uint32")},
        (GROUP,),
        "exactly 4 ranks",
    ),
    ("all_gather_v", pair(ROW, tile(6)) | {"metadata_tensor": META}, (FOUR,), "equal slots"),
    (
        "all_gather_v",
        pair(ROW._replace(run=4), BIG) | {"metadata_tensor": META},
        (FOUR,),
        "flat buffer",
    ),
    (
        "all_to_all_v",
        pair(ROW, BIG) | {"metadata_tensor": tile(4, 4, kind="uint32")},
        (FOUR, False, True),
        "NeuronSwitch",
    ),
]


@pytest.mark.parametrize("case", REFUSALS, ids=[f"{c[0]}-{c[3]}" for c in REFUSALS])
def test_what_is_refused(case):
    refused(*case)


def test_memories_and_missing_tensors():
    psum, sbuf = tile(2, 4, space="psum"), tile(2, 4, space="sbuf")
    refused("all_reduce", pair(psum, psum), (GROUP, "add"), "`srcs0` is in psum", SpaceError)
    for name, flags in (
        ("all_to_all", (GROUP, 0)),
        ("collective_permute", (((0, 1), (1, 0)),)),
        ("all_gather_v", (FOUR,)),
    ):
        tiles = pair(sbuf, sbuf) | ({"metadata_tensor": META} if name == "all_gather_v" else {})
        refused(name, tiles, flags, "must be in hbm", SpaceError)
    refused("all_reduce", {"dsts0": ROW}, (GROUP, "add"), "`srcs0` is missing", UsageError)
    two = pair(sbuf, sbuf) | {"srcs1": sbuf, "dsts1": sbuf}
    refused("all_reduce", two, (GROUP, "add"), "exactly one tensor")
    form("all_reduce", pair(sbuf, sbuf), (GROUP, "add"))
    form("all_reduce", pair(ROW, ROW) | {"srcs1": BIG, "dsts1": BIG}, (GROUP, "maximum"))


def test_channels_in_sbuf_are_not_coalesced_tensors():
    sbuf = tile(2, 4, space="sbuf")
    more = {"srcs_by_channel1": sbuf, "dsts_by_channel1": sbuf}
    form("collective_permute_implicit", channel(sbuf, sbuf) | more, (GROUP, [0, 1]))


def test_both_sources_of_a_reducing_permute_are_alike():
    tiles = {"srcs0_by_channel0": ROW, "srcs1_by_channel0": ROW, "dsts_by_channel0": ROW}
    made = form("collective_permute_implicit_reduce", tiles, (GROUP, "add"))
    assert made.channel_ids == (0,)
    wrong = tiles | {"srcs1_by_channel0": tile(4, 2)}
    refused("collective_permute_implicit_reduce", wrong, (GROUP, "add"), "are alike")


def test_priority_on_trn3():
    form("all_reduce", pair(ROW, ROW), (GROUP, "add", 3), TRN3)
    refused("all_reduce", pair(ROW, ROW), (GROUP, "add", 4), "0 (highest) to 3", on=TRN3)


@pytest.mark.parametrize("value", [3, [1, 2], [[]], [], [["x"]], None])
def test_groups_that_are_none(value):
    with pytest.raises(UsageError) as caught:
        form("all_reduce", pair(ROW, ROW), (value, "add"))
    assert caught.value.code == "isa.ranks"


def test_metadata_in_sbuf_lies_on_one_partition():
    flags, tiles = (FOUR,), pair(ROW, BIG)
    flat = tile(1, 3, 4, kind="uint32", space="sbuf")
    form("all_to_all_v", tiles | {"metadata_tensor": flat}, flags)
    with pytest.raises(TrnError):
        form("all_to_all_v", tiles | {"metadata_tensor": flat._replace(shape=(3, 4))}, flags)
    with pytest.raises(LimitError, match="at most 4"):
        form("all_to_all_v", tiles | {"metadata_tensor": tile(5, 4, kind="uint32")}, flags)


def test_a_lone_rank_keeps_what_it_has():
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    one = ((0,),)
    assert np.array_equal(form("all_reduce", pair(ROW, ROW), (one, "add")).run(srcs0=x)["dsts0"], x)
    tiles = {"srcs0_by_channel0": ROW, "srcs1_by_channel0": ROW, "dsts_by_channel0": ROW}
    made = form("collective_permute_implicit_reduce", tiles, (one, "add"))
    found = made.run(srcs0_by_channel0=x, srcs1_by_channel0=x)
    assert np.array_equal(found["dsts_by_channel0"], 2 * x)


# ------------------------------------------------------------------------------------------- cost


def time_of(nbytes, ranks, on=TRN2):
    side = tile(nbytes // 4)
    move = form("all_reduce", pair(side, side), ((tuple(range(ranks)),), "add"), on).move
    return move.issue_ns + move.start_ns + move.busy_ns


def test_small_collectives_pay_hops_and_large_ones_bytes():
    # two ranks of one chip: two steps of 1.05 us beside issue and start (1.3 us)
    assert time_of(64, 2) == pytest.approx(1300 + 2 * 1050, rel=0.01)
    # 1 GiB round a ring of two: each passes half of it twice, at 59 GB/s for each of two cores
    size = 1 << 30
    assert time_of(size, 2) == pytest.approx(size / (2 * 59e9) * 1e9, rel=0.01)
    # four chips of a 4 x 4 torus: what nccom-test says of the same ranks
    timing = comm.time("all_reduce", size, comm.place(16, "trn2.48xlarge"))
    assert time_of(size, 16) == pytest.approx(timing.seconds * 1e9 + 1300, rel=1e-6)


def test_more_bytes_take_longer_and_never_less_than_the_wires():
    sizes = [1 << n for n in range(6, 31, 4)]
    for ranks in (2, 4, 16, 64):
        times = [time_of(size, ranks) for size in sizes]
        assert times == sorted(times)
        for size, time in zip(sizes, times, strict=True):
            assert time * 1e-9 > comm.bus_factor("all_reduce", ranks) * size / 640e9


def test_groups_that_share_chips_share_their_links():
    side = tile(1 << 24)
    whole = form("all_gather", pair(tile(1 << 20), side), ((tuple(range(16)),), 0)).move
    strided = tuple(tuple(range(k, 64, 4)) for k in range(4))
    shared = form("all_gather", pair(tile(1 << 20), side), (strided, 0)).move
    assert shared.busy_ns > 2 * whole.busy_ns
