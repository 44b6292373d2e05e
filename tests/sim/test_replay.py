"""A replay gives, bit for bit, what running the kernel gives, on any inputs, every time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn import nki
from opentrn.base import ShapeError
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.sim import Replay, Strict
from tests.nki.tiles import BF16

QUIET = Strict(
    uninitialised="ignore", partial_output="ignore", accumulate_unset="ignore",
    reset_in_reduction="ignore", read_open_group="ignore", unwritten_output="ignore",
)  # fmt: skip
ROWS, WIDTH = 16, 12

# ---------------------------------------------------------------------- random kernels

tiles = st.integers(0, 3)
spans = st.integers(0, WIDTH - 1).flatmap(lambda a: st.integers(a + 1, WIDTH).map(lambda b: (a, b)))
simple = st.one_of(
    st.tuples(st.just("scale"), tiles, tiles, spans, st.integers(-2, 3)),
    st.tuples(st.just("add"), tiles, tiles, spans, tiles),
    st.tuples(st.just("exp"), tiles, tiles, spans, st.just(0)),
    st.tuples(st.just("sum"), tiles, tiles, spans, st.just(0)),
    st.tuples(st.just("bits"), tiles, tiles, spans, st.integers(0, 3)),
    st.tuples(st.just("matmul"), tiles, tiles, spans, st.sampled_from([None, True, False])),
    st.tuples(st.just("empty"), tiles, tiles, spans, tiles),
    st.tuples(st.just("fresh"), tiles, tiles, spans, st.just(0)),
    st.tuples(st.just("store"), tiles, tiles, spans, st.integers(0, ROWS - 4)),
    st.tuples(st.just("gather"), tiles, tiles, spans, st.just(0)),
    st.tuples(st.just("dynamic"), tiles, tiles, spans, st.just(0)),
)
loop = st.tuples(st.just("loop"), st.sampled_from(["register", "constant", "outer"]),
                 st.integers(0, 3), st.lists(simple, min_size=1, max_size=4))  # fmt: skip
programs = st.lists(st.one_of(simple, simple, simple, loop), min_size=1, max_size=9)


class Kernel:
    """A kernel that follows a list of steps on four tiles, a PSUM tile and an output."""

    def __init__(self, steps, dtype):
        self.steps, self.dtype = steps, dtype

    def __call__(self, x, table, rows, counts):
        self.out = nl.ndarray((ROWS + 4, WIDTH), nl.float32, buffer=nl.shared_hbm)
        self.table, self.rows = table, nl.load(rows)
        self.small = nl.load(counts)
        self.tiles = [nl.load(x), nl.load(x, dtype=self.dtype)]
        self.tiles += [nl.ndarray((ROWS, WIDTH), nl.float32), nl.zeros((ROWS, WIDTH), self.dtype)]
        self.psum = nl.ndarray((WIDTH, WIDTH), nl.float32, buffer=nl.psum)
        self.walk(self.steps, None)
        for place, tile in enumerate(self.tiles[:2]):
            nisa.dma_copy(self.out[place * 4 : place * 4 + 4, :], tile[0:4, :])
        return self.out

    def walk(self, steps, counter):
        for step in steps:
            if step[0] == "loop":
                self.loop(*step[1:])
            else:
                self.simple(counter, *step)

    def loop(self, kind, number, body):
        stop = nisa.register_alloc(self.small[:, 0:1]) if kind == "register" else number
        for i in nl.dynamic_range(stop):
            if kind == "outer":
                for j in nl.dynamic_range(0, i):
                    self.walk(body, j)
            else:
                self.walk(body, i)

    def simple(self, counter, what, *rest):
        if what in ("store", "dynamic", "gather"):
            getattr(self, what)(counter, *rest)
        else:
            getattr(self, what)(*rest)

    def scale(self, to, source, span, extra):
        a, b = span
        target, given = self.tiles[to][:, a:b], self.tiles[source][:, a:b]
        nisa.tensor_scalar(target, given, nl.multiply, float(extra), op1=nl.add, operand1=0.5)

    def add(self, to, source, span, extra):
        a, b = span
        one, two = self.tiles[source][:, a:b], self.tiles[extra][:, a:b]
        nisa.tensor_tensor(self.tiles[to][:, a:b], one, two, nl.add)

    def exp(self, to, source, span, extra):
        a, b = span
        nisa.activation(self.tiles[to][:, a:b], nl.tanh, self.tiles[source][:, a:b])

    def sum(self, to, source, span, extra):
        a, b = span
        nisa.tensor_reduce(self.tiles[to][:, a : a + 1], nl.add, self.tiles[source][:, a:b], 1)

    def bits(self, to, source, span, extra):
        given = self.tiles[source]
        size = given.dtype.itemsize
        nisa.memset(given.view(nl.uint8)[:, extra % size : size * span[1] : size], 1)

    def matmul(self, to, source, span, extra):
        a, b = span
        left = nl.ndarray((ROWS, WIDTH), nl.float32)
        nisa.tensor_copy(left, self.tiles[source])
        nisa.nc_matmul(self.psum[:, a:b], left, left[:, a:b], accumulate=extra)

    def empty(self, to, source, span, extra):
        a, b = span
        nisa.tensor_copy(self.tiles[to][0:WIDTH, a:b], self.psum[:, a:b])

    def fresh(self, to, source, span, extra):
        a, b = span
        given, self.tiles[to] = self.tiles[source], nl.ndarray((ROWS, WIDTH), nl.float32)
        nisa.tensor_copy(self.tiles[to][:, a:b], given[:, a:b])

    def store(self, counter, to, source, span, extra):
        a, b = span
        nisa.dma_copy(self.out[extra : extra + 4, a:b], self.tiles[source][0:4, a:b])

    def gather(self, counter, to, source, span, extra):
        a, b = span
        fresh = nl.ndarray((ROWS, WIDTH), nl.float32)
        rows = self.table.vector_select(0, self.rows)
        nisa.dma_copy(fresh, rows, oob_mode=nisa.oob_mode.skip)
        nisa.tensor_copy(self.tiles[to][:, a:b], fresh[:, a:b])

    def dynamic(self, counter, to, source, span, extra):
        at = counter if counter is not None else nisa.register_alloc(self.small[:, 1:2])
        row = nl.ndarray((1, WIDTH), nl.float32)
        nisa.dma_copy(row, self.tiles[source][0:1, :])
        nisa.dma_copy(self.out.ap([[WIDTH, 1], [1, WIDTH]], scalar_offset=at), row)


def inputs(seed):
    rng = np.random.default_rng(seed)
    rows = rng.integers(-1, 24, (ROWS, 1)).astype(np.int32)
    return [
        rng.integers(-4, 5, (ROWS, WIDTH)).astype(np.float32),
        rng.integers(-4, 5, (20, WIDTH)).astype(np.float32),
        rows,
        rng.integers(0, 4, (1, 2)).astype(np.int32),
    ]


@settings(deadline=None, max_examples=120)
@given(programs, st.sampled_from([nl.float32, nl.bfloat16, nl.float16]))
def test_random_kernels_replay_bit_for_bit(steps, dtype):
    with nki.use_strict(QUIET):
        first = nki.run(Kernel(steps, dtype).__call__, *inputs(0))
        replay = Replay(first.program, first.chip)
        for seed in (0, 1, 2, 0):
            given = inputs(seed)
            wanted = nki.run(Kernel(steps, dtype).__call__, *given).outputs
            found = replay(given)[0]
            np.testing.assert_array_equal(found, wanted)
            assert (np.isnan(found) == np.isnan(wanted)).all()


# ---------------------------------------------------------------------- by hand


def stored(tile):
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nl.store(out, tile)
    return out


def test_a_replay_follows_its_inputs_and_leaves_them_alone():
    def kernel(x, y):
        return stored(nl.subtract(nl.load(x), nl.load(y))), stored(nl.load(x))

    x, y = (np.random.default_rng(n).normal(size=(8, 5)).astype(np.float32) for n in (1, 2))
    run = nki.run(kernel, x, y)
    replay = Replay(run.program, run.chip)
    kept = x.copy(), y.copy()
    first = replay([x, y])
    second = replay([y, x])
    assert np.array_equal(first[0], x - y)
    assert np.array_equal(second[0], y - x)
    assert np.array_equal(second[1], y)
    assert np.array_equal(x, kept[0])
    assert np.array_equal(y, kept[1])
    assert np.array_equal(first[0], x - y), "outputs belong to the caller"


def test_written_inputs_and_constants_are_new_in_every_replay():
    data = np.full((4, 5), 10, np.float32)

    def kernel(x):
        c = nl.shared_constant(data)
        nl.store(x, nl.add(nl.load(x), nl.load(c)))
        nl.store(c, nl.load(x))
        return x

    x = np.ones((4, 5), np.float32)
    with nki.use_strict(Strict(mutated_input="ignore")):
        run = nki.run(kernel, x.copy())
    replay = Replay(run.program, run.chip)
    for _ in range(3):
        assert (replay([x])[0] == 11).all()
    assert (x == 1).all()


def test_what_a_loop_did_not_write_this_time_is_not_left_from_last_time():
    def kernel(x, n):
        t = nl.ndarray((4, 6), nl.float32)
        for i in nl.dynamic_range(nisa.register_alloc(nl.load(n))):
            nisa.dma_copy(t[:, nl.ds(i, 1)], x[:, nl.ds(i, 1)])
        return stored(t)

    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    count = lambda n: np.array([[n]], np.int32)  # noqa: E731
    with nki.use_strict(QUIET):
        run = nki.run(kernel, x, count(3))
    replay = Replay(run.program, run.chip)
    for n in (6, 2, 0, 4):
        found = replay([x, count(n)])[0]
        assert np.array_equal(found[:, :n], x[:, :n])
        assert np.isnan(found[:, n:]).all()


def test_scattered_rows_of_the_last_replay_are_gone():
    def kernel(x, rows):
        out = nl.ndarray((6, 3), nl.int32, buffer=nl.shared_hbm)
        nisa.dma_copy(out.vector_select(0, nl.load(rows)), nl.load(x))
        return out

    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    rows = lambda *r: np.array(r, np.int32).reshape(-1, 1)  # noqa: E731
    with nki.use_strict(QUIET):
        run = nki.run(kernel, x, rows(0, 1))
    replay = Replay(run.program, run.chip)
    for a, b in ((0, 1), (5, 2), (3, 4)):
        found = replay([x, rows(a, b)])[0]
        assert np.array_equal(found[[a, b]], x)
        others = [r for r in range(6) if r not in (a, b)]
        assert (found[others] == 2**31 - 1).all()


def test_tiles_that_share_memory_do_not_share_values():
    def kernel(x):
        total = nl.load(x)
        for n in range(5):
            a = nl.multiply(nl.load(x), float(n))
            total = nl.add(total, a)
        return stored(total)

    x = np.random.default_rng(4).normal(size=(8, 8)).astype(np.float32)
    run = nki.run(kernel, x)
    replay = Replay(run.program, run.chip)
    arrays = {id(s.array) for b, s in replay.machine.storages.items() if b.on_chip}
    assert len(arrays) < sum(b.on_chip for b in run.program.buffers)
    assert replay([x])[0].tobytes() == run.outputs.tobytes()


def test_bfloat16_inputs_and_reinterpreted_hbm():
    def kernel(x):
        t = nl.ndarray((8, 4), nl.float32)
        nisa.dma_copy(t, x.view(nl.float32))
        bytes_ = nl.ndarray((8, 16), nl.uint8, buffer=nl.shared_hbm)
        out = nl.ndarray((8, 4), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(out, t)
        nisa.dma_copy(bytes_, out.view(nl.uint8))
        return out, bytes_

    x = np.random.default_rng(5).normal(size=(8, 8)).astype(BF16)
    run = nki.run(kernel, x)
    for found in (run.outputs, Replay(run.program, run.chip)([x])):
        assert found[0].tobytes() == x.tobytes()
        assert found[1].tobytes() == x.tobytes()


@pytest.mark.parametrize("wrong", [
    [np.ones((4, 4), np.float32)] * 2, [np.ones((4, 5), np.float32)],
    [np.ones((4, 4), np.float64)], [np.ones((4, 4), BF16)],
])  # fmt: skip
def test_inputs_that_do_not_fit_are_refused(wrong):
    run = nki.run(lambda x: stored(nl.load(x)), np.ones((4, 4), np.float32))
    with pytest.raises(ShapeError) as caught:
        Replay(run.program, run.chip)(wrong)
    assert caught.value.code == "sim.input"
