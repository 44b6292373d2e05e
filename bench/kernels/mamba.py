"""The state-space layer of Mamba, as the NKI tutorial builds it up in three steps.

delta and u are [channels, length], A is [channels, states], B and C are [states, length]; for each
channel h[t] = exp(delta·A)·h[t-1] + delta·u·B and the result is the sum over states of h·C.
"""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128


@nki.jit
def reloading(delta, u, A, B, C):
    """Load delta and u again for every state (v1)."""
    out = nl.ndarray(delta.shape, dtype=delta.dtype, buffer=nl.shared_hbm)
    for row in range(0, delta.shape[0], P):
        total = nl.zeros((P, delta.shape[1]), dtype=delta.dtype, buffer=nl.sbuf)
        for state in range(A.shape[1]):
            deltas, us = load(delta[row : row + P, :]), load(u[row : row + P, :])
            factors = load(A[row : row + P, state : state + 1])
            b, c = load(B[state : state + 1, :]), load(C[state : state + 1, :])
            add_state(total, deltas, us, factors, b, c, 0.0)
        nisa.dma_copy(dst=out[row : row + P, :], src=total)
    return out


@nki.jit
def keeping(delta, u, A, B, C, piece=None):
    """Load delta and u once for each 128 channels (v2), in pieces of the length (v3)."""
    length = delta.shape[1]
    piece = piece or length
    out = nl.ndarray(delta.shape, dtype=delta.dtype, buffer=nl.shared_hbm)
    for row in range(0, delta.shape[0], P):
        total = nl.zeros((P, length), dtype=delta.dtype, buffer=nl.sbuf)
        deltas, us = load(delta[row : row + P, :]), load(u[row : row + P, :])
        for state in range(A.shape[1]):
            factors = load(A[row : row + P, state : state + 1])
            last = 0.0
            for start in range(0, length, piece):
                part = slice(start, start + piece)
                scanned = add_state(
                    total[:, part], deltas[:, part], us[:, part], factors,
                    load(B[state : state + 1, part]), load(C[state : state + 1, part]), last,
                )  # fmt: skip
                if piece < length:
                    last = nl.ndarray((P, 1), dtype=delta.dtype, buffer=nl.sbuf)
                    nisa.tensor_copy(dst=last, src=scanned[:, piece - 1 : piece])
        nisa.dma_copy(dst=out[row : row + P, :], src=total)
    return out


def add_state(total, deltas, us, factors, b, c, last):
    """Add one state's share to `total`; returns the scanned states."""
    shape = deltas.shape
    decay, scaled, driven, scanned, share = [
        nl.ndarray(shape, dtype=deltas.dtype, buffer=nl.sbuf) for _ in range(5)
    ]
    nisa.activation(dst=decay, op=nl.exp, data=deltas, scale=factors)
    nisa.tensor_tensor(dst=scaled, data1=deltas, data2=us, op=nl.multiply)
    nisa.tensor_tensor(dst=driven, data1=scaled, data2=nl.broadcast_to(b, shape), op=nl.multiply)
    nisa.tensor_tensor_scan(
        dst=scanned, data0=decay, data1=driven, initial=last, op0=nl.multiply, op1=nl.add
    )
    nisa.tensor_tensor(dst=share, data1=scanned, data2=nl.broadcast_to(c, shape), op=nl.multiply)
    nisa.tensor_tensor(dst=total, data1=total, data2=share, op=nl.add)
    return scanned


def load(source):
    """A new SBUF tile with the contents of an HBM slice."""
    tile = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source)
    return tile
