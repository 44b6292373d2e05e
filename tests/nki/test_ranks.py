"""Kernels on several ranks: arguments, order, cores of a rank, loops, what goes wrong."""

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import NotBuiltError, OrderError, UsageError
from opentrn.isa import parse_program, program_text
from opentrn.nki import collectives as ncc
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.sim import Replay

PAIR = ncc.ReplicaGroup([[0, 1]])


def staged(x, name="src"):
    made = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name=name)
    nisa.dma_copy(made, x)
    return made


def summed(tensor, group):
    """A new tensor: the sum over the group."""
    dst = nl.ndarray(tensor.shape, tensor.dtype, buffer=nl.shared_hbm)
    ncc.all_reduce([tensor], [dst], group, nl.add)
    return dst


def returned(tensor):
    out = nl.ndarray(tensor.shape, tensor.dtype, buffer=nl.shared_hbm, name="out")
    nisa.dma_copy(out, tensor)
    return out


@nki.jit
def reduce(x, group):
    return returned(summed(staged(x), group))


def rows(*values):
    return [np.full((4, 2), v, np.float32) for v in values]


def test_a_run_for_each_rank_with_its_own_program_and_outputs():
    with nki.watch() as seen:
        runs = nki.run_ranks(reduce, [(x, PAIR) for x in rows(1, 2)])
    assert [run.outputs[0, 0] for run in runs] == [3, 3]
    assert seen == list(runs)
    for run in runs:
        assert run.program.counts() == {"dma_copy": 2, "all_reduce": 1}
        assert run.findings == ()
        assert run.timeline().total_ns > 3000  # two hops of 1.5 us


def test_named_arguments_and_values_in_containers():
    @nki.jit
    def scaled(pair, factor, group):
        return returned(summed(staged(nl.multiply(pair[0], factor), "s"), group))

    @nki.jit
    def plain(x, pair, group):
        return returned(summed(staged(pair[0]), group))

    runs = nki.run_ranks(reduce, [{"x": x, "group": PAIR} for x in rows(4, 5)])
    assert [run.outputs[0, 0] for run in runs] == [9, 9]
    found = nki.simulate(plain, ranks=2)(
        np.zeros(1, np.float32), (nki.PerRank(rows(1, 6)), 7), group=PAIR
    )
    assert [x[0, 0] for x in found] == [7, 7]


def test_what_is_not_per_rank_is_the_same_for_all_and_the_callers_stays():
    @nki.jit
    def grow(x, group):
        nisa.dma_copy(x, summed(staged(x), group))
        return returned(x)

    x = np.ones((4, 2), np.float32)
    found = nki.simulate(grow, ranks=3)(x, ncc.ReplicaGroup([[0, 1, 2]]))
    assert all(np.all(own == 3) for own in found)
    assert np.all(x == 1)
    # An array of one rank alone takes what the kernel writes into it, as without ranks.
    xs = rows(1, 2)
    nki.simulate(grow, ranks=2)(nki.PerRank(xs), PAIR)
    assert all(np.all(own == 3) for own in xs)


def test_ranks_in_no_list_take_no_part():
    @nki.jit
    def some(x, group):
        dst = staged(x, "dst")
        ncc.all_reduce([staged(x)], [dst], group, nl.add)
        return returned(dst)

    found = nki.simulate(some, ranks=3)(nki.PerRank(rows(1, 2, 4)), ncc.ReplicaGroup([[0, 2]]))
    assert [x[0, 0] for x in found] == [5, 2, 5]


def test_torch_in_torch_out():
    torch = pytest.importorskip("torch")
    xs = [torch.full((2, 2), v, dtype=torch.bfloat16) for v in (1.0, 2.0)]
    found = nki.simulate(reduce, ranks=2)(nki.PerRank(xs), PAIR)
    assert all(isinstance(x, torch.Tensor) and x.dtype == torch.bfloat16 for x in found)
    assert [x[0, 0].item() for x in found] == [3, 3]


def test_the_same_every_time():
    xs = list(np.random.default_rng(1).normal(size=(4, 8, 4)).astype(np.float32))
    group = ncc.ReplicaGroup([[3, 1], [0, 2]])
    first = nki.simulate(reduce, ranks=4)(nki.PerRank(xs), group)
    for _ in range(3):
        again = nki.simulate(reduce, ranks=4)(nki.PerRank(xs), group)
        assert np.array_equal(first, again)


def test_a_collective_in_a_device_loop_meets_each_time():
    @nki.jit
    def repeated(x, group, times):
        here = staged(x)
        dst = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)

        def step(i):
            ncc.all_reduce([here], [dst], group, nl.add)
            nisa.dma_copy(here, dst)

        nl.fori_loop(0, times, step)
        return returned(here)

    found = nki.simulate(repeated, ranks=2)(nki.PerRank(rows(1, 2)), PAIR, 4)
    assert [x[0, 0] for x in found] == [24, 24]
    with pytest.raises(OrderError) as caught:
        nki.simulate(repeated, ranks=2)(nki.PerRank(rows(1, 2)), PAIR, nki.PerRank([2, 3]))
    assert caught.value.code == "sim.deadlock"


def test_an_exchange_of_cores_in_a_device_loop_happens_each_time():
    @nki.jit
    def bounced(x):
        out = nl.ndarray((2, *x.shape), x.dtype, buffer=nl.shared_hbm)
        me = nl.program_id(0)
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.memset(tile, float(me))
        there = nl.ndarray(x.shape, x.dtype)

        def step(i):
            nisa.sendrecv(tile, there, 1 - me, 1 - me, 0)
            nisa.tensor_scalar(tile, there, nl.add, 1.0)

        nl.fori_loop(0, 3, step)
        nl.store(out[me], tile)
        return out

    # after three swaps core 0 holds what began as 1, core 1 what began as 0
    found = nki.run(bounced[2], np.zeros((2, 2), np.float32)).outputs
    assert found[:, 0, 0].tolist() == [4, 3]


# ------------------------------------------------------------------------------------ two cores


def test_both_cores_of_a_rank_call_one_collective_on_shared_tensors():
    @nki.jit
    def halves(x, group):
        src = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="src")
        me, height = nl.program_id(0), x.shape[0] // 2
        part = nl.ds(me * height, height)
        nl.store(src[part, :], nl.add(nl.load(x[part, :]), float(me)))
        total = summed(src, group)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out[part, :], nl.load(total[part, :]))
        return out

    runs = nki.run_ranks(halves[2], [(x, PAIR) for x in rows(1, 2)])
    for run in runs:
        assert run.outputs[:, 0].tolist() == [3, 3, 5, 5]
        assert run.findings == ()
        assert len(run.programs) == 2
        assert all(program.counts()["all_reduce"] == 1 for program in run.programs)


def test_each_core_gathers_its_own_tiles_in_sbuf():
    @nki.jit
    def tiles(x, group):
        me, height = nl.program_id(0), x.shape[0] // 2
        part = nl.ds(me * height, height)
        dst = nl.ndarray((height, 2 * x.shape[1]), x.dtype, buffer=nl.sbuf)
        ncc.all_gather([nl.load(x[part, :])], [dst], group, 1)
        out = nl.ndarray((x.shape[0], 2 * x.shape[1]), x.dtype, buffer=nl.shared_hbm)
        nl.store(out[part, :], dst)
        return out

    xs = [np.arange(8, dtype=np.float32).reshape(4, 2) + 100 * r for r in range(2)]
    for found in nki.simulate(tiles[2], ranks=2)(nki.PerRank(xs), PAIR):
        assert np.array_equal(found, np.concatenate(xs, 1))


def test_cores_that_split_a_shared_collective_by_hand_are_told():
    @nki.jit
    def split(x, group):
        src, dst = staged(x), staged(x, "dst")
        part = nl.ds(nl.program_id(0) * 2, 2)
        ncc.all_reduce([src[part, :]], [dst[part, :]], group, nl.add)
        return returned(dst)

    with pytest.raises(OrderError, match="different parts of shared tensors") as caught:
        nki.simulate(split[2], ranks=2)(nki.PerRank(rows(1, 2)), PAIR)
    assert caught.value.code == "nki.rank_calls"


# ------------------------------------------------------------------------------------ what fails


@pytest.mark.parametrize(
    ("second", "word"),
    [
        (lambda s, d, g: ncc.all_to_all([s], [d], g, 0), "different collectives"),
        (lambda s, d, g: ncc.all_reduce([s], [d], g, nl.maximum), "`op` is add and maximum"),
        (
            lambda s, d, g: ncc.all_reduce([s[0:2]], [d[0:2]], g, nl.add),
            "`srcs0` is hbm float32[4, 2] and hbm float32[2, 2]",
        ),
        (lambda s, d, g: ncc.all_reduce([s, s], [d, d], g, nl.add), "`srcs1` is given by one"),
    ],
)
def test_ranks_that_call_different_things_are_both_named(second, word):
    @nki.jit
    def kernel(x, rank, group):
        src, dst = staged(x), staged(x, "dst")
        if rank == 0:
            ncc.all_reduce([src], [dst], group, nl.add)
        else:
            second(src, dst, group)
        return returned(dst)

    x, ranks = np.ones((4, 2), np.float32), nki.PerRank([0, 1])
    with pytest.raises(OrderError) as caught:
        nki.simulate(kernel, ranks=2)(x, ranks, PAIR)
    assert caught.value.code == "nki.rank_calls"
    assert word in caught.value.what
    for name in ("rank 0 calls all_reduce at test_ranks.py", "rank 1 calls", "ncc.all_reduce"):
        assert name in caught.value.what


def test_a_rank_that_does_not_come_is_a_deadlock():
    @nki.jit
    def kernel(x, rank, group):
        src = staged(x)
        if rank == 1:
            return returned(src)
        return returned(summed(src, group))

    with pytest.raises(OrderError) as caught:
        nki.simulate(kernel, ranks=2)(np.ones((4, 2), np.float32), nki.PerRank([0, 1]), PAIR)
    assert caught.value.code == "sim.deadlock"
    assert "rank 0 waits in a collective of ranks [0, 1]" in caught.value.what
    assert "rank 1 has ended" in caught.value.what


def test_groups_in_another_order_are_a_deadlock():
    @nki.jit
    def kernel(x, rank, one, two):
        src = staged(x)
        first, second = (one, two) if rank == 0 else (two, one)
        summed(src, first)
        return returned(summed(src, second))

    groups = ncc.ReplicaGroup([[0, 1]]), ncc.ReplicaGroup([[1, 0]])
    with pytest.raises(OrderError) as caught:
        nki.simulate(kernel, ranks=2)(np.ones((4, 2), np.float32), nki.PerRank([0, 1]), *groups)
    assert "rank 1 waits in a collective of ranks [1, 0]" in caught.value.what


def test_cores_of_ranks_are_named_in_deadlocks():
    @nki.jit
    def kernel(x, group):
        src = staged(x)
        if nl.program_id(0) == 0:
            summed(src, group)
        return returned(src)

    with pytest.raises(OrderError) as caught:
        nki.simulate(kernel[2], ranks=2)(np.ones((4, 2), np.float32), PAIR)
    assert "rank 0 core 0 waits" in caught.value.what
    assert "rank 1 core 1 has ended" in caught.value.what


def test_an_error_of_one_rank_ends_all_and_keeps_its_line():
    @nki.jit
    def kernel(x, rank, group):
        src = staged(x)
        if rank == 1:
            nl.ndarray((129, 1), nl.float32)
        return returned(summed(src, group))

    with pytest.raises(ValueError, match="129"):
        nki.simulate(kernel, ranks=2)(np.ones((4, 2), np.float32), nki.PerRank([0, 1]), PAIR)


def test_ranks_that_are_not_there():
    with pytest.raises(UsageError, match="rank 1, but there is 1 rank") as caught:
        nki.simulate(reduce)(np.ones((4, 2), np.float32), PAIR)
    assert caught.value.code == "nki.ranks"
    assert "ranks=2" in caught.value.fix
    with pytest.raises(UsageError, match="rank 5, but there are 2 ranks"):
        nki.simulate(reduce, ranks=2)(np.ones((4, 2), np.float32), ncc.ReplicaGroup([[0, 5]]))


def test_arguments_that_do_not_fit_the_ranks():
    x = np.ones((4, 2), np.float32)
    with pytest.raises(UsageError, match="2 values for 3 ranks") as caught:
        nki.simulate(reduce, ranks=3)(nki.PerRank([x, x]), PAIR)
    assert caught.value.code == "nki.per_rank"
    for wrong in ([], [x]):
        with pytest.raises(UsageError):
            nki.run_ranks(reduce, wrong)
    with pytest.raises(UsageError):
        nki.simulate(reduce, ranks=0)(x, PAIR)


def test_a_lone_core_has_nobody_to_exchange_with():
    @nki.jit
    def lonely(x):
        tile = nl.load(x)
        nisa.sendrecv(tile, nl.ndarray(tile.shape, tile.dtype), 1, 1, 0)
        return returned(x)

    with pytest.raises(OrderError) as caught:
        nki.run(lonely, np.ones((4, 2), np.float32))
    assert caught.value.code == "nki.exchange"


def test_a_program_with_collectives_does_not_run_by_itself():
    (run, _) = nki.run_ranks(reduce, [(x, PAIR) for x in rows(1, 2)])
    with pytest.raises(NotBuiltError) as caught:
        Replay(run.program, run.chip)(rows(1))
    assert caught.value.code == "sim.meeting"


def test_programs_with_collectives_are_written_and_read_back():
    @nki.jit
    def kernel(x, group):
        src, dst = staged(x), staged(x, "dst")
        ncc.collective_permute_implicit([[src]], [[dst]], group)
        whose = ncc.collective_permute_implicit_current_processing_rank_id(1, group)
        tile = nl.ndarray((1, 1), nl.int32)
        nisa.register_store(tile, whose)
        out = nl.ndarray((1, 1), nl.int32, buffer=nl.shared_hbm)
        nl.store(out, tile)
        ncc.collective_permute([dst], [src], [(0, 1), (1, 0)])
        return out, returned(summed(dst, group))

    (first, second) = nki.run_ranks(kernel, [(x, PAIR) for x in rows(1, 2)])
    assert (first.outputs[0].item(), second.outputs[0].item()) == (1, 0)
    text = program_text(first.program)
    assert "collective_permute_implicit " in text
    assert "op=op.add" in text
    assert program_text(parse_program(text)) == text


def test_a_rank_alone_is_rank_zero_of_one():
    x = np.ones((4, 2), np.float32)
    assert np.array_equal(nki.simulate(reduce)(x, ncc.ReplicaGroup([[0]])), x)
