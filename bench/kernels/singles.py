"""One instruction at a time, to compare how long it lasts."""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128


@nki.jit
def copy(x, engine="vector", space="psum", width=512):
    """A copy of a [128, width] tile in `space` to SBUF on one engine."""
    tile = filled(x, space, width)
    result = nl.ndarray((P, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=tile, engine=getattr(nisa.engine, engine), name="measured")
    return stored(x, result)


@nki.jit
def activation(x, space="sbuf", width=512):
    """exp(x + bias) of a [128, width] tile on the Scalar Engine, a bias for each partition."""
    tile, bias = filled(x, space, width), filled(x, "sbuf", 1)
    result = nl.ndarray((P, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=result, op=nl.exp, data=tile, bias=bias, name="measured")
    return stored(x, result)


@nki.jit
def scaling(x, space="sbuf", width=512):
    """A [128, width] tile times a number for each partition on the Vector Engine."""
    tile, factor = filled(x, space, width), filled(x, "sbuf", 1)
    result = nl.ndarray((P, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=result, data=tile, op0=nl.multiply, operand0=factor,
                       engine=nisa.engine.vector, name="measured")  # fmt: skip
    return stored(x, result)


@nki.jit
def reduction(x, space="sbuf", rows=1, width=512):
    """The maximum over the last axis of a [128, rows, width] tile on the Vector Engine."""
    tile = filled(x, space, rows * width).reshape((P, rows, width))
    result = nl.ndarray((P, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=result, op=nl.maximum, data=tile, axis=2, name="measured")
    return stored(x, result)


@nki.jit
def reciprocal(x, width=4):
    """1 / x of a [128, width] tile on the Vector Engine."""
    tile = filled(x, "sbuf", width)
    result = nl.ndarray((P, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=result, data=tile, name="measured")
    return stored(x, result)


@nki.jit
def multiply(x, width=512):
    """The first matrix product [128, 128]ᵀ · [128, width] of a kernel, while the engine is cold."""
    left = filled(x, "sbuf", P)
    right = filled(x, "sbuf", width)
    acc = nl.ndarray((P, width), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=acc, stationary=left, moving=right, name="measured")
    result = nl.ndarray((P, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=acc)
    return stored(x, result)


def filled(x, space, width):
    """A [128, width] tile of zeros in `space`, of the type of `x`."""
    tile = nl.ndarray((P, width), dtype=x.dtype, buffer=getattr(nl, space))
    nisa.memset(dst=tile, value=0.0)
    return tile


def stored(x, tile):
    """An output that holds `tile`."""
    out = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out
