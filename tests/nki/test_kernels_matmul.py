"""Kernels linear and matmul against float64 products."""

import math

import numpy as np
import pytest

from opentrn import nki
from opentrn.nki import kernels
from tests.nki.kernel_checks import (
    about,
    close,
    every_dtype,
    every_target,
    exact,
    numbers,
    run,
    sums,
)

SIZES = [(1, 1, 1), (7, 127, 3), (127, 129, 513), (129, 300, 128), (300, 128, 700), (257, 1, 5)]
ERF = np.vectorize(math.erf)
FUNCTIONS = {
    "gelu": lambda x: 0.5 * x * (1 + ERF(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


@every_dtype
@pytest.mark.parametrize("size", SIZES)
def test_linear_is_a_product(size, dtype):
    rows, depth, columns = size
    x, w = numbers(0, rows, depth, dtype=dtype), numbers(1, depth, columns, dtype=dtype)
    close(run(kernels.linear, x, w), exact(x) @ exact(w), about(dtype, depth))


@every_target
@pytest.mark.parametrize("rows", [130, 300])
@pytest.mark.parametrize("activation", [None, *FUNCTIONS])
def test_linear_ends_with_bias_activation_and_residual(target, rows, activation):
    x, w, bias = numbers(0, 2, rows, 140), numbers(1, 140, 520), numbers(2, 520)
    residual = numbers(3, 2, rows, 520)
    want = FUNCTIONS.get(activation, lambda y: y)(exact(x) @ exact(w) + exact(bias))
    found = run(kernels.linear, x, w, bias, residual, activation, target=target)
    close(found, want + exact(residual), sums(140))


@pytest.mark.parametrize("options", [{"bias": 2}, {"residual": 3}, {"activation": "relu"}])
def test_linear_with_one_of_them(options):
    x, w = numbers(0, 300, 40), numbers(1, 40, 33)
    given = {"bias": numbers(2, 33), "residual": numbers(3, 300, 33), "activation": "relu"}
    chosen = {name: given[name] for name in options}
    want = exact(x) @ exact(w) + exact(chosen.get("bias", np.zeros(33)))
    want = np.maximum(want, 0) if "activation" in chosen else want
    want = want + exact(chosen.get("residual", np.zeros(33)))
    close(run(kernels.linear, x, w, **chosen), want, sums(40))


def test_the_result_is_rounded_once_to_the_dtype_asked_for():
    x, w = numbers(0, 20, 30, dtype="bfloat16"), numbers(1, 30, 40, dtype="bfloat16")
    found = run(kernels.linear, x, w, out_dtype="float32")
    assert found.dtype == np.float32
    close(found, exact(x) @ exact(w), sums(30))
    mixed = run(kernels.linear, x, exact(w).astype(np.float32))
    close(mixed, exact(x) @ exact(w), 1.1)


def test_a_contraction_too_long_for_sbuf_is_streamed():
    x, w, bias = numbers(0, 520, 20000), numbers(1, 20000, 3), numbers(2, 3)
    found = run(kernels.linear, x, w, bias, activation="relu")
    close(found, np.maximum(exact(x) @ exact(w) + exact(bias), 0), sums(20000))


@pytest.mark.parametrize(("rows", "deep", "columns"), [(640, 2048, 1100), (520, 6400, 600)])
def test_many_rows_stay_while_weights_that_do_not_fit_pass_by(rows, deep, columns):
    x, w, bias = numbers(0, rows, deep), numbers(1, deep, columns), numbers(2, columns)
    found = run(kernels.linear, x, w, bias)
    close(found, exact(x) @ exact(w) + exact(bias), sums(deep))


def test_more_columns_than_fit_are_taken_in_blocks():
    x, w = numbers(0, 3, 2500), numbers(1, 2500, 1300)
    close(run(kernels.linear, x, w), exact(x) @ exact(w), sums(2500))
    wide, few = numbers(2, 40, 5000), numbers(3, 2, 40)
    close(run(kernels.linear, few, wide), exact(few) @ exact(wide), sums(40))


@nki.jit
def _of_views(x, w, bias):
    rows = x.permute((1, 0, 2))
    narrow = bias[0:1].broadcast(0, 60)
    return kernels.linear(rows[1:, :, :], w[:, 5:65], narrow)


def test_linear_takes_any_view():
    x, w, bias = numbers(0, 3, 50, 33), numbers(1, 33, 70), numbers(2, 4)
    want = exact(x).transpose(1, 0, 2)[1:] @ exact(w)[:, 5:65] + bias[0]
    close(run(_of_views, x, w, bias), want, sums(33))


@nki.jit
def _of_turned_memory(x, w):
    return kernels.linear(x.permute((1, 0)), w.permute((1, 0)))


@every_target
@every_dtype
@pytest.mark.parametrize("size", [(1, 7, 3), (130, 300, 257), (40, 20000, 5)])
def test_operands_that_lie_transposed_in_memory(target, dtype, size):
    rows, depth, columns = size
    x, w = numbers(0, depth, rows, dtype=dtype), numbers(1, columns, depth, dtype=dtype)
    found = run(_of_turned_memory, x, w, target=target)
    close(found, exact(x).T @ exact(w).T, about(dtype, depth))


@nki.jit
def _of_turned_weights(x, w):
    return kernels.linear(x, w[:, 128:].permute((1, 0)))


def turns(target, x, w):
    """How many elements the DMA transposes in a product with turned weights."""
    with nki.use_target(target):
        program = nki.run(_of_turned_weights, x, w).program
    moves = [one for one in program.instructions() if one.opcode == "dma_transpose"]
    return sum(math.prod(one.reads()[0].shape) for one in moves)


# Weights that fit are loaded once; they pass by twice the rows that stay, and twice what streams;
# columns that fill no tile of 16.
MANY_ROWS = [(600, 256, 144, 1), (640, 6400, 1040, 2), (520, 16384, 48, 2), (600, 256, 145, 0)]


@every_target
@pytest.mark.parametrize("size", MANY_ROWS)
def test_the_dma_turns_weights_that_many_rows_pass_by(target, size):
    rows, depth, columns, passes = size
    x = numbers(0, rows, depth, dtype="bfloat16")
    w = numbers(1, columns, 128 + depth, dtype="bfloat16")
    found = run(_of_turned_weights, x, w, target=target)
    close(found, exact(x) @ exact(w)[:, 128:].T, about("bfloat16", depth))
    assert turns(target, x, w) == (passes * depth * columns if target != "trn1" else 0)


@pytest.mark.parametrize(("rows", "kind"), [(511, "bfloat16"), (600, "float32")])
def test_few_rows_and_wide_numbers_are_turned_by_the_tensor_engine(rows, kind):
    x, w = numbers(0, rows, 256, dtype=kind), numbers(1, 144, 384, dtype=kind)
    assert turns("trn2", x, w) == 0
    close(run(_of_turned_weights, x, w), exact(x) @ exact(w)[:, 128:].T, about(kind, 256))


@every_target
@every_dtype
def test_matmul_of_batches(target, dtype):
    x, y = numbers(0, 2, 3, 65, 130, dtype=dtype), numbers(1, 2, 3, 130, 20, dtype=dtype)
    found = run(kernels.matmul, x, y, target=target)
    close(found, exact(x) @ exact(y), about(dtype, 130))
    shared = run(kernels.matmul, x, y[0, 0], target=target)
    close(shared, exact(x) @ exact(y[0, 0]), about(dtype, 130))
