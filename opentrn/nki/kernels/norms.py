"""Normalisations over the last axis, with a residual added on the way in: layer_norm and more."""

from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.nki.jit import jit
from opentrn.nki.kernels.tiles import row_of, sheet, spans


def _column(rows: int, value: float):
    """One float32 number on every partition: [rows, 1]."""
    tile = nl.ndarray((rows, 1), nl.float32, nl.sbuf)
    nisa.memset(tile, value)
    return tile


def _input(x, residual, rows: tuple[int, int]):
    """These rows of x (+ residual) as an SBUF tile; the sum is kept in float32."""
    tile = x.tile(rows)
    if residual is None:
        return tile
    total = nl.ndarray(tile.shape, nl.float32, nl.sbuf)
    nisa.tensor_tensor(total, tile, residual.tile(rows), nl.add)
    return total


def _moments(tile):
    """Mean and population variance of each row, a float32 tile [P, 2]."""
    height, width = tile.shape
    parts = list(spans(width, nl.tile_size.bn_stats_fmax))
    stats = nl.ndarray((height, 6 * len(parts)), nl.float32, nl.sbuf)
    for n, (first, last) in enumerate(parts):
        nisa.bn_stats(stats[:, 6 * n : 6 * n + 6], tile[:, first:last])
    found = nl.ndarray((height, 2), nl.float32, nl.sbuf)
    nisa.bn_aggr(found, stats)
    return found


def _scaled_and_shifted(dst, value, weight, bias) -> None:
    """dst = value · weight + bias with rows weight and bias [P, D] or None."""
    height = value.shape[0]
    for row, op, last in ((weight, nl.multiply, bias is None), (bias, nl.add, True)):
        if row is None:
            continue
        target = dst if last else nl.ndarray(value.shape, nl.float32, nl.sbuf)
        nisa.tensor_tensor(target, value, row[0:height, :], op)
        value = target


@jit
def layer_norm(x, weight=None, bias=None, epsilon=1e-5, residual=None):
    """(x - mean) / √(variance + epsilon) · weight + bias over the last axis of x (+ residual)."""
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    given, result = sheet(x), sheet(out)
    added = None if residual is None else sheet(residual)
    lanes = min(given.rows, nl.tile_size.pmax)
    weights = None if weight is None else row_of(weight, lanes)
    biases = None if bias is None else row_of(bias, lanes)
    small = _column(lanes, epsilon)
    for rows in spans(given.rows, nl.tile_size.pmax):
        tile = _input(given, added, rows)
        height = tile.shape[0]
        moments = _moments(tile)
        scale = nl.ndarray((height, 1), nl.float32, nl.sbuf)
        nisa.activation(scale, nl.rsqrt, moments[:, 1:2], bias=small[0:height, :])
        done = nl.ndarray(tile.shape, x.dtype, nl.sbuf)
        plain = weight is None and bias is None
        value = done if plain else nl.ndarray(tile.shape, nl.float32, nl.sbuf)
        nisa.tensor_scalar(
            value,
            tile,
            nl.subtract,
            moments[:, 0:1],
            op1=nl.multiply,
            operand1=scale,
        )
        _scaled_and_shifted(done, value, weights, biases)
        result.store(done, rows[0])
    return out
