"""Softmax and RMSNorm over rows, one tile of 128 rows at a time, as tutorials write them."""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128


@nki.jit
def softmax(x):
    """exp(x - max) / Σ exp(x - max) along each row of x [rows, columns]."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    columns = x.shape[1]
    for row in nl.affine_range(x.shape[0] // P):
        rows = nl.ds(row * P, P)
        tile = nl.ndarray((P, columns), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[rows, :])
        peak, total, share = [nl.ndarray((P, 1), nl.float32, nl.sbuf) for _ in range(3)]
        nisa.tensor_reduce(dst=peak, op=nl.maximum, data=tile, axis=1, negate=True, keepdims=True)
        powers = nl.ndarray((P, columns), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(
            dst=powers, op=nl.exp, data=tile, reduce_op=nl.add, reduce_res=total, bias=peak
        )
        nisa.reciprocal(dst=share, data=total)
        result = nl.ndarray((P, columns), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=result, data=powers, op0=nl.multiply, operand0=share)
        nisa.dma_copy(dst=out[rows, :], src=result)
    return out


@nki.jit
def rmsnorm(x, gain):
    """x / √(mean x² + 1e-6) · gain for each row of x [rows, columns]; gain is [1, columns]."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    columns = x.shape[1]
    gains = nl.ndarray((P, columns), dtype=gain.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=gains, src=gain.broadcast(0, P))
    small = nl.ndarray((P, 1), nl.float32, nl.sbuf)
    nisa.memset(dst=small, value=1e-6)
    for row in nl.affine_range(x.shape[0] // P):
        rows = nl.ds(row * P, P)
        tile = nl.ndarray((P, columns), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[rows, :])
        squares = nl.ndarray((P, columns), dtype=nl.float32, buffer=nl.sbuf)
        total, scale = [nl.ndarray((P, 1), nl.float32, nl.sbuf) for _ in range(2)]
        nisa.activation_reduce(
            dst=squares, op=nl.square, data=tile, reduce_op=nl.add, reduce_res=total
        )
        nisa.activation(dst=scale, op=nl.rsqrt, data=total, scale=1 / columns, bias=small)
        result = nl.ndarray((P, columns), dtype=x.dtype, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            dst=result, data=tile, op0=nl.multiply, operand0=scale, op1=nl.multiply, operand1=gains
        )
        nisa.dma_copy(dst=out[rows, :], src=result)
    return out
