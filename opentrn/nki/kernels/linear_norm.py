"""A matrix product whose rows are normalised before they leave the chip."""

from opentrn.base import LimitError, declare
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.nki.jit import jit
from opentrn.nki.kernels.matmul import Ending, operand_dtype, product
from opentrn.nki.kernels.norms import Factors, column, moments_of, normalised
from opentrn.nki.kernels.tiles import Sheet, sheet

declare(
    "kernels.norm_row",
    "The rows of a product are too long to be normalised on the chip.",
    rule="a row of the result is one tile: its weights lie in SBUF together",
    fix="use kernels.linear, then kernels.layer_norm",
)


class Finished:
    """Rows of a result that lie in SBUF, as `norms.Rows` gives those of a tensor in HBM."""

    def __init__(self, tile):
        self.held, self.pieces = tile, [(0, tile.shape[1])]

    def tile(self, rows: tuple[int, int], columns: tuple[int, int]):
        """All of them."""
        return self.held


class NormalisingSheet:
    """A sheet that normalises rows (float32, whole) on their way into it."""

    dtype = nl.float32

    def __init__(self, target: Sheet, weight, bias, epsilon: float):
        self.target, self.rows = target, target.rows
        lanes = min(target.rows, nl.tile_size.pmax)
        self.factors, self.small = Factors(weight, bias, lanes), column(lanes, epsilon)

    def store(self, tile, row: int, first: int = 0) -> None:
        """Normalise a tile [P, F] and write it to this row on.  LimitError for parts of rows."""
        height, width = tile.shape
        if width != self.target.columns:
            raise LimitError(
                f"rows of {self.target.columns} come in parts of {width}", code="kernels.norm_row"
            )
        moments = moments_of(Finished(tile), (0, height))
        scale = nl.ndarray((height, 1), nl.float32, nl.sbuf)
        nisa.activation(scale, nl.rsqrt, moments[:, 1:2], bias=self.small[0:height, :])
        done = nl.ndarray(tile.shape, self.target.dtype, nl.sbuf)
        rows = self.factors.rows(height, (0, width))
        normalised(done, tile, moments[:, 0:1], scale, *rows)
        self.target.store(done, row)


@jit
def linear_norm(x, w, bias, residual, weight, shift, activation=None, epsilon=1e-5):
    """layer_norm(act(x · w + bias) + residual) · weight + shift over the last axis.

    Operands as in `linear` and `layer_norm`; bias, residual, weight and shift may be None.  The
    sum is not rounded before it is normalised.  Raises LimitError for rows whose weights do not
    lie in SBUF together.
    """
    out = nl.ndarray((*x.shape[:-1], w.shape[1]), x.dtype, nl.shared_hbm)
    ending = Ending(out, bias, residual, activation)
    ending.out = NormalisingSheet(sheet(out), weight, shift, epsilon)
    product(sheet(x), sheet(w), operand_dtype(x, w), ending)
    return out
