"""Matrix products of any size: `linear` with its bias, activation and residual, and `matmul`.

The rows of x are the stationary operand (transposed on the way in), the columns of w the moving
one, so that results leave PSUM with output rows on partitions.  Weights stay in SBUF while all rows
of x pass by them when a block of columns fits; a contraction too long for that is streamed through
SBUF for a few PSUM banks at a time.
"""

from dataclasses import dataclass
from itertools import chain

from opentrn.base import dtype as as_dtype
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.nki.jit import jit
from opentrn.nki.kernels.movement import places
from opentrn.nki.kernels.tiles import (
    Balance,
    Sheet,
    ahead,
    cover,
    row_of,
    sheet,
    spans,
    transposed,
)


@dataclass(frozen=True)
class Tiling:
    """How a product is cut.

    `banks` of PSUM are filled by one row tile before the next: their sums are evacuated while the
    next ones fill.  `first` row tiles share the first pass over the weights, which goes at the
    speed they arrive with.  `columns` of the output are worked on together, so that output, bias
    and residual rows leave room in SBUF.  `rows` row tiles are turned once and kept while all
    columns of weights that do not fit pass by: four times the 512 columns that one bank of weights
    is worked on take longer than that bank takes to arrive.
    """

    banks: int = 2
    first: int = 2
    columns: int = 4096
    rows: int = 4


ACTIVATIONS = {
    "gelu": nl.gelu,
    "gelu_tanh": nl.gelu_apprx_tanh,
    "silu": nl.silu,
    "relu": nl.relu,
    "tanh": nl.tanh,
    "sigmoid": nl.sigmoid,
}
# The rows of which the weights pass by once, by default (`Tiling.rows` tiles of 128).
KEPT_ROWS = 4 * 128
# Row tiles that count as few: a bias enters their sums on the Tensor Engine.
FEW_TILES = 2
# Tiles of rows on their way while others are turned.
LOADED_EARLY = 3
# The generation of NeuronCores from which on the DMA transposes (before, it is the Tensor Engine).
DMA_TURNS = 3
# Row tiles whose sums stay open in PSUM while a long contraction streams by: half of the 8 banks.
OPEN_TILES = 4


def operand_dtype(x, w):
    """The dtype both operands are multiplied in: float32 when one of them is, else that of x."""
    return nl.float32 if nl.float32 in (x.dtype, w.dtype) else x.dtype


class Ending:
    """What happens to a finished sum on its way from PSUM to HBM: act(sum + bias) + residual.

    For few rows the bias enters the sums as one more term on the Tensor Engine.  For many it is
    held as a row on every partition and added by the Vector Engine, which is then less work.
    """

    def __init__(self, out, bias=None, residual=None, activation=None):
        self.out, self.bias = sheet(out), bias
        self.residual = None if residual is None else sheet(residual)
        self.activation = None if activation is None else ACTIVATIONS[activation]
        self.balance, self.bias_row, self.ones = Balance(), None, None
        lanes = nl.tile_size.pmax
        if bias is not None and self.out.rows <= FEW_TILES * lanes:
            self.ones = nl.full((1, min(self.out.rows, lanes)), 1.0, bias.dtype)

    def begin(self, columns: tuple[int, int]) -> None:
        """Prepare for results of these output columns."""
        if self.bias is not None:
            lanes = 1 if self.ones is not None else min(self.out.rows, nl.tile_size.pmax)
            self.bias_row = row_of(self.bias[columns[0] : columns[1]], lanes)

    def start(self, total, at: int) -> bool:
        """Begin the sums of columns `at` and on with the bias; whether that was done."""
        if self.ones is None:
            return False
        height, width = total.shape
        terms = self.bias_row[:, at : at + width]
        nisa.nc_matmul(
            total, self.ones[:, 0:height], terms, is_stationary_onezero=True, accumulate=False
        )
        return True

    def open(self, rows: tuple[int, int], columns: tuple[int, int]):
        """The output tile of these rows and columns, and the residual to add to it."""
        shape = (rows[1] - rows[0], columns[1] - columns[0])
        added = None if self.residual is None else self.residual.tile(rows, columns)
        return nl.ndarray(shape, self.out.dtype, nl.sbuf), added

    def finish(self, tile, added, total, at: int) -> None:
        """Turn the sums in PSUM into columns `at` and on of the output tile."""
        height, width = total.shape
        part, value = tile[:, at : at + width], total
        biased = self.bias_row is not None and self.ones is None
        left = biased + (self.activation is not None) + (added is not None)
        if left == 0:
            self.balance.copy(part, total)
            return
        if biased:
            left -= 1
            value = self._add(part, value, self.bias_row[:height, at : at + width], left)
        if self.activation is not None:
            left -= 1
            target = part if left == 0 else nl.ndarray((height, width), nl.float32, nl.sbuf)
            nisa.activation(target, self.activation, value)
            self.balance.scalar += width
            value = target
        if added is not None:
            self._add(part, value, added[:, at : at + width], 0)

    def _add(self, part, value, other, left: int):
        """The sum of two tiles: the result itself, or a float32 tile when more is to come."""
        target = part if left == 0 else nl.ndarray(part.shape, nl.float32, nl.sbuf)
        nisa.tensor_tensor(target, value, other, nl.add)
        self.balance.vector += part.shape[1]
        return target


def turns_on_the_way(rows: int, depth: int, columns: int, dtype) -> bool:
    """Whether DMA turns weights [depth, columns] that lie transposed, for a product of `rows` rows.

    Where the weights pass by several times the Tensor Engine has more to do than the DMA, which
    turns 16-bit numbers at nearly the rate at which it moves them, in tiles of 128 by 16 (Trainium
    2 Architecture Guide for NKI).  Fewer rows wait for the DMA, and are turned by the engine.
    """
    even = depth % 128 == 0 and columns % 16 == 0
    return even and dtype.itemsize == 2 and rows >= KEPT_ROWS


class Weights:
    """Blocks of w [K, N] as the Tensor Engine takes them, the contraction on partitions.

    A w that lies transposed in memory is read along its memory and turned: by the DMA on its way
    when `rows` of x pass by that are enough for that, else by the Tensor Engine.
    """

    def __init__(self, w: Sheet, dtype, balance, rows: int = 0):
        self.w, self.dtype, self.balance = w, dtype, balance
        plain = len(w.row_shape) == len(w.column_shape) == 1 and w.dtype == dtype
        able = nisa.get_nc_version().value >= DMA_TURNS
        wanted = turns_on_the_way(rows, w.rows, w.columns, dtype)
        self.by_dma = w.is_turned and plain and able and wanted

    def load(self, depth: tuple[int, int], columns: tuple[int, int]):
        """Rows `depth` and these columns as a tile [≤128, K/128, N]."""
        w, dtype, pmax = self.w, self.dtype, nl.tile_size.pmax
        count, width = depth[1] - depth[0], columns[1] - columns[0]
        shape = (min(count, pmax), cover(count, pmax), width)
        cast = nl.ndarray(shape, dtype, nl.sbuf)
        if self.by_dma:
            block = w.turned().view[columns[0] : columns[1], depth[0] : depth[1]]
            nisa.dma_transpose(cast, block.reshape((width, count // pmax, pmax)))
            return cast
        if w.is_turned:
            rows = w.turned()
            for first, last in spans(width, pmax):
                tile = rows.tile((columns[0] + first, columns[0] + last), depth)
                transposed(tile, dtype, self.balance, 0, cast, first)
            return cast
        tile = cast if w.dtype == dtype else nl.ndarray(shape, w.dtype, nl.sbuf)
        for k, (first, last) in enumerate(spans(count, pmax)):
            w.load(tile[0 : last - first, k, :], depth[0] + first, columns[0])
            if cast is not tile:
                nisa.tensor_copy(cast[0 : last - first, k, :], tile[0 : last - first, k, :])
        return cast


def load_turned(x: Sheet, rows: tuple[int, int], depth: tuple[int, int], dtype, balance):
    """The transpose of these rows of x, [≤128, K/128, M] of `dtype`: read so, or turned."""
    if x.is_turned:
        return Weights(x.turned(), dtype, balance).load(depth, rows)
    return transposed(x.tile(rows, depth), dtype, balance)


def accumulate(totals, xts, weights, depth: int, begun: bool) -> None:
    """totals[r][n] (+)= xts[r]ᵀ · weights of bank n, summed over `depth` rows of w.

    The contraction is the outer loop: work begins with the first rows of w that arrive, and one
    stationary tile serves all banks.
    """
    bank = nl.tile_size.psum_bank_fmax
    for k, (first, last) in enumerate(spans(depth, nl.tile_size.pmax)):
        rows = last - first
        for xt, banks in zip(xts, totals, strict=True):
            for n, total in enumerate(banks):
                moving = weights[0:rows, k, n * bank : n * bank + total.shape[1]]
                nisa.nc_matmul(total, xt[0:rows, k, :], moving, accumulate=begun or k > 0)


def banks_for(rows: tuple[int, int], columns: tuple[int, int]) -> list:
    """PSUM tiles for the sums of these rows and columns, one for each bank."""
    parts = spans(columns[1] - columns[0], nl.tile_size.psum_bank_fmax)
    return [nl.ndarray((rows[1] - rows[0], b - a), nl.float32, nl.psum) for a, b in parts]


def product(x: Sheet, w: Sheet, dtype, ending: Ending, tiling: Tiling | None = None) -> None:
    """Compute x · w for all rows and columns and hand the sums to `ending`."""
    pmax, bank = nl.tile_size.pmax, nl.tile_size.psum_bank_fmax
    tiling, weights = tiling or Tiling(), Weights(w, dtype, ending.balance, x.rows)
    room = nl.tile_size.sbuf_fmax_bytes * 2 // 5
    deep = cover(x.columns, pmax) * dtype.itemsize
    # Two groups of turned row tiles live at a time, and the rows the next one is made of.
    rows, kept = (tiling.first + 2) * deep * min(pmax, x.rows), tiling.rows * pmax
    keeps = x.rows >= kept and deep * kept <= 2 * room
    if keeps and not x.is_turned and bank < w.columns and deep * w.columns > room:
        _rows_kept(x, weights, ending, room, tiling)
        return
    if deep * min(bank, w.columns) > room or rows > room:
        _streamed(x, weights, ending, room)
        return
    block = min(tiling.columns, room // deep // bank * bank or w.columns)
    tiles = list(spans(x.rows, pmax))
    groups = [tiles[: tiling.first], *([one] for one in tiles[tiling.first :])]

    def turned(group):
        whole = (0, x.columns)
        return [load_turned(x, rows, whole, dtype, ending.balance) for rows in group]

    for columns in spans(w.columns, block):
        feed = ahead(groups, turned)
        first = next(feed)  # written before the weights: the rows of x are the first to be needed
        ending.begin(columns)
        held = [
            ((a, b), weights.load((0, x.columns), (columns[0] + a, columns[0] + b)))
            for a, b in spans(columns[1] - columns[0], tiling.banks * bank)
        ]
        for group, xts in chain([first], feed):
            _rows_times_weights(group, xts, held, columns, x.columns, ending)


def _rows_kept(x: Sheet, weights: Weights, ending: Ending, room: int, tiling: Tiling) -> None:
    """Each group of rows of x is turned once; the weights pass by it, a bank of columns at a time.

    For weights that do not fit: turning x again for every block of columns would cost the Tensor
    Engine more than loading the weights again for every group of rows costs DMA.  The contraction
    is cut into parts, so that one part of the weights arrives while another is worked on, and each
    part of the next rows takes the place of the last ones when their last bank has passed by it.
    """
    pmax, bank, dtype = nl.tile_size.pmax, nl.tile_size.psum_bank_fmax, weights.dtype
    step = max(1, room // 4 // (bank * dtype.itemsize)) * pmax
    depths = list(spans(x.columns, step))
    groups = [[(a + c, a + d) for c, d in spans(b - a, pmax)]
              for a, b in spans(x.rows, tiling.rows * pmax)]  # fmt: skip
    banks = list(spans(weights.w.columns, bank))

    pieces = [(g, n, each) for g, group in enumerate(groups) for n in range(len(depths))
              for each in group]  # fmt: skip
    feed = ahead(pieces, lambda piece: x.tile(piece[2], depths[piece[1]]), LOADED_EARLY)

    def turned(g, n):
        if x.is_turned:
            return [load_turned(x, each, depths[n], dtype, ending.balance) for each in groups[g]]
        return [transposed(next(feed)[1], dtype, ending.balance) for _ in groups[g]]

    def loaded(place):
        _, columns, n = place
        return weights.load(depths[n], columns)

    places = [(g, c, n) for g in range(len(groups)) for c in banks for n in range(len(depths))]
    kept = [turned(0, n) for n in range(len(depths))]
    totals: list = []
    for (g, columns, n), block in ahead(places, loaded):
        if n == 0:
            ending.begin(columns)
            outputs = [ending.open(each, columns) for each in groups[g]]
            totals = [banks_for(each, columns) for each in groups[g]]
        _sum_up(totals, kept[n], block, depths[n][1] - depths[n][0], 0, ending, n == 0)
        if n == len(depths) - 1:
            _store_all(groups[g], totals, outputs, columns, ending)
        if columns is banks[-1] and g + 1 < len(groups):
            kept[n] = turned(g + 1, n)


def _store_all(rows, totals, outputs, columns, ending: Ending) -> None:
    """Finish and store the sums of row tiles in one bank of columns."""
    for each, banks, (tile, added) in zip(rows, totals, outputs, strict=True):
        _finish(banks, tile, added, 0, ending)
        ending.out.store(tile, each[0], columns[0])


def _rows_times_weights(group, xts, held, columns, depth: int, ending: Ending) -> None:
    """Row tiles of x (transposed, `xts`) times the weights in SBUF, finished and stored."""
    outputs = [ending.open(rows, columns) for rows in group]
    for part, weights in held:
        totals = [banks_for(rows, part) for rows in group]
        _sum_up(totals, xts, weights, depth, part[0], ending)
        for banks, (tile, added) in zip(totals, outputs, strict=True):
            _finish(banks, tile, added, part[0], ending)
    for rows, (tile, _) in zip(group, outputs, strict=True):
        ending.out.store(tile, rows[0], columns[0])


def _sum_up(totals, xts, weights, depth: int, at: int, ending: Ending, first=True) -> None:
    begun = not first
    if first:
        for banks in totals:
            for n, total in enumerate(banks):
                begun = ending.start(total, at + n * nl.tile_size.psum_bank_fmax)
    accumulate(totals, xts, weights, depth, begun)


def _finish(banks, tile, added, at: int, ending: Ending) -> None:
    for n, total in enumerate(banks):
        ending.finish(tile, added, total, at + n * nl.tile_size.psum_bank_fmax)


def _streamed(x: Sheet, weights: Weights, ending: Ending, room: int) -> None:
    """The product when not even one bank of weight columns fits in SBUF: x and w both stream."""
    pmax, bank = nl.tile_size.pmax, nl.tile_size.psum_bank_fmax
    step = max(1, room // 4 // (bank * 4)) * pmax
    for columns in spans(weights.w.columns, bank):
        ending.begin(columns)
        for group in spans(x.rows, OPEN_TILES * pmax):
            parts = [(group[0] + a, group[0] + b) for a, b in spans(group[1] - group[0], pmax)]
            totals = [banks_for(rows, columns) for rows in parts]
            for depth in spans(x.columns, step):
                block = weights.load(depth, columns)
                xts = [load_turned(x, rows, depth, weights.dtype, ending.balance) for rows in parts]
                _sum_up(totals, xts, block, depth[1] - depth[0], 0, ending, depth[0] == 0)
            for rows, banks in zip(parts, totals, strict=True):
                tile, added = ending.open(rows, columns)
                _finish(banks, tile, added, 0, ending)
                ending.out.store(tile, rows[0], columns[0])


@jit
def linear(
    x, w, bias=None, residual=None, activation=None, out_dtype=None, out=None, tiling=None
):
    """act(x · w + bias) + residual, for x [..., K], w [K, N], bias [N], residual [..., N].

    `activation` is None, "gelu", "gelu_tanh", "silu", "relu", "tanh" or "sigmoid".  Products sum
    in float32; the result is rounded once, to `out_dtype` (by default that of x), and written to
    `out` where that is given.  `tiling` (a `Tiling`) says how the product is cut.
    """
    if out is None:
        kind = as_dtype(out_dtype or x.dtype)
        out = nl.ndarray((*x.shape[:-1], w.shape[1]), kind, nl.shared_hbm)
    ending = Ending(out, bias, residual, activation)
    product(sheet(x), sheet(w), operand_dtype(x, w), ending, tiling)
    return out


@jit
def matmul(x, y, out_dtype=None):
    """x · y for x [..., M, K] and y [..., K, N] of equal leading dimensions, or y [K, N]."""
    kind = as_dtype(out_dtype or x.dtype)
    if y.ndim == 2:
        return linear(x, y, out_dtype=kind)
    out = nl.ndarray((*x.shape[:-1], y.shape[-1]), kind, nl.shared_hbm)
    dtype = operand_dtype(x, y)
    for place in places(x.shape[:-2]):
        product(sheet(x[place]), sheet(y[place]), dtype, Ending(out[place]))
    return out
