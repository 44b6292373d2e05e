"""Softmax attention for heads of up to 128 elements, with masks, causality and grouped queries.

For a tile of 128 queries the scores of all keys stay on chip.  Keys and queries enter the Tensor
Engine with the head dimension on partitions (transposed there), probabilities are transposed block
by block for the product with the values, and the sum of each row divides while results leave PSUM.
"""

from math import sqrt

from opentrn.base import LimitError, declare
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.nki.jit import jit
from opentrn.nki.kernels.matmul import operand_dtype
from opentrn.nki.kernels.tiles import Balance, cover, sheet, spans, transposed

declare(
    "kernels.attention_head",
    "The heads of an attention are too wide for the kernel.",
    rule="the head dimension lies on the partitions of the Tensor Engine: at most 128",
    fix="use kernels.matmul and kernels.softmax for wider heads",
)

# What a boolean mask adds to a score it hides, and the lowest value a row's maximum may take: in a
# row that hides everything all scores lie so far below it that their exponentials are exactly 0.
HIDDEN = -3e38
LOWEST = {"bool": -1e38, "float": -3.4028234663852886e38}
# Any visible score makes the sum at least 1, so this only keeps 0 / 0 away from rows without one.
LEAST_SUM = 1e-30
# Bytes of a partition for the keys and values of the heads that are held together.
HELD_BYTES = 48 << 10


def _rows_of_heads(x, batch: int, heads: tuple[int, int]):
    """Some heads of one batch of [B, H, T, D] as a sheet of rows t and columns (h, d)."""
    return sheet(x[batch, heads[0] : heads[1]].permute((1, 0, 2)), columns=2)


class Mask:
    """What is added to scores: tiles of a mask [B|1, H|1, T|1, S], loaded once where shared."""

    def __init__(self, mask):
        self.mask, self.key, self.tile = mask, None, None
        self.kind = "float" if mask.dtype.is_float else "bool"

    def rows(self, batch: int, head: int, rows: tuple[int, int], keys: int):
        """The tile [T, S] to add to the scores of these queries and the first `keys` keys."""
        sizes = self.mask.shape
        batch, head = min(batch, sizes[0] - 1), min(head, sizes[1] - 1)
        shared = sizes[2] == 1
        key = (batch, head, None if shared else rows, keys, rows[1] - rows[0])
        if key != self.key:
            part = self.mask[batch, head]
            if shared:
                part = part.broadcast(0, rows[1] - rows[0])
                rows = (0, rows[1] - rows[0])
            self.tile, self.key = self._additive(sheet(part).tile(rows, (0, keys))), key
        return self.tile

    def _additive(self, tile):
        """Booleans become 0 (visible) and HIDDEN; numbers are added as they are."""
        if self.kind == "float":
            return tile
        made = nl.ndarray(tile.shape, nl.float32, nl.sbuf)
        nisa.tensor_scalar(made, tile, nl.equal, 0.0, op1=nl.multiply, operand1=HIDDEN)
        return made


class Scores:
    """How raw products become probabilities: scale, mask, causality, softmax without division."""

    def __init__(self, scale: float, mask, causal: bool, dtype, balance: Balance):
        self.scale, self.causal, self.dtype, self.balance = scale, causal, dtype, balance
        self.mask = None if mask is None else Mask(mask)
        # A maximum commutes with a positive factor only; then exp takes the factor along.
        self.late_scale = self.mask is None and scale > 0

    def keys_for(self, rows: tuple[int, int], keys: int) -> int:
        """How many keys the queries `rows` may see: later ones are skipped altogether."""
        return min(keys, rows[1]) if self.causal else keys

    def of(self, q, k, place: tuple[int, int], rows: tuple[int, int]):
        """(probabilities times their sum [T, S], one over that sum [T, 1]) for q [D,T], k [D,S]."""
        keys, bank = k.shape[1], nl.tile_size.psum_bank_fmax
        if self.late_scale and not self.causal and keys <= bank:
            raw = nl.ndarray((q.shape[1], keys), nl.float32, nl.psum)
            nisa.nc_matmul(raw, q, k)
            return self._softmax(raw)
        raw = nl.ndarray((q.shape[1], keys), nl.float32, nl.sbuf)
        added = None if self.mask is None else self.mask.rows(*place, rows, keys)
        for first, last in spans(keys, bank):
            total = nl.ndarray((q.shape[1], last - first), nl.float32, nl.psum)
            nisa.nc_matmul(total, q, k[:, first:last])
            self._take(raw[:, first:last], total, added, first, last)
        if self.causal and rows[0] < keys:
            self._hide_later(raw[:, rows[0] : keys])
        return self._softmax(raw)

    def _take(self, dst, total, added, first: int, last: int) -> None:
        if added is not None:
            part = added[:, first:last]
            nisa.scalar_tensor_tensor(dst, total, nl.multiply, self.scale, nl.add, part)
            self.balance.vector += last - first
        elif self.late_scale:
            self.balance.copy(dst, total)
        else:
            nisa.tensor_scalar(dst, total, nl.multiply, self.scale)
            self.balance.vector += last - first

    def _hide_later(self, part) -> None:
        """Hide key s from query t < s, where both count from the first query of the tile."""
        nisa.affine_select(
            part,
            pattern=[[-1, part.shape[1]]],
            channel_multiplier=1,
            on_true_tile=part,
            on_false_value=float("-inf"),
            cmp_op=nl.greater_equal,
        )

    def _softmax(self, raw):
        height, keys = raw.shape
        factor = self.scale if self.late_scale else 1.0
        peak = nl.ndarray((height, 1), nl.float32, nl.sbuf)
        nisa.tensor_reduce(peak, nl.maximum, raw, axis=1, negate=True)
        if self.mask is not None:
            nisa.tensor_scalar(peak, peak, nl.minimum, -LOWEST[self.mask.kind])
        elif factor != 1.0:
            nisa.tensor_scalar(peak, peak, nl.multiply, factor)
        grown = nl.ndarray((height, keys), self.dtype, nl.sbuf)
        total = nl.ndarray((height, 1), nl.float32, nl.sbuf)
        nisa.activation_reduce(grown, nl.exp, raw, nl.add, total, bias=peak, scale=factor)
        if self.mask is not None:
            nisa.tensor_scalar(total, total, nl.maximum, LEAST_SUM)
        share = nl.ndarray((height, 1), nl.float32, nl.sbuf)
        nisa.reciprocal(share, total)
        self.balance.vector += keys
        self.balance.scalar += keys
        return grown, share


class Held:
    """Keys [D, n, S] and values [≤128, S/128, n·D] of n heads of one batch, in SBUF."""

    def __init__(self, k, v, batch: int, heads: tuple[int, int], dtypes, balance: Balance):
        pmax, (count, width) = nl.tile_size.pmax, k.shape[2:]
        self.width, self.keys, self.first = width, count, heads[0]
        key_rows, value_rows = _rows_of_heads(k, batch, heads), _rows_of_heads(v, batch, heads)
        n = heads[1] - heads[0]
        self.k = nl.ndarray((width, n, count), dtypes[0], nl.sbuf)
        shape = (min(count, pmax), cover(count, pmax), value_rows.columns)
        self.v = nl.ndarray(shape, v.dtype, nl.sbuf)
        for block, rows in enumerate(spans(count, pmax)):
            tile = key_rows.tile(rows)
            transposed(tile, dtypes[0], balance, width, self.k, rows[0])
            value_rows.load(self.v[0 : rows[1] - rows[0], block, :], rows[0])

    def head_keys(self, head: int, keys: int):
        """The first `keys` keys of a head, [D, S]."""
        return self.k[:, head - self.first, 0:keys]

    def weighted(self, grown, head: int, balance: Balance):
        """Σ over keys of grown [T, S] times the values of a head: PSUM [T, D]."""
        height, keys = grown.shape
        start = (head - self.first) * self.width
        turned = transposed(grown, grown.dtype, balance)
        total = nl.ndarray((height, self.width), nl.float32, nl.psum)
        for block, (first, last) in enumerate(spans(keys, nl.tile_size.pmax)):
            values = self.v[0 : last - first, block, start : start + self.width]
            nisa.nc_matmul(
                total, turned[0 : last - first, block, :], values, accumulate=block > 0
            )
        return total


@jit
def attention(q, k, v, mask=None, scale=None, causal=False):
    """softmax(q · kᵀ · scale + mask) · v for q [B, H, T, D], k and v [B, Hk, S, D], D ≤ 128.

    Hk divides H: each key head serves H / Hk query heads in a row.  `mask` [B|1, H|1, T|1, S] is
    added to the scores if it is float, otherwise hides keys where it is 0; `causal` lets query t
    see keys 0 … t.  A query that sees no key gives 0.  `scale` is 1/√D by default.  The result is
    [B, H, T, D], laid out in memory as [B, T, H, D].
    """
    batches, heads, queries, width = q.shape
    if width > nl.tile_size.pmax:
        raise LimitError(f"attention: heads of {width} elements", code="kernels.attention_head")
    share, keys = heads // k.shape[1], k.shape[2]
    out = nl.ndarray((batches, queries, heads, width), q.dtype, nl.shared_hbm)
    balance, dtypes = Balance(), (operand_dtype(q, k), v.dtype)
    scores = Scores(1 / sqrt(width) if scale is None else scale, mask, causal, v.dtype, balance)
    bytes_per_head = keys * dtypes[0].itemsize
    bytes_per_head += cover(keys, nl.tile_size.pmax) * width * v.dtype.itemsize
    together = max(1, HELD_BYTES // bytes_per_head)
    for batch in range(batches):
        result = out[batch]
        for first, last in spans(k.shape[1], together):
            held = Held(k, v, batch, (first, last), dtypes, balance)
            ours = (first * share, last * share)
            given = _rows_of_heads(q, batch, ours)
            target = sheet(result[:, ours[0] : ours[1]], columns=2)
            for rows in spans(queries, nl.tile_size.pmax):
                tile = given.tile(rows)
                turned = transposed(tile, dtypes[0], balance, width)
                done = nl.ndarray(tile.shape, q.dtype, nl.sbuf)
                for head in range(*ours):
                    n = head - ours[0]
                    seen = held.head_keys(head // share, scores.keys_for(rows, keys))
                    grown, over = scores.of(turned[:, n, :], seen, (batch, head), rows)
                    total = held.weighted(grown, head // share, balance)
                    part = done[:, n * width : (n + 1) * width]
                    nisa.tensor_scalar(part, total, nl.multiply, over)
                target.store(done, rows[0])
    return out.permute((0, 2, 1, 3))
