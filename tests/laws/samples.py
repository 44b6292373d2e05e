"""Kernels of every kind, with inputs, for the laws that hold for all programs."""

from collections.abc import Callable
from typing import NamedTuple

import ml_dtypes
import numpy as np

from opentrn.nki import isa as nisa
from opentrn.nki import kernels
from opentrn.nki import language as nl

RNG = np.random.default_rng(2)
BF16 = ml_dtypes.bfloat16


class Sample(NamedTuple):
    """A kernel, the names of its tensors and their values, and the instructions it executes."""

    kernel: Callable
    names: tuple[str, ...]
    arrays: tuple[np.ndarray, ...]


def normal(*shape, dtype=np.float32):
    return RNG.normal(size=shape).astype(dtype)


def whole(*numbers):
    return np.array(numbers, np.int32).reshape(-1, 1)


def stored(tile):
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm, name="out")
    nl.store(out, tile)
    return out


def softmax(x):
    return stored(nl.softmax(nl.load(x), 1))


def counted(x, n):
    t, turns = nl.load(x), nisa.register_alloc(nl.load(n))
    for _ in nl.dynamic_range(turns):
        for j in nl.dynamic_range(0, 6, 2):
            nisa.tensor_scalar(t[:, nl.ds(j, 1)], t[:, nl.ds(j, 1)], nl.add, 1.0)
        for _ in nl.dynamic_range(2, turns):
            nisa.tensor_scalar(t, t, nl.multiply, 2.0)
    return stored(t)


def falling(x, n):
    t, left, one = nl.load(x), nl.load(n), nl.full((1, 1), 1, nl.int32)

    def body(r):
        nisa.tensor_scalar(t, t, nl.multiply, 0.5)
        nisa.tensor_tensor(left, left, one, nl.subtract)
        nisa.register_load(r, left)
        return r

    nl.while_loop(nisa.register_alloc(left), body)
    return stored(t)


def gathered(table, rows):
    t = nl.ndarray((rows.shape[0], table.shape[1]), table.dtype)
    nisa.dma_copy(t, table.vector_select(0, nl.load(rows)))
    c = nl.shared_constant(np.arange(table.shape[1], dtype=np.float32).reshape(1, -1))
    return stored(nl.add(t, nl.broadcast_to(nl.load(c), t.shape)))


def summed(w, x):
    acc = nl.ndarray((16, 8), nl.float32, buffer=nl.psum)
    for k in nl.dynamic_range(3):
        left, right = nl.ndarray((32, 16), w.dtype), nl.ndarray((32, 8), x.dtype)
        nisa.dma_copy(left, w[k])
        nisa.dma_copy(right, x[k])
        nisa.nc_matmul(acc, left, right)
    return stored(acc)


def reread(x):
    t = nl.load(x)
    fixed = nl.ndarray((8, 6), nl.float32, address=(32, 1024), name="fixed")
    nisa.memset(t.view(nl.uint16)[:, 0:12:2], 0)
    nisa.activation(fixed, nl.exp, t, scale=0.5)
    return stored(fixed)


def never(x, n):
    t = nl.load(x)
    for _ in nl.dynamic_range(0, nisa.register_alloc(nl.load(n))):
        for i in nl.dynamic_range(4):
            nisa.memset(t[:, i], 0.0)
    return stored(t)


SAMPLES = {
    "softmax": Sample(softmax, ("x",), (normal(128, 40),)),
    "counted": Sample(counted, ("x", "n"), (normal(8, 6), whole(4))),
    "falling": Sample(falling, ("x", "n"), (normal(8, 6), whole(5))),
    "gathered": Sample(gathered, ("table", "rows"), (normal(20, 6), whole(3, 19, 3, 0))),
    "summed": Sample(
        summed, ("w", "x"), (normal(3, 32, 16, dtype=BF16), normal(3, 32, 8, dtype=BF16))
    ),
    "reread": Sample(reread, ("x",), (normal(8, 6),)),
    "never": Sample(never, ("x", "n"), (normal(8, 6), whole(0))),
    "linear": Sample(kernels.linear, ("x", "w"), (normal(150, 70), normal(70, 90))),
    "attention": Sample(
        kernels.attention,
        ("q", "k", "v"),
        tuple(normal(1, 2, 40, 16, dtype=BF16) for _ in range(3)),
    ),
    "layer_norm": Sample(
        kernels.layer_norm, ("x", "weight"), (normal(3, 50, 24), normal(24))
    ),
}  # fmt: skip
