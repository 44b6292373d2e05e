"""Two NKI kernels: a tiled bfloat16 matrix product, and softmax attention for one head.

Written for Trainium with NKI 0.6; run it unmodified on the simulator:

    opentrn run examples/matmul_attention.py
    opentrn run --target trn3 examples/matmul_attention.py
"""

import math

import ml_dtypes
import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np


@nki.jit
def matmul(lhsT, rhs):
    """lhsT[K, M]ᵀ · rhs[K, N] in bfloat16; K and M multiples of 128, N of 512.

    Blocks of two column tiles of `rhs` and of four row tiles of `lhsT` lie in SBUF, so that both
    come in runs of 1 KiB and more.  Four sums grow at a time, half of PSUM: the next four begin
    while they are copied out.  A loaded row of `rhs` is multiplied by four tiles in turn.
    """
    K, M = lhsT.shape
    _, N = rhs.shape
    TILE_K = nl.tile_size.pmax
    TILE_M = nl.tile_size.gemm_stationary_fmax
    TILE_N = 512
    BLOCK_M, BLOCK_N = 4 * TILE_M, 2 * TILE_N
    k_tiles = K // TILE_K
    out = nl.ndarray((M, N), dtype=lhsT.dtype, buffer=nl.shared_hbm)
    # The partition dimension comes first: [K, N] becomes [128, K / 128, N].
    lhs_rows = lhsT.rearrange((("t", "p"), "m"), ("p", "t", "m"), {"p": TILE_K})
    rhs_rows = rhs.rearrange((("t", "p"), "n"), ("p", "t", "n"), {"p": TILE_K})

    for start in range(0, N, BLOCK_N):
        width = min(BLOCK_N, N - start)
        rhs_block = nl.ndarray((TILE_K, k_tiles, width), dtype=rhs.dtype, buffer=nl.sbuf)
        for k in nl.affine_range(k_tiles):
            nisa.dma_copy(dst=rhs_block[:, k, :], src=rhs_rows[:, k, nl.ds(start, width)])
        for first in range(0, M, BLOCK_M):
            height = min(BLOCK_M, M - first)
            lhs_block = nl.ndarray((TILE_K, k_tiles, height), dtype=lhsT.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=lhs_block, src=lhs_rows[:, :, nl.ds(first, height)])
            for column in range(0, width, TILE_N):
                sums = []
                for _ in nl.affine_range(height // TILE_M):
                    sums.append(nl.ndarray((TILE_M, TILE_N), dtype=nl.float32, buffer=nl.psum))
                for k in nl.affine_range(k_tiles):
                    lhs_row, moving = lhs_block[:, k, :], rhs_block[:, k, nl.ds(column, TILE_N)]
                    for m in nl.affine_range(height // TILE_M):
                        stationary = lhs_row[:, nl.ds(m * TILE_M, TILE_M)]
                        nisa.nc_matmul(dst=sums[m], stationary=stationary, moving=moving)
                for m in nl.affine_range(height // TILE_M):
                    result = nl.ndarray((TILE_M, TILE_N), dtype=out.dtype, buffer=nl.sbuf)
                    nisa.tensor_copy(dst=result, src=sums[m])
                    rows = nl.ds(first + m * TILE_M, TILE_M)
                    nisa.dma_copy(dst=out[rows, nl.ds(start + column, TILE_N)], src=result)
    return out


@nki.jit
def attention(q, k, v):
    """softmax(q · kᵀ / √d) · v for one head: q, k, v [T, d], T a multiple of 128, d ≤ 128."""
    T, d = q.shape
    P = nl.tile_size.pmax
    tiles = T // P
    out = nl.ndarray((T, d), dtype=q.dtype, buffer=nl.shared_hbm)

    # Rows come in as [128, T / 128, d]; qᵀ and kᵀ as [d, T], for the contraction runs over d.
    v_tile = nl.ndarray((P, tiles, d), dtype=v.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=v_tile, src=v.rearrange((("t", "p"), "d"), ("p", "t", "d"), {"p": P}))
    qT = nl.ndarray((d, T), dtype=q.dtype, buffer=nl.sbuf)
    kT = nl.ndarray((d, T), dtype=k.dtype, buffer=nl.sbuf)
    pairs = [(q, qT), (k, kT)]
    for n in nl.affine_range(len(pairs)):
        tensor, turned = pairs[n]
        rows = nl.ndarray((P, tiles, d), dtype=tensor.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows, src=tensor.rearrange((("t", "p"), "d"), ("p", "t", "d"), {"p": P}))
        for t in nl.affine_range(tiles):
            flipped = nl.ndarray((d, P), dtype=tensor.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=flipped, data=rows[:, t, :])
            nisa.tensor_copy(dst=turned[:, nl.ds(t * P, P)], src=flipped)

    for t in nl.affine_range(tiles):
        # Scores of 128 queries against all keys, 512 keys (one PSUM bank) at a time.
        scores = nl.ndarray((P, T), dtype=nl.float32, buffer=nl.sbuf)
        for start in range(0, T, 512):
            block = nl.ds(start, min(512, T - start))
            part = nl.ndarray((P, block.size), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(
                dst=part, stationary=qT[:, nl.ds(t * P, P)], moving=kT[:, block]
            )
            nisa.tensor_scalar(
                dst=scores[:, block], data=part, op0=nl.multiply, operand0=1 / math.sqrt(d)
            )

        # exp(score - max) and its sum, in one pass of the Scalar Engine.
        peak = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=peak, op=nl.maximum, data=scores, axis=1, negate=True, keepdims=True)
        weights = nl.ndarray((P, T), dtype=v.dtype, buffer=nl.sbuf)
        total = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(
            dst=weights, op=nl.exp, data=scores, reduce_op=nl.add, reduce_res=total, bias=peak
        )
        share = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.reciprocal(dst=share, data=total)

        mixed = nl.ndarray((P, d), dtype=nl.float32, buffer=nl.psum)
        for s in nl.affine_range(tiles):
            flipped = nl.ndarray((P, P), dtype=weights.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=flipped, data=weights[:, nl.ds(s * P, P)])
            turned = nl.ndarray((P, P), dtype=weights.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=turned, src=flipped)
            nisa.nc_matmul(dst=mixed, stationary=turned, moving=v_tile[:, s, :])
        result = nl.ndarray((P, d), dtype=out.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=result, data=mixed, op0=nl.multiply, operand0=share)
        nisa.dma_copy(dst=out[nl.ds(t * P, P), :], src=result)
    return out


def reference_attention(q, k, v):
    """The same in NumPy, float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ k.T / math.sqrt(q.shape[1])
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True) @ v


def inputs(size=1024, tokens=1024, head=128, seed=0):
    """Random bfloat16 operands of both kernels."""
    rng = np.random.default_rng(seed)

    def array(*shape):
        return rng.normal(size=shape).astype(ml_dtypes.bfloat16)

    return (array(size, size), array(size, size)), tuple(array(tokens, head) for _ in range(3))


def relative_error(found, wanted):
    """Largest error relative to the largest wanted value."""
    return float(np.abs(found.astype(np.float64) - wanted).max() / np.abs(wanted).max())


def main():
    """Run both kernels and compare them with NumPy."""
    (lhsT, rhs), (q, k, v) = inputs()
    product = nki.simulate(matmul)(lhsT, rhs)
    wanted = lhsT.astype(np.float64).T @ rhs.astype(np.float64)
    print(f"matmul     {relative_error(product, wanted):.1e} of the largest value")
    mixed = nki.simulate(attention)(q, k, v)
    wanted = reference_attention(q, k, v)
    print(f"attention  {relative_error(mixed, wanted):.1e} of the largest value")
    print("(one step of bfloat16 is 3.9e-03)")


if __name__ == "__main__":
    main()
