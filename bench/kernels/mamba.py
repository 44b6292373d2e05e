"""The state-space layer of Mamba, as the NKI tutorial builds it up in three steps.

delta and u are [channels, length], A is [channels, states], B and C are [states, length]; for each
channel h[t] = exp(delta·A)·h[t-1] + delta·u·B and the result is the sum over states of h·C.

Rows of B and C are spread over the partitions by the Tensor Engine, and used where they land in
PSUM, as the page says and its figures of PSUM show.
"""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128


@nki.jit
def reloading(delta, u, A, B, C):
    """Load delta and u again for every state (v1)."""
    out = nl.ndarray(delta.shape, dtype=delta.dtype, buffer=nl.shared_hbm)
    ones = column(delta.dtype)
    for row in range(0, delta.shape[0], P):
        total = nl.zeros((P, delta.shape[1]), dtype=delta.dtype, buffer=nl.sbuf)
        for state in range(A.shape[1]):
            deltas, us = load(delta[row : row + P, :]), load(u[row : row + P, :])
            factors = load(A[row : row + P, state : state + 1])
            b, c = load(B[state : state + 1, :]), load(C[state : state + 1, :])
            add_state(total, deltas, scaled(deltas, us), factors, b, c, ones, 0.0)
        nisa.dma_copy(dst=out[row : row + P, :], src=total)
    return out


@nki.jit
def keeping(delta, u, A, B, C, piece=None):
    """Load delta and u once for each 128 channels (v2), in pieces of the length (v3).

    delta·u is computed once as well: between v1 and v2 the profiled time of a state fell by one
    such instruction, so the compiler moves it out of the loop where nothing is loaded again.
    """
    length = delta.shape[1]
    piece = piece or length
    out = nl.ndarray(delta.shape, dtype=delta.dtype, buffer=nl.shared_hbm)
    ones = column(delta.dtype)
    for row in range(0, delta.shape[0], P):
        total = nl.zeros((P, length), dtype=delta.dtype, buffer=nl.sbuf)
        deltas, us = load(delta[row : row + P, :]), load(u[row : row + P, :])
        inputs = scaled(deltas, us)
        for state in range(A.shape[1]):
            factors = load(A[row : row + P, state : state + 1])
            last = 0.0
            for start in range(0, length, piece):
                part = slice(start, start + piece)
                scanned = add_state(
                    total[:, part], deltas[:, part], inputs[:, part], factors,
                    load(B[state : state + 1, part]), load(C[state : state + 1, part]), ones, last,
                )  # fmt: skip
                if piece < length:
                    last = nl.ndarray((P, 1), dtype=delta.dtype, buffer=nl.sbuf)
                    nisa.tensor_copy(dst=last, src=scanned[:, piece - 1 : piece])
        nisa.dma_copy(dst=out[row : row + P, :], src=total)
    return out


@nki.jit
def spreading(delta, u, A, B, C):
    """As `keeping`, with rows of B and C spread over the partitions by the DMA that loads them."""
    out = nl.ndarray(delta.shape, dtype=delta.dtype, buffer=nl.shared_hbm)
    for row in range(0, delta.shape[0], P):
        total = nl.zeros((P, delta.shape[1]), dtype=delta.dtype, buffer=nl.sbuf)
        deltas, us = load(delta[row : row + P, :]), load(u[row : row + P, :])
        inputs = scaled(deltas, us)
        for state in range(A.shape[1]):
            factors = load(A[row : row + P, state : state + 1])
            b, c = [load(rows[state : state + 1, :].broadcast(0, P)) for rows in (B, C)]
            add_state(total, deltas, inputs, factors, b, c, None, 0.0)
        nisa.dma_copy(dst=out[row : row + P, :], src=total)
    return out


def scaled(deltas, us):
    """delta·u."""
    product = nl.ndarray(deltas.shape, dtype=deltas.dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=product, data1=deltas, data2=us, op=nl.multiply)
    return product


def add_state(total, deltas, inputs, factors, b, c, ones, last):
    """Add one state's share to `total`; `inputs` is delta·u; returns the scanned states."""
    shape = deltas.shape
    decay, driven, scanned, share = [
        nl.ndarray(shape, dtype=deltas.dtype, buffer=nl.sbuf) for _ in range(4)
    ]
    nisa.activation(dst=decay, op=nl.exp, data=deltas, scale=factors)
    nisa.tensor_tensor(dst=driven, data1=inputs, data2=spread(b, ones), op=nl.multiply)
    nisa.tensor_tensor_scan(
        dst=scanned, data0=decay, data1=driven, initial=last, op0=nl.multiply, op1=nl.add
    )
    nisa.tensor_tensor(dst=share, data1=scanned, data2=spread(c, ones), op=nl.multiply)
    nisa.tensor_tensor(dst=total, data1=total, data2=share, op=nl.add)
    return scanned


def column(dtype):
    """A column of ones, to spread rows with."""
    ones = nl.ndarray((1, P), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    return ones


def spread(row, ones):
    """A row [1, n] in all partitions of a PSUM tile: a product with a column of ones.

    Without a column, the row is in all partitions already.
    """
    if ones is None:
        return row
    tile = nl.ndarray((P, row.shape[1]), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=tile, stationary=ones, moving=row)
    return tile


def load(source):
    """A new SBUF tile with the contents of an HBM slice."""
    tile = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source)
    return tile
