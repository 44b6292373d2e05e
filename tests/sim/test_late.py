"""Products that are put off are there when somebody looks, made of what was there before."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn import nki
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.sim import Replay, late

SIZE, TILES = 16, 3
NUMBERS = st.integers(0, TILES - 1)
STEPS = st.one_of(
    st.tuples(st.just("product"), NUMBERS, NUMBERS, NUMBERS),
    st.tuples(st.just("overwrite"), NUMBERS, NUMBERS),
    st.tuples(st.just("remake"), NUMBERS, NUMBERS),
    st.tuples(st.just("read"), NUMBERS),
    st.tuples(st.just("look"), NUMBERS),
)


def found_by(steps, inputs):
    """What each `read` and each `look` finds, in float64; every sum begins with one product."""
    tiles = list(inputs.astype(np.float64))
    sums = [tiles[n].T @ tiles[n] for n in range(TILES)]
    read, looked = [], []
    for what, first, *others in steps:
        if what == "product":
            sums[first] = sums[first] + tiles[others[0]].T @ tiles[others[1]]
        elif what in ("overwrite", "remake"):
            tiles[first] = inputs[others[0]].astype(np.float64)
        else:
            (read if what == "read" else looked).append(sums[first])
    return np.reshape(read, (-1, SIZE, SIZE)), np.reshape(looked, (-1, SIZE, SIZE))


class Doer:
    """The same steps as instructions of a kernel."""

    def __init__(self, x, count: int):
        self.x, self.looked, self.done = x, [], 0
        self.tiles = [nl.load(x[n]) for n in range(TILES)]
        self.sums = [nl.ndarray((SIZE, SIZE), nl.float32, buffer=nl.psum) for _ in range(TILES)]
        self.out = nl.ndarray((count, SIZE, SIZE), nl.float32, buffer=nl.shared_hbm)
        for n in range(TILES):
            self.product(n, n, n)

    def product(self, into, left, right):
        nisa.nc_matmul(self.sums[into], self.tiles[left], self.tiles[right])

    def overwrite(self, tile, source):
        nisa.tensor_copy(self.tiles[tile], nl.load(self.x[source]))

    def remake(self, tile, source):
        self.tiles[tile] = None  # its memory goes to the next tile of this form
        self.tiles[tile] = nl.load(self.x[source])

    def read(self, one):
        held = nl.ndarray((SIZE, SIZE), nl.float32)
        nisa.tensor_copy(held, self.sums[one])
        nisa.dma_copy(self.out[self.done], held)
        self.done += 1

    def look(self, one):
        tile = self.sums[one]
        self.looked.append(tile._handle.machine.value(tile._view))


@given(st.lists(STEPS, max_size=60), st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_products_of_a_random_order_of_events(steps, seed):
    inputs = np.random.default_rng(seed).integers(-3, 4, (TILES, SIZE, SIZE)).astype(np.float32)
    steps = [*steps, ("read", 0)]
    looked = []

    def kernel(x):
        doer = Doer(x, sum(what == "read" for what, *_ in steps))
        for what, *which in steps:
            getattr(doer, what)(*which)
        looked.extend(doer.looked)
        return doer.out

    read, seen = found_by(steps, inputs)
    assert np.array_equal(nki.run(kernel, inputs).outputs, read)
    assert np.array_equal(np.reshape(looked, (-1, SIZE, SIZE)), seen)


def test_more_products_than_are_put_off():
    count = 2 * late.MOST + 5

    def kernel(x):
        tile = nl.load(x)
        acc = nl.ndarray((SIZE, SIZE), nl.float32, buffer=nl.psum)
        for _ in range(count):
            nisa.nc_matmul(acc, tile, tile)
        out = nl.ndarray((SIZE, SIZE), nl.float32, buffer=nl.shared_hbm)
        held = nl.ndarray((SIZE, SIZE), nl.float32)
        nisa.tensor_copy(held, acc)
        nisa.dma_copy(out, held)
        return out

    x = np.random.default_rng(0).integers(-3, 4, (SIZE, SIZE)).astype(np.float32)
    assert np.array_equal(nki.run(kernel, x).outputs, count * (x.T @ x))


def test_what_waits_is_done_before_an_output_is_handed_over():
    """Copies, fills and arithmetic behind a matmul wait for it; the caller sees them done."""

    def kernel(x, y):
        tile = nl.load(x)
        acc = nl.ndarray((SIZE, SIZE), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(acc, tile, tile)
        held = nl.ndarray((SIZE, SIZE), nl.float32)
        nisa.tensor_copy(held, acc)
        nisa.tensor_scalar(held, held, nl.multiply, 2.0)
        nisa.tensor_tensor(held, held, tile, nl.add)
        nisa.dma_copy(y, held)  # an input: given back to the caller's array
        out = nl.ndarray((SIZE, SIZE), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(out, held)
        nisa.memset(held, 5.0)
        return out

    x = np.random.default_rng(0).integers(-3, 4, (SIZE, SIZE)).astype(np.float32)
    y = np.zeros_like(x)
    assert np.array_equal(nki.run(kernel, x, y).outputs, 2 * x.T @ x + x)
    assert np.array_equal(y, 2 * x.T @ x + x)


def test_memory_that_is_used_again_keeps_what_waits():
    """Tiles let go while work on them waits: the next of their form take their memory."""

    def kernel(x):
        out = nl.ndarray((4, SIZE, SIZE), nl.float32, buffer=nl.shared_hbm)
        for n in range(4):
            tile = nl.load(x[n])
            acc = nl.ndarray((SIZE, SIZE), nl.float32, buffer=nl.psum)
            nisa.nc_matmul(acc, tile, tile)
            held = nl.ndarray((SIZE, SIZE), nl.float32)
            nisa.tensor_copy(held, acc)
            nisa.dma_copy(out[n], held)
            tile = acc = held = None
        return out

    x = np.random.default_rng(0).integers(-3, 4, (4, SIZE, SIZE)).astype(np.float32)
    assert np.array_equal(nki.run(kernel, x).outputs, x.transpose(0, 2, 1) @ x)


def test_bits_seen_as_another_type_are_those_of_the_work_that_waited():
    def kernel(x):
        tile = nl.load(x)
        acc = nl.ndarray((SIZE, SIZE), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(acc, tile, tile)
        held = nl.ndarray((SIZE, SIZE), nl.float32)
        nisa.tensor_copy(held, acc)
        out = nl.ndarray((SIZE, SIZE), nl.int32, buffer=nl.shared_hbm)
        nisa.dma_copy(out, held.view(nl.int32))
        return out

    x = np.random.default_rng(0).integers(-3, 4, (SIZE, SIZE)).astype(np.float32)
    assert np.array_equal(nki.run(kernel, x).outputs, (x.T @ x).view(np.int32))


def test_replay_gives_the_bits_of_the_run():
    def kernel(x):
        tile = nl.load(x)
        sums = [nl.ndarray((128, 512), nl.float32, buffer=nl.psum) for _ in range(4)]
        out = nl.ndarray((512, 512), nl.float32, buffer=nl.shared_hbm)
        for _ in range(2):
            for m in range(4):
                nisa.nc_matmul(sums[m], tile[:, m * 128 : (m + 1) * 128], tile)
        for m in range(4):
            held = nl.ndarray((128, 512), nl.float32)
            nisa.tensor_copy(held, sums[m])
            nisa.dma_copy(out[m * 128 : (m + 1) * 128], held)
        return out

    x = np.random.default_rng(0).normal(size=(128, 512)).astype(np.float32)
    run = nki.run(kernel, x)
    assert np.array_equal(run.outputs, Replay(run.program, run.chip)([x])[0])
    wanted = 2 * (x.astype(np.float64).T @ x)
    np.testing.assert_allclose(run.outputs, wanted, rtol=1e-4, atol=1e-4)
