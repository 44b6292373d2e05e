"""Normalisations over the last axis: layer_norm and rms_norm with a residual, and softmax.

A row that fits in SBUF is loaded once and worked on as a whole.  A longer row is taken in pieces,
loaded again for each pass over it.
"""

from opentrn.base import UsageError, declare
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.nki.jit import jit
from opentrn.nki.kernels.tiles import ahead, row_of, sheet, spans

declare(
    "kernels.softmax_axis",
    "A softmax was asked for over an axis other than the last.",
    rule="kernels.softmax works along rows",
    fix="permute the view so that the axis comes last, and permute the result back",
)

# Elements of a row that are held at once: nine float32 tiles of them fit in a partition.
WHOLE_ROW = 4096
PIECE = 2048


class Rows:
    """Tiles of a tensor (+ residual) by rows and column pieces; short rows are loaded once."""

    def __init__(self, x, residual=None):
        self.x, self.residual = sheet(x), None if residual is None else sheet(residual)
        whole = self.x.columns <= WHOLE_ROW
        self.pieces = list(spans(self.x.columns, self.x.columns if whole else PIECE))
        self.kept: dict = {}

    def tile(self, rows: tuple[int, int], columns: tuple[int, int]):
        """These rows and columns as an SBUF tile; a sum with the residual is float32."""
        if (rows, columns) in self.kept:
            return self.kept[rows, columns]
        tile = self.x.tile(rows, columns)
        if self.residual is not None:
            total = nl.ndarray(tile.shape, nl.float32, nl.sbuf)
            nisa.tensor_tensor(total, tile, self.residual.tile(rows, columns), nl.add)
            tile = total
        if len(self.pieces) == 1:
            self.kept[rows, columns] = tile
        return tile

    def drop(self, rows: tuple[int, int]) -> None:
        """Forget the tile of these rows: nothing will ask for it again."""
        self.kept.pop((rows, self.pieces[0]), None)


class Factors:
    """Weight and bias rows on every partition, loaded once when a row is one piece."""

    def __init__(self, weight, bias, lanes: int):
        self.given, self.lanes, self.at, self.held = (weight, bias), lanes, None, ()

    def rows(self, height: int, columns: tuple[int, int]):
        """(weight, bias) tiles [height, F] of these columns; None for what is not given."""
        if self.at != columns:
            first, last = columns
            self.held = [
                None if x is None else row_of(x[first:last], self.lanes) for x in self.given
            ]
            self.at = columns
        return [None if tile is None else tile[0:height, :] for tile in self.held]


def column(rows: int, value: float):
    """One float32 number on every partition: [rows, 1]."""
    tile = nl.ndarray((rows, 1), nl.float32, nl.sbuf)
    nisa.memset(tile, value)
    return tile


def _floats(like, columns: int | None = None):
    shape = like.shape if columns is None else (like.shape[0], columns)
    return nl.ndarray(shape, nl.float32, nl.sbuf)


def moments_of(x: Rows, rows: tuple[int, int]):
    """Mean and population variance of each row, a float32 tile [P, 2]."""
    step = nl.tile_size.bn_stats_fmax
    count = sum(len(list(spans(last - first, step))) for first, last in x.pieces)
    stats = nl.ndarray((rows[1] - rows[0], 6 * count), nl.float32, nl.sbuf)
    n = 0
    for piece in x.pieces:
        tile = x.tile(rows, piece)
        for first, last in spans(piece[1] - piece[0], step):
            nisa.bn_stats(stats[:, 6 * n : 6 * n + 6], tile[:, first:last])
            n += 1
    found = _floats(stats, 2)
    nisa.bn_aggr(found, stats)
    return found


def _beside_vector() -> bool:
    """Whether GpSimd may work in SBUF while the Vector Engine does: not before NeuronCore-v3.

    Source: Trainium2 architecture guide, data movement updates (NG3:268).
    """
    return nisa.get_nc_version() >= nisa.nc_version.gen3


def normalised(dst, tile, mean, scale, weight, bias) -> None:
    """dst = (tile - mean) · scale · weight + bias, with rows weight and bias, or None.

    With both, the Vector Engine (which also made the statistics) does the first part; the Scalar
    Engine and GpSimd the rest where they can.
    """
    if weight is None:
        value = dst if bias is None else _floats(dst)
        nisa.tensor_scalar(value, tile, nl.subtract, mean, op1=nl.multiply, operand1=scale)
        if bias is not None:
            nisa.tensor_tensor(dst, value, bias, nl.add)
        return
    value = _floats(dst)
    nisa.scalar_tensor_tensor(value, tile, nl.subtract, mean, nl.multiply, weight)
    if bias is None:
        nisa.activation(dst, nl.copy, value, scale=scale)
    elif _beside_vector():
        nisa.activation(value, nl.copy, value, scale=scale)
        nisa.tensor_tensor(dst, value, bias, nl.add, engine=nisa.gpsimd_engine)
    else:
        nisa.scalar_tensor_tensor(dst, value, nl.multiply, scale, nl.add, bias)


def _scaled(dst, tile, scale, weight, beside: bool) -> None:
    """dst = tile · scale · weight (a row, or None); `beside` leaves the Vector Engine alone."""
    if weight is None:
        nisa.activation(dst, nl.copy, tile, scale=scale)
    elif beside:
        value = _floats(dst)
        nisa.activation(value, nl.copy, tile, scale=scale)
        nisa.tensor_tensor(dst, value, weight, nl.multiply, engine=nisa.gpsimd_engine)
    else:
        nisa.scalar_tensor_tensor(dst, tile, nl.multiply, scale, nl.multiply, weight)


@jit
def layer_norm(x, weight=None, bias=None, epsilon=1e-5, residual=None):
    """(x - mean) / √(variance + epsilon) · weight + bias over the last axis of x (+ residual)."""
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    given, result = Rows(x, residual), sheet(out)
    lanes = min(result.rows, nl.tile_size.pmax)
    factors, small = Factors(weight, bias, lanes), column(lanes, epsilon)

    def begin(rows):
        moments = moments_of(given, rows)
        scale = _floats(moments, 1)
        nisa.activation(scale, nl.rsqrt, moments[:, 1:2], bias=small[0 : rows[1] - rows[0], :])
        return moments, scale

    for rows, (moments, scale) in ahead(spans(result.rows, nl.tile_size.pmax), begin):
        height = rows[1] - rows[0]
        for piece in given.pieces:
            tile = given.tile(rows, piece)
            done = nl.ndarray(tile.shape, x.dtype, nl.sbuf)
            normalised(done, tile, moments[:, 0:1], scale, *factors.rows(height, piece))
            result.store(done, rows[0], piece[0])
        given.drop(rows)
    return out


@jit
def rms_norm(x, weight=None, epsilon=1e-6, residual=None):
    """x / √(mean of x² + epsilon) · weight over the last axis of x (+ residual)."""
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    given, result = Rows(x, residual), sheet(out)
    lanes = min(result.rows, nl.tile_size.pmax)
    factors, small = Factors(weight, None, lanes), column(lanes, epsilon)
    beside = False

    def begin(rows):
        squares = _total(given, rows, nl.square)
        scale, few = _floats(squares), small[0 : rows[1] - rows[0], :]
        nisa.activation(scale, nl.rsqrt, squares, bias=few, scale=1.0 / x.shape[-1])
        return scale

    for rows, scale in ahead(spans(result.rows, nl.tile_size.pmax), begin):
        height = rows[1] - rows[0]
        for piece in given.pieces:
            tile = given.tile(rows, piece)
            done = nl.ndarray(tile.shape, x.dtype, nl.sbuf)
            _scaled(done, tile, scale, factors.rows(height, piece)[0], beside)
            beside = _beside_vector() and not beside
            result.store(done, rows[0], piece[0])
        given.drop(rows)
    return out


def _total(x: Rows, rows: tuple[int, int], function, bias=None):
    """Σ function(x + bias) of each row, [P, 1]; the values themselves are dropped."""
    total = None
    for piece in x.pieces:
        tile = x.tile(rows, piece)
        part = _floats(tile, 1)
        nisa.activation_reduce(_floats(tile), function, tile, nl.add, part, bias=bias)
        total = part if total is None else nl.add(total, part)
    return total


def _lowest_negated(x: Rows, rows: tuple[int, int]):
    """Minus the maximum of each row, [P, 1]."""
    lowest = None
    for piece in x.pieces:
        part = nl.ndarray((rows[1] - rows[0], 1), nl.float32, nl.sbuf)
        nisa.tensor_reduce(part, nl.maximum, x.tile(rows, piece), axis=1, negate=True)
        lowest = part if lowest is None else nl.minimum(lowest, part)
    return lowest


@jit
def softmax(x, axis=-1):
    """exp(x - max) / Σ exp(x - max) over the last axis; UsageError for any other `axis`."""
    if axis % x.ndim != x.ndim - 1:
        raise UsageError(f"softmax over axis {axis} of {x.ndim}", code="kernels.softmax_axis")
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    given, result = Rows(x), sheet(out)
    tiles = spans(result.rows, nl.tile_size.pmax)
    for rows, lowest in ahead(tiles, lambda rows: _lowest_negated(given, rows)):
        if len(given.pieces) == 1:
            tile = given.tile(rows, given.pieces[0])
            grown, total = _floats(tile), _floats(lowest)
            nisa.activation_reduce(grown, nl.exp, tile, nl.add, total, bias=lowest)
        else:
            grown, total = None, _total(given, rows, nl.exp, lowest)
        share = nl.reciprocal(total)
        for piece in given.pieces:
            tile = grown
            if tile is None:
                source = given.tile(rows, piece)
                tile = _floats(source)
                nisa.activation(tile, nl.exp, source, bias=lowest)
            done = nl.ndarray(tile.shape, x.dtype, nl.sbuf)
            nisa.tensor_scalar(done, tile, nl.multiply, share)
            result.store(done, rows[0], piece[0])
        given.drop(rows)
    return out
