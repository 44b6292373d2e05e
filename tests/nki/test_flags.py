"""Flags and numbers of nki.isa calls: what is taken for True or False, and what is refused."""

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import TrnError
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl

ONES, WIDE = np.ones((128, 128), np.float32), np.ones((128, 512), np.float32)


def summed(accumulate):
    """Three products of ones on one PSUM tile, `accumulate` a function of the turn."""

    def kernel(w, x):
        acc = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
        left, right = nl.load(w), nl.load(x)
        for turn in range(3):
            nisa.nc_matmul(acc, left, right, accumulate=accumulate(turn))
        out = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.copy(acc))
        return out

    return nki.run(kernel, ONES, WIDE).outputs


@pytest.mark.parametrize("false", [False, 0, np.bool_(False), np.int64(0)])
def test_what_is_false_overwrites(false):
    assert (summed(lambda turn: false) == 128).all()


@pytest.mark.parametrize("kind", [bool, int, np.bool_, np.int32])
def test_what_is_true_adds(kind):
    assert (summed(lambda turn: kind(turn > 0)) == 384).all()
    assert (summed(lambda turn: kind(turn == 2)) == 256).all()


@pytest.mark.parametrize("given", [2, -1, 0.0, 1.0, "True", [], nl.float32])
def test_what_is_neither_is_refused(given):
    with pytest.raises(TrnError, match="neither True nor False") as caught:
        summed(lambda turn: given)
    assert caught.value.code == "nc_matmul.accumulate"
    assert "nisa.nc_matmul(acc, left, right" in str(caught.value)


def tile(*shape, dtype=nl.float32, psum=False):
    made = nl.ndarray(shape, dtype, buffer=nl.psum if psum else nl.sbuf)
    nisa.memset(made, 1)
    return made


def product(**more):
    acc = nl.ndarray((64, 64), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(acc, tile(64, 64), tile(64, 64), **more)


REFUSED = {
    "reverse0": (
        "tensor_scalar.reverse0",
        lambda: nisa.tensor_scalar(tile(8, 8), tile(8, 8), nl.subtract, 1.0, reverse0="yes"),
    ),
    "negate": (
        "tensor_reduce.negate",
        lambda: nisa.tensor_reduce(tile(8, 1), nl.add, tile(8, 8), 1, negate=2),
    ),
    "is_transpose": ("nc_matmul.is_transpose", lambda: product(is_transpose="x")),
    "perf_mode": ("nc_matmul.perf_mode", lambda: product(perf_mode="fast")),
    "tile_size": (
        "nc_matmul.tile_size", lambda: product(tile_position=(0, 0), tile_size=(64,)),
    ),
    "tile_position": (
        "nc_matmul.tile_size", lambda: product(tile_position=0.5, tile_size=(64, 128)),
    ),
    "scale": (
        "activation.scale", lambda: nisa.activation(tile(8, 8), nl.exp, tile(8, 8), scale=None),
    ),
    "imm": (
        "nc_match_replace8.imm",
        lambda: nisa.nc_match_replace8(tile(8, 8), tile(8, 8), tile(8, 8), None),
    ),
    "on_false_value": (
        "range_select.on_false_value",
        lambda: nisa.range_select(
            tile(8, 8), tile(8, 8), nl.less, nl.less, tile(8, 1), tile(8, 1), on_false_value=None
        ),
    ),
    "scales": (
        "dma_compute.scales", lambda: nisa.dma_compute(tile(8, 8), [tile(8, 8)], nl.add, 1.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_flags_and_numbers_of_another_kind_are_refused_by_name(name):
    code, body = REFUSED[name]

    def kernel(x):
        body()
        return x

    with pytest.raises(TrnError) as caught:
        nki.run(kernel, np.ones((1, 1), np.float32))
    assert caught.value.code == code
    assert caught.value.fix


X4, OTHER = nl.float8_e4m3fn_x4, nl.float8_e5m2_x4


@pytest.mark.parametrize(
    ("source", "target"),
    [(X4, nl.float32), (nl.float32, X4), (nl.uint32, X4), (X4, nl.uint32), (X4, OTHER)],
)
def test_packed_types_are_moved_and_never_cast(source, target):
    def made(dtype):
        t = nl.ndarray((8, 8), dtype, buffer=nl.sbuf)
        nisa.memset(t, 0)
        return t

    def kernel(x):
        nisa.dma_copy(made(target), made(source).view(target))  # the bits
        nisa.dma_copy(made(target), made(source))
        return x

    def added(x):
        nisa.dma_compute(made(target), [made(source)], nl.add)
        return x

    with nki.use_target("trn3"):
        for body, told in ((kernel, "bit by bit"), (added, "packed types can be copied")):
            with pytest.raises(TrnError, match=told):
                nki.run(body, np.ones((1, 1), np.float32))


ASKED = {
    "nki.matrix": [
        lambda t: nl.transpose(t.reshape((8, 2, 4))),
        lambda t: nl.matmul(t.reshape((8, 2, 4)), t),
        lambda t: nl.matmul(t, t.reshape((8, 2, 4))),
        lambda t: nl.load_transpose2d(nl.ndarray((2, 2, 2), nl.float32, buffer=nl.private_hbm)),
    ],
    "nki.axis": [
        lambda t: nl.sum(t, axis=None),
        lambda t: nl.softmax(t, axis=None),
        lambda t: nl.max(t, axis=1.0),
        lambda t: nl.mean(t, axis=(1, "x")),
    ],
    "nki.grid_axis": [
        lambda t: nl.program_id(1),
        lambda t: nl.program_id(-1),
        lambda t: nl.program_id(None),
        lambda t: nl.num_programs((0, 1)),
    ],
}


@pytest.mark.parametrize("code", ASKED)
@pytest.mark.parametrize("which", range(4))
def test_functions_name_what_they_cannot_take(code, which):
    def kernel(x):
        ASKED[code][which](nl.load(x))
        return x

    with pytest.raises(TrnError) as caught:
        nki.run(kernel, np.ones((8, 8), np.float32))
    assert caught.value.code == code


def test_a_pattern_that_leaves_its_tensor_has_a_shape_and_no_values():
    """Kernels make a tile of the shape of a pattern they use a part of (NKI Library, d2ad3a57)."""

    def kernel(x, use):
        pattern = x.ap([[16, 128], [2, 8]], offset=1)
        t = nl.zeros(pattern.shape, x.dtype)
        if use:
            nisa.dma_copy(t, pattern)
        out = nl.ndarray(t.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, t)
        return out

    x = np.ones((18, 16), np.float32)
    assert nki.run(kernel, x, False).outputs.shape == (128, 8)
    with pytest.raises(TrnError) as caught:
        nki.run(kernel, x, True)
    assert caught.value.code == "view.ap"
