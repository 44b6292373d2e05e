"""Kernels that follow a piece of advice and kernels that need it, in pairs with equal results."""

import ml_dtypes
import numpy as np

import opentrn.nki as nki
import opentrn.nki.isa as nisa
import opentrn.nki.language as nl

P = 128
BF16 = ml_dtypes.bfloat16


def sbuf(shape, dtype):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)


def hbm(shape, dtype):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm)


def psum(shape):
    return nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)


def numbers(*shape, dtype=BF16):
    return np.random.default_rng(7).standard_normal(shape).astype(dtype)


# ---------------------------------------------------------------- load, work, store


@nki.jit
def one_tile_for_all(x):
    """exp(x), row blocks one after the other through one and the same tile."""
    out = hbm(x.shape, x.dtype)
    tile = sbuf((P, x.shape[1]), x.dtype)
    for n in range(x.shape[0] // P):
        rows = nl.ds(n * P, P)
        nisa.dma_copy(dst=tile, src=x[rows])
        nisa.activation(dst=tile, op=nl.exp, data=tile)
        nisa.dma_copy(dst=out[rows], src=tile)
    return out


@nki.jit
def fresh_tiles(x):
    """exp(x), a fresh tile for each row block."""
    out = hbm(x.shape, x.dtype)
    for n in range(x.shape[0] // P):
        rows = nl.ds(n * P, P)
        tile = sbuf((P, x.shape[1]), x.dtype)
        nisa.dma_copy(dst=tile, src=x[rows])
        done = sbuf((P, x.shape[1]), x.dtype)
        nisa.activation(dst=done, op=nl.exp, data=tile)
        nisa.dma_copy(dst=out[rows], src=done)
    return out


# ---------------------------------------------------------------- sizes of transfers


def _exp_in_pieces(x, width):
    out = hbm(x.shape, x.dtype)
    tile = sbuf(x.shape, x.dtype)
    done = sbuf(x.shape, x.dtype)
    for n in range(x.shape[1] // width):
        columns = nl.ds(n * width, width)
        nisa.dma_copy(dst=tile[:, columns], src=x[:, columns])
    nisa.activation(dst=done, op=nl.exp, data=tile)
    for n in range(x.shape[1] // width):
        columns = nl.ds(n * width, width)
        nisa.dma_copy(dst=out[:, columns], src=done[:, columns])
    return out


@nki.jit
def small_pieces(x):
    """exp(x), loaded and stored 32 columns (8 KiB) at a time."""
    return _exp_in_pieces(x, 32)


@nki.jit
def tiny_pieces(x):
    """exp(x), loaded and stored 2 columns (512 B) at a time: most time goes into issuing."""
    return _exp_in_pieces(x, 2)


@nki.jit
def large_pieces(x):
    """exp(x), loaded and stored 128 columns (32 KiB) at a time."""
    return _exp_in_pieces(x, 128)


def _exp_of_blocks(x, width):
    """exp of the first `width` of the last dimension of x[blocks, 128, n, any]."""
    blocks, _, n, _ = x.shape
    out = hbm((P, n, width), x.dtype)
    for block in range(blocks):
        tile = sbuf((P, n, width), x.dtype)
        nisa.dma_copy(dst=tile, src=x[block, :, :, nl.ds(0, width)])
        done = sbuf((P, n, width), x.dtype)
        nisa.activation(dst=done, op=nl.exp, data=tile)
    nisa.dma_copy(dst=out, src=done)
    return out


@nki.jit
def short_runs(x):
    """Every other 64 bytes of the rows: runs of 64 bytes."""
    return _exp_of_blocks(x, x.shape[3] // 2)


@nki.jit
def long_runs(x):
    """The same elements, stored without what lies between them."""
    return _exp_of_blocks(x, x.shape[3])


# ---------------------------------------------------------------- the PE array


def _sums(lhsT, rhs, rows):
    """4 · lhsT[K, 128]ᵀ · rhs[K, N] over `rows` rows of the contraction at a time."""
    (K, M), N = lhsT.shape, rhs.shape[1]
    out = hbm((M, N), nl.float32)
    groups, sizes = K // rows, {"p": rows}
    left, right = sbuf((rows, groups, M), lhsT.dtype), sbuf((rows, groups, N), rhs.dtype)
    for tile, tensor in ((left, lhsT), (right, rhs)):
        parts = tensor.rearrange((("g", "p"), "n"), ("p", "g", "n"), sizes)
        nisa.dma_copy(dst=tile, src=parts)
    for n in range(N // 512):
        columns = nl.ds(n * 512, 512)
        acc = psum((M, 512))
        for g in [*range(groups)] * 4:
            nisa.nc_matmul(dst=acc, stationary=left[:, g, :], moving=right[:, g, columns])
        done = sbuf((M, 512), nl.float32)
        nisa.tensor_copy(dst=done, src=acc)
        nisa.dma_copy(dst=out[:, columns], src=done)
    return out


@nki.jit
def thin_multiplies(lhsT, rhs):
    """A contraction of 32 rows at a time: a quarter of the array."""
    return _sums(lhsT, rhs, 32)


@nki.jit
def full_multiplies(lhsT, rhs):
    """All 128 rows at a time."""
    return _sums(lhsT, rhs, 128)


# ---------------------------------------------------------------- layouts


BLOCK = 4 * P


def _loaded(w):
    """w[K, N] as an SBUF tile [128, K / 128, N]."""
    tile = sbuf((P, w.shape[0] // P, w.shape[1]), w.dtype)
    nisa.dma_copy(dst=tile, src=w.rearrange((("t", "p"), "n"), ("p", "t", "n"), {"p": P}))
    return tile


def _block_out(turned, weights, out, block):
    """Rows `block` of out: turned[128, K / 128, 512]ᵀ · weights."""
    depth, columns = turned.shape[1], out.shape[1]
    result = sbuf((P, 4, columns), out.dtype)
    for m in range(4):
        acc = psum((P, columns))
        for k in range(depth):
            part = turned[:, k, nl.ds(m * P, P)]
            nisa.nc_matmul(dst=acc, stationary=part, moving=weights[:, k, :])
        nisa.activation(dst=result[:, m, :], op=nl.copy, data=acc)
    rows = out[nl.ds(block * BLOCK, BLOCK)]
    nisa.dma_copy(dst=rows.rearrange((("t", "p"), "n"), ("p", "t", "n"), {"p": P}), src=result)


@nki.jit
def turned_on_chip(x, w):
    """x[M, K] · w[K, N] for many rows: x comes row by row, and the PE array turns it."""
    out = hbm((x.shape[0], w.shape[1]), x.dtype)
    depth, weights = x.shape[1] // P, _loaded(w)
    for block in range(x.shape[0] // BLOCK):
        rows = _loaded(x[nl.ds(block * BLOCK, BLOCK)])
        turned = sbuf((P, depth, BLOCK), x.dtype)
        for m in range(4):
            for k in range(depth):
                flipped = nl.ndarray((P, P), dtype=x.dtype, buffer=nl.psum)
                part = rows[:, m, nl.ds(k * P, P)]
                nisa.nc_transpose(dst=flipped, data=part, engine=nisa.engine.tensor)
                nisa.tensor_copy(dst=turned[:, k, nl.ds(m * P, P)], src=flipped)
        _block_out(turned, weights, out, block)
    return out


@nki.jit
def turned_in_memory(xt, w):
    """The same with x given as its transpose [K, M], loaded as it is used."""
    out = hbm((xt.shape[1], w.shape[1]), xt.dtype)
    weights = _loaded(w)
    for block in range(xt.shape[1] // BLOCK):
        _block_out(_loaded(xt[:, nl.ds(block * BLOCK, BLOCK)]), weights, out, block)
    return out


# ---------------------------------------------------------------- dtypes


@nki.jit
def product(lhsT, rhs):
    """lhsT[K, M]ᵀ · rhs[K, N] in the dtype of the operands; lhsT stays in SBUF."""
    (K, M), N = lhsT.shape, rhs.shape[1]
    out = hbm((M, N), lhsT.dtype)
    depth = K // P
    stationary = sbuf((P, depth, M), lhsT.dtype)
    for k in range(depth):
        nisa.dma_copy(dst=stationary[:, k, :], src=lhsT[nl.ds(k * P, P)])
    for n in range(N // 512):
        moving = sbuf((P, depth, 512), rhs.dtype)
        for k in range(depth):
            nisa.dma_copy(dst=moving[:, k, :], src=rhs[nl.ds(k * P, P), nl.ds(n * 512, 512)])
        for m in range(M // P):
            acc = psum((P, 512))
            for k in range(depth):
                nisa.nc_matmul(
                    dst=acc, stationary=stationary[:, k, nl.ds(m * P, P)], moving=moving[:, k, :]
                )
            result = sbuf((P, 512), out.dtype)
            nisa.tensor_copy(dst=result, src=acc)
            nisa.dma_copy(dst=out[nl.ds(m * P, P), nl.ds(n * 512, 512)], src=result)
    return out


# ---------------------------------------------------------------- out of PSUM


def _outer(lhsT, rhs, balanced):
    """lhsT[128, M]ᵀ · rhs[128, N]: one matmul for each tile, so leaving PSUM is the work."""
    M, N = lhsT.shape[1], rhs.shape[1]
    out = hbm((M, N), lhsT.dtype)
    stationary, moving = sbuf(lhsT.shape, lhsT.dtype), sbuf(rhs.shape, rhs.dtype)
    nisa.dma_copy(dst=stationary, src=lhsT)
    nisa.dma_copy(dst=moving, src=rhs)
    for m in range(M // P):
        result = sbuf((P, N), out.dtype)
        for n in range(N // 512):
            acc = psum((P, 512))
            columns = nl.ds(n * 512, 512)
            nisa.nc_matmul(
                dst=acc, stationary=stationary[:, nl.ds(m * P, P)], moving=moving[:, columns]
            )
            if balanced and n % 2:
                nisa.activation(dst=result[:, columns], op=nl.copy, data=acc)
            else:
                nisa.tensor_copy(dst=result[:, columns], src=acc, engine=nisa.engine.vector)
        nisa.dma_copy(dst=out[nl.ds(m * P, P)], src=result)
    return out


@nki.jit
def one_engine_copies(lhsT, rhs):
    """The Vector Engine alone empties PSUM."""
    return _outer(lhsT, rhs, balanced=False)


@nki.jit
def two_engines_copy(lhsT, rhs):
    """Vector and Scalar Engine take turns."""
    return _outer(lhsT, rhs, balanced=True)


# ---------------------------------------------------------------- reading twice


def _scaled(x, factors, kept):
    """out[n] = max(x) · factors[n]: x is used for every n."""
    count, width = factors.shape[0] // P, x.shape[1]
    out = hbm((count * P, 1), nl.float32)
    whole = sbuf((P, width), x.dtype)
    if kept:
        nisa.dma_copy(dst=whole, src=x)
    for n in range(count):
        factor = sbuf((P, 1), nl.float32)
        nisa.dma_copy(dst=factor, src=factors[nl.ds(n * P, P)])
        tile = whole
        if not kept:
            tile = sbuf((P, width), x.dtype)
            nisa.dma_copy(dst=tile, src=x)
        most = sbuf((P, 1), nl.float32)
        nisa.tensor_reduce(dst=most, op=nl.maximum, data=tile, axis=1)
        scaled = sbuf((P, 1), nl.float32)
        nisa.tensor_scalar(dst=scaled, data=most, op0=nl.multiply, operand0=factor)
        nisa.dma_copy(dst=out[nl.ds(n * P, P)], src=scaled)
    return out


@nki.jit
def read_each_time(x, factors):
    """x is loaded for every factor."""
    return _scaled(x, factors, kept=False)


@nki.jit
def read_once(x, factors):
    """x is loaded once."""
    return _scaled(x, factors, kept=True)


# ---------------------------------------------------------------- the clock of the Tensor Engine


def _in_bursts(lhsT, rhs, count, burst):
    """count multiplies of lhsT[128, 128]ᵀ · rhs[128, 512], `burst` before each look at the sum."""
    out = hbm((P, count // burst), nl.float32)
    left, right = sbuf(lhsT.shape, lhsT.dtype), sbuf(rhs.shape, rhs.dtype)
    nisa.dma_copy(dst=left, src=lhsT)
    nisa.dma_copy(dst=right, src=rhs)
    most = sbuf((P, count // burst), nl.float32)
    acc = psum((P, 512))
    for n in range(count // burst):
        for k in range(burst):
            nisa.nc_matmul(dst=acc, stationary=left, moving=right, accumulate=k > 0)
        nisa.tensor_reduce(dst=most[:, nl.ds(n, 1)], op=nl.maximum, data=acc, axis=1)
    nisa.dma_copy(dst=out, src=most)
    return out


@nki.jit
def short_bursts(lhsT, rhs):
    """Three multiplies at a time: the Tensor Engine never works long enough to run warm."""
    return _in_bursts(lhsT, rhs, 240, 3)


@nki.jit
def long_bursts(lhsT, rhs):
    """As many, sixty at a time."""
    return _in_bursts(lhsT, rhs, 240, 60)


# ---------------------------------------------------------------- room in SBUF


def _plus_one(x, streamed):
    """x + 1, row blocks one after the other, or all loaded and worked on before they are stored."""
    out = hbm(x.shape, x.dtype)
    blocks = x.shape[0] // P
    held = []
    for n in range(blocks):
        tile = sbuf((P, x.shape[1]), x.dtype)
        nisa.dma_copy(dst=tile, src=x[nl.ds(n * P, P)])
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
        held.append(tile)
        if streamed:
            nisa.dma_copy(dst=out[nl.ds(n * P, P)], src=tile)
    if not streamed:
        for n in range(blocks):
            nisa.dma_copy(dst=out[nl.ds(n * P, P)], src=held[n])
    return out


@nki.jit
def all_held(x):
    """Every block lives until the end: they do not fit."""
    return _plus_one(x, streamed=False)


@nki.jit
def one_at_a_time(x):
    """Each block is stored before the next is loaded."""
    return _plus_one(x, streamed=True)
