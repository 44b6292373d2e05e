"""Kernels that move data: every element lands where NumPy puts it, bit by bit."""

import itertools

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import BoundsError
from opentrn.nki import kernels
from opentrn.nki import language as nl
from tests.nki.kernel_checks import STORED, every_target, exact, numbers, run


@every_target
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("axes", list(itertools.permutations(range(3))))
def test_transpose(target, dtype, axes):
    x = numbers(0, 3, 130, 150, dtype=dtype)
    assert np.array_equal(run(kernels.transpose, x, axes, target=target), x.transpose(axes))


@nki.jit
def _copies(x, out_dtype=None):
    views = (
        x[1:, ::2, 3:],
        x[0:1, :, 0].broadcast(0, 5),
        x.permute((2, 0, 1))[:, :, 1],
        x.reshape((x.size,)),
    )
    return tuple(kernels.copy(v, out_dtype) for v in views)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_copies_of_views(dtype):
    x = numbers(0, 3, 130, 70)
    found = run(_copies, x, out_dtype=dtype)
    kind = STORED[dtype]
    assert np.array_equal(found[0], x[1:, ::2, 3:].astype(kind))
    assert np.array_equal(found[1], np.broadcast_to(x[0, :, 0], (5, 130)).astype(kind))
    assert np.array_equal(found[2], x.transpose(2, 0, 1)[:, :, 1].astype(kind))
    assert np.array_equal(found[3], x.reshape(-1).astype(kind))


def test_copies_of_integers_and_booleans():
    for kind in (np.int32, np.uint8, np.bool_):
        x = (np.arange(200 * 130) % 7).reshape(200, 130).astype(kind)
        assert np.array_equal(run(kernels.transpose, x, (1, 0)), x.T)


@nki.jit
def _repeats(x):
    return kernels.copy(x.broadcast(1, 700)), kernels.copy(x[0].broadcast(0, 9))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "int8", "bool"])
def test_what_repeats_along_rows_is_read_once_a_row(dtype):
    x = (numbers(0, 300, 1) * 100).astype(STORED.get(dtype, dtype))
    done = nki.run(_repeats, x)
    assert np.array_equal(done.outputs[0], np.broadcast_to(x, (300, 700)))
    assert np.array_equal(done.outputs[1], np.broadcast_to(x[0], (9,)))
    moves = [i.form.move.descriptors for i in done.program.instructions()
             if i.opcode == "dma_copy"]  # fmt: skip
    assert sum(moves) < 300 * 20  # and not one for each of 210,000 elements


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_concatenate(axis):
    shapes = [[3, 50, 7] for _ in range(3)]
    for n, shape in enumerate(shapes):
        shape[axis] += n
    xs = [numbers(n, *shape, dtype="bfloat16") for n, shape in enumerate(shapes)]
    assert np.array_equal(run(kernels.concatenate, xs, axis), np.concatenate(xs, axis))


@pytest.mark.parametrize(
    ("low", "high"), [((0, 0, 0), (0, 0, 0)), ((1, 0, 3), (0, 2, 5)), ((0, 130, 0), (2, 0, 0))]
)
def test_pad(low, high):
    x = numbers(0, 3, 50, 7)
    want = np.pad(x, tuple(zip(low, high, strict=True)), constant_values=2.5)
    assert np.array_equal(run(kernels.pad, x, 2.5, low, high), want)


@every_target
@pytest.mark.parametrize("shape", [(1,), (129,), (3, 77)])
def test_embedding_gathers_rows(target, shape):
    table = numbers(0, 301, 70, dtype="bfloat16")
    ids = np.random.default_rng(1).integers(0, 301, shape).astype(np.int32)
    ids.flat[0] = 300
    found = run(kernels.embedding, table, ids, target=target)
    assert np.array_equal(exact(found), exact(table[ids]))


def test_wide_rows_are_gathered_in_pieces():
    table, ids = numbers(0, 5, 20000), np.array([4, 0, 4], np.int32)
    assert np.array_equal(run(kernels.embedding, table, ids), table[ids])


def test_an_id_outside_the_table_is_refused():
    with pytest.raises(BoundsError, match="dynamic index 5"):
        nki.run(kernels.embedding, numbers(0, 5, 8), np.array([5], np.int32))


def test_kernels_are_part_of_the_language():
    @nki.jit
    def twice(x):
        return kernels.copy(kernels.concatenate([x, x]), nl.float16)

    x = numbers(0, 4, 6)
    assert np.array_equal(run(twice, x), np.concatenate([x, x]).astype(np.float16))
