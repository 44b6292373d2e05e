"""Softmax attention for heads of up to 128 elements, with masks, causality and grouped queries.

For a tile of 128 queries the scores of all keys stay on chip, in PSUM when they fit two banks.
Keys and queries enter the Tensor Engine with the head dimension on partitions (transposed there);
what a boolean mask or causality hides is added there too, as a product with the identity.
Probabilities are transposed block by block for the product with the values, and the sum of each
row divides while results leave PSUM.  Heads with few keys are worked on several at a time.
"""

from math import sqrt

from opentrn.base import LimitError, declare
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.nki.jit import jit
from opentrn.nki.kernels.matmul import operand_dtype
from opentrn.nki.kernels.tiles import Balance, ahead, cover, sheet, spans, transposed

declare(
    "kernels.attention_head",
    "The heads of an attention are too wide for the kernel.",
    rule="the head dimension lies on the partitions of the Tensor Engine: at most 128",
    fix="use kernels.matmul and kernels.softmax for wider heads",
)

# What is added to a score to hide it, and the lowest value the maximum of a row may take: where a
# row hides everything all scores lie so far below it that their exponentials are exactly 0.
HIDDEN = -3e38
LOWEST = {"bool": -1e38, "float": -3.4028234663852886e38}
# Any visible score makes the sum at least 1, so this only keeps 0 / 0 away from rows without one.
LEAST_SUM = 1e-30
# Bytes of a partition for the keys and values of the heads that are held together.
HELD_BYTES = 48 << 10
# Scores of a tile of queries that stay in PSUM: two of eight banks, for two tiles at a time.
PSUM_SCORES = 1024
# Groups of heads whose scores are computed before the first of them is multiplied with values.
AHEAD = 1


def _rows_of_heads(x, batch: int, heads: tuple[int, int]):
    """Some heads of one batch of [B, H, T, D] as a sheet of rows t and columns (h, d)."""
    return sheet(x[batch, heads[0] : heads[1]].permute((1, 0, 2)), columns=2)


def hide_later(tile, value: float) -> None:
    """Write `value` where the column of a tile [T, S] lies after its row."""
    nisa.affine_select(
        tile,
        pattern=[[-1, tile.shape[1]]],
        channel_multiplier=1,
        on_true_tile=tile,
        on_false_value=value,
        cmp_op=nl.greater_equal,
    )


def later_keys():
    """[128, 128] bfloat16: HIDDEN where the column lies after the row, else 0."""
    size = nl.tile_size.pmax
    tile = nl.zeros((size, size), nl.bfloat16)
    hide_later(tile, HIDDEN)
    return tile


class Mask:
    """Tiles of a mask [B|1, H|1, T|1, S], loaded once where queries, heads or batches share one."""

    def __init__(self, mask):
        self.mask, self.key, self.tile = mask, None, None
        self.kind = "float" if mask.dtype.is_float else "bool"
        self.per_head = mask.shape[1] > 1

    def rows(self, batch: int, head: int, rows: tuple[int, int], keys: int):
        """The tile [T, S] to add to the scores of these queries and the first `keys` keys."""
        sizes = self.mask.shape
        batch, head = min(batch, sizes[0] - 1), min(head, sizes[1] - 1)
        shared, height = sizes[2] == 1, rows[1] - rows[0]
        key = (batch, head, None if shared else rows, keys, height)
        if key != self.key:
            part = self.mask[batch, head]
            if shared:
                part, rows = part.broadcast(0, height), (0, height)
            self.tile, self.key = self._additive(sheet(part).tile(rows, (0, keys))), key
        return self.tile

    def _additive(self, tile):
        """Booleans become 0 (visible) and HIDDEN, in bfloat16; numbers are added as they are."""
        if self.kind == "float":
            return tile
        made = nl.ndarray(tile.shape, nl.bfloat16, nl.sbuf)
        nisa.tensor_scalar(made, tile, nl.equal, 0.0, op1=nl.multiply, operand1=HIDDEN)
        return made


class Scores:
    """How products of queries and keys become probabilities, but for the division."""

    def __init__(self, scale: float, mask, causal: bool, dtype, balance: Balance):
        self.causal, self.dtype, self.balance = causal, dtype, balance
        self.mask = None if mask is None else Mask(mask)
        # A maximum commutes with a positive factor only: another sign goes to the queries.
        self.sign, self.scale = (scale > 0) - (scale < 0), abs(scale) or 1.0
        # Numbers of a mask are added to scaled scores; otherwise exp takes the factor along.
        self.numbers = mask is not None and self.mask.kind == "float"
        self.later = self.identity = None
        if not self.numbers and (causal or mask is not None):
            self.identity = nl.shared_identity_matrix(nl.tile_size.pmax, nl.bfloat16)
            self.later = later_keys() if causal else None

    def keys_for(self, rows: tuple[int, int], keys: int) -> int:
        """How many keys the queries `rows` may see: later ones are skipped altogether."""
        return min(keys, rows[1]) if self.causal else keys

    def together(self, keys: int, heads: int, width: int) -> int:
        """How many heads to work on at once: scores and results share a PSUM bank each."""
        even = keys <= nl.tile_size.pmax or keys % nl.tile_size.pmax == 0
        if not even or self.numbers or (self.mask is not None and self.mask.per_head):
            return 1
        return max(1, min(heads, nl.tile_size.psum_bank_fmax // max(keys, width)))

    def of(self, pairs: list, batch: int, head: int, rows: tuple[int, int]):
        """(unnormalised probabilities [T, G, S], one over their sums [T, G]) of G heads.

        `pairs` holds the queries [D, T] and keys [D, S] of each head, `head` is the first.
        """
        height, keys = rows[1] - rows[0], pairs[0][1].shape[1]
        added = None if self.mask is None else self.mask.rows(batch, head, rows, keys)
        in_psum = not self.numbers and len(pairs) * keys <= PSUM_SCORES
        memory = nl.psum if in_psum else nl.sbuf
        raw = nl.ndarray((height, len(pairs), keys), nl.float32, memory)
        for n, (q, k) in enumerate(pairs):
            for first, last in spans(keys, nl.tile_size.psum_bank_fmax):
                block = raw[:, n, first:last]
                total = block
                if not in_psum:
                    total = nl.ndarray((height, last - first), nl.float32, nl.psum)
                nisa.nc_matmul(total, q, k[:, first:last], accumulate=False)
                part = None if added is None else added[:, first:last]
                if self.numbers:
                    nisa.scalar_tensor_tensor(
                        block, total, nl.multiply, self.scale, nl.add, part
                    )
                    self.balance.vector += last - first
                    continue
                self._hide(total, part, (first, last), rows)
                if not in_psum:
                    self.balance.copy(block, total)
        if self.numbers and self.causal and rows[0] < keys:
            hide_later(raw[:, 0, rows[0] : keys], float("-inf"))
        return self._softmax(raw)

    def _hide(self, total, part, columns: tuple[int, int], rows: tuple[int, int]) -> None:
        """Add HIDDEN to scores in PSUM, by a product of the identity with the mask."""
        height = total.shape[0]
        if part is not None:
            nisa.nc_matmul(total, self.identity[0:height, 0:height], part, accumulate=True)
        first, last = max(columns[0], rows[0]), min(columns[1], rows[1])
        if self.causal and first < last:
            later = self.later[0:height, first - rows[0] : last - rows[0]]
            block = total[:, first - columns[0] : last - columns[0]]
            nisa.nc_matmul(block, self.identity[0:height, 0:height], later, accumulate=True)

    def _softmax(self, raw):
        height, heads, keys = raw.shape
        factor = 1.0 if self.numbers else self.scale
        peak = nl.ndarray((height, heads), nl.float32, nl.sbuf)
        nisa.tensor_reduce(peak, nl.maximum, raw, axis=2, negate=True)
        if self.mask is not None:
            lowest = -LOWEST[self.mask.kind]
            nisa.tensor_scalar(peak, peak, nl.minimum, lowest, op1=nl.multiply, operand1=factor)
        elif factor != 1.0:
            nisa.tensor_scalar(peak, peak, nl.multiply, factor)
        grown = nl.ndarray((height, heads, keys), self.dtype, nl.sbuf)
        total = nl.ndarray((height, heads), nl.float32, nl.sbuf)
        for n in range(heads):
            own = slice(n, n + 1)
            nisa.activation_reduce(
                grown[:, n, :],
                nl.exp,
                raw[:, n, :],
                nl.add,
                total[:, own],
                bias=peak[:, own],
                scale=factor,
            )
        if self.mask is not None:
            nisa.tensor_scalar(total, total, nl.maximum, LEAST_SUM)
        share = nl.ndarray((height, heads), nl.float32, nl.sbuf)
        nisa.reciprocal(share, total)
        self.balance.vector += heads * keys
        self.balance.scalar += heads * keys
        return grown, share


class Held:
    """Keys [D, n, S] and values [≤128, S/128, n·D] of n heads of one batch, in SBUF."""

    def __init__(self, k, v, batch: int, heads: tuple[int, int], dtypes, balance: Balance):
        pmax, (count, width) = nl.tile_size.pmax, k.shape[2:]
        self.width, self.count, self.first, self.balance = width, count, heads[0], balance
        key_rows, value_rows = _rows_of_heads(k, batch, heads), _rows_of_heads(v, batch, heads)
        self.k = nl.ndarray((width, heads[1] - heads[0], count), dtypes[0], nl.sbuf)
        shape = (min(count, pmax), cover(count, pmax), value_rows.columns)
        self.v = nl.ndarray(shape, v.dtype, nl.sbuf)
        for rows in spans(count, pmax):
            transposed(key_rows.tile(rows), dtypes[0], balance, width, self.k, rows[0])
        for block, rows in enumerate(spans(count, pmax)):
            value_rows.load(self.v[0 : rows[1] - rows[0], block, :], rows[0])

    def keys(self, head: int, count: int):
        """The first `count` keys of a head, [D, S]."""
        return self.k[:, head - self.first, 0:count]

    def weighted(self, dst, grown, share, heads: list[int]) -> None:
        """dst [T, G·D] = grown [T, G, S] · values · share [T, G], with each one's key head."""
        height, count, keys = grown.shape
        pmax, balance = nl.tile_size.pmax, self.balance
        blocks = list(spans(keys, pmax))
        flat = grown.reshape((height, count * keys))
        turned = transposed(flat, grown.dtype, balance, min(keys, pmax))
        total = nl.ndarray((height, count, self.width), nl.float32, nl.psum)
        for n, head in enumerate(heads):
            start = (head - self.first) * self.width
            for block, (first, last) in enumerate(blocks):
                rows = last - first
                values = self.v[0:rows, block, start : start + self.width]
                chosen = turned[0:rows, n * len(blocks) + block, :]
                nisa.nc_matmul(total[:, n, :], chosen, values, accumulate=block > 0)
        shares = share.reshape((height, count, 1)).broadcast(2, self.width)
        nisa.tensor_tensor(dst.reshape((height, count, self.width)), total, shares, nl.multiply)
        balance.vector += count * self.width


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
    keys = k.shape[2]
    out = nl.ndarray((batches, queries, heads, width), q.dtype, nl.shared_hbm)
    balance, dtypes = Balance(), (operand_dtype(q, k), v.dtype)
    scores = Scores(1 / sqrt(width) if scale is None else scale, mask, causal, v.dtype, balance)
    bytes_per_head = keys * dtypes[0].itemsize
    bytes_per_head += cover(keys, nl.tile_size.pmax) * width * v.dtype.itemsize
    together = max(1, HELD_BYTES // bytes_per_head)
    for batch in range(batches):
        for held_heads in spans(k.shape[1], together):
            held = Held(k, v, batch, held_heads, dtypes, balance)
            _queries(q, out[batch], batch, held, held_heads, heads // k.shape[1], scores)
    return out.permute((0, 2, 1, 3))


def _queries(q, out, batch: int, held: Held, key_heads, share: int, scores: Scores) -> None:
    """All queries of the heads that `held` serves."""
    width, ours = held.width, (key_heads[0] * share, key_heads[1] * share)
    given, target = _rows_of_heads(q, batch, ours), sheet(out[:, ours[0] : ours[1]], columns=2)
    dtype, tiles = held.k.dtype, {}

    def begin(rows):
        tile = given.tile(rows)
        turned = transposed(tile, dtype, held.balance, width)
        if scores.sign != 1:
            nisa.tensor_scalar(turned, turned, nl.multiply, float(scores.sign))
        return turned, nl.ndarray(tile.shape, q.dtype, nl.sbuf)

    def probabilities(item):
        rows, (first, last) = item
        if rows not in tiles:
            tiles[rows] = begin(rows)
        turned, seen = tiles[rows][0], scores.keys_for(rows, held.count)
        pairs = [
            (turned[:, h - ours[0], :], held.keys(h // share, seen)) for h in range(first, last)
        ]
        return scores.of(pairs, batch, first, rows)

    items = []
    for rows in spans(q.shape[2], nl.tile_size.pmax):
        step = scores.together(scores.keys_for(rows, held.count), ours[1] - ours[0], width)
        items += [(rows, (ours[0] + a, ours[0] + b)) for a, b in spans(ours[1] - ours[0], step)]
    for (rows, (first, last)), (grown, over) in ahead(items, probabilities, AHEAD):
        done = tiles[rows][1]
        part = done[:, (first - ours[0]) * width : (last - ours[0]) * width]
        held.weighted(part, grown, over, [h // share for h in range(first, last)])
        if last == ours[1]:
            target.store(done, rows[0])
            del tiles[rows]
