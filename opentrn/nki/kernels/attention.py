"""Softmax attention for heads of up to 128 elements, with masks, causality and grouped queries.

For a tile of 128 queries the scores of all keys stay on chip, in PSUM when they fit two banks.
Keys and queries enter the Tensor Engine with the head dimension on partitions (transposed there);
what a boolean mask or causality hides is added there too, as a product with the identity.
Probabilities are transposed block by block for the product with the values, and the sum of each
row divides while results leave PSUM.  Heads with few keys are worked on several at a time.  More
keys than SBUF holds are taken in windows, whose results are merged with their maxima and sums.
"""

from math import sqrt

from opentrn.base import LimitError, declare
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.nki.jit import jit
from opentrn.nki.kernels.matmul import operand_dtype
from opentrn.nki.kernels.tiles import START, Balance, cover, pipelined, sheet, spans, transposed

declare(
    "kernels.attention_head",
    "The heads of an attention are too wide for the kernel.",
    rule="the head dimension lies on the partitions of the Tensor Engine: at most 128",
    fix="use kernels.matmul and kernels.softmax for wider heads",
)

# What is added to a score to hide it (twice at most, which stays finite), and the lowest value the
# maximum of a row may take: where a row hides everything all scores lie so far below it that their
# exponentials are exactly 0.
HIDDEN = -1.5e38
LOWEST = {"bool": -1e38, "float": -3.4028234663852886e38}
# Any visible score makes the sum at least 1, so this only keeps 0 / 0 away from rows without one.
LEAST_SUM = 1e-30
# Bytes of a partition for the keys and values of the heads that are held together.
HELD_BYTES = 48 << 10
# Keys and values of one head in a partition beyond which keys are taken in windows of so many (half
# as many in float32), and the queries that pass by a window before the next is loaded.
WINDOW_BYTES, WINDOW, WINDOW_QUERIES = 32 << 10, 4096, 2048
# Scores of a tile of queries that stay in PSUM.  Three groups have scores at a time, so more than
# this many would leave no banks for other work, and it pays to copy them to SBUF.
PSUM_SCORES = 768
# PSUM banks of scores that leave for SBUF by one instruction.
BANKS_TAKEN = 2


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

    def rows(self, batch: int, head: int, rows: tuple[int, int], keys: tuple[int, int]):
        """The tile [T, S] to add to the scores of these queries and keys."""
        sizes = self.mask.shape
        batch, head = min(batch, sizes[0] - 1), min(head, sizes[1] - 1)
        shared, height = sizes[2] == 1, rows[1] - rows[0]
        key = (batch, head, None if shared else rows, keys, height)
        if key != self.key:
            part = self.mask[batch, head]
            if shared:
                part, rows = part.broadcast(0, height), (0, height)
            self.tile, self.key = self._additive(sheet(part).tile(rows, keys)), key
        return self.tile

    def _additive(self, tile):
        """Booleans become 0 (visible) and HIDDEN, in bfloat16; numbers are added as they are."""
        if self.kind == "float":
            return tile
        made = nl.ndarray(tile.shape, nl.bfloat16, nl.sbuf)
        nisa.tensor_scalar(made, tile, nl.equal, 0.0, op1=nl.multiply, operand1=HIDDEN)
        return made


class Scoring:
    """How products of queries and keys become probabilities: what all groups of heads share."""

    def __init__(self, scale: float, mask, causal: bool, dtype, psum_scores: int = PSUM_SCORES):
        self.causal, self.dtype, self.balance = causal, dtype, Balance()
        self.psum_scores = psum_scores
        self.mask = None if mask is None else Mask(mask)
        # A maximum commutes with a positive factor only: another sign goes to the queries.
        self.sign, self.scale = (scale > 0) - (scale < 0), abs(scale) or 1.0
        # Numbers of a mask are added to scaled scores; otherwise exp takes the factor along.
        self.numbers = mask is not None and self.mask.kind == "float"
        self.factor = 1.0 if self.numbers else self.scale
        self.later = self.identity = None
        if not self.numbers and (causal or mask is not None):
            self.identity = nl.shared_identity_matrix(nl.tile_size.pmax, nl.bfloat16)
            self.later = later_keys() if causal else None

    def together(self, keys: int, heads: int, width: int) -> int:
        """How many heads to work on at once: scores and results share a PSUM bank each."""
        even = keys <= nl.tile_size.pmax or keys % nl.tile_size.pmax == 0
        if not even or self.numbers or (self.mask is not None and self.mask.per_head):
            return 1
        return max(1, min(heads, nl.tile_size.psum_bank_fmax // max(keys, width)))


class Held:
    """Keys [D, n, S] and values [≤128, S/128, n·D] of n heads of one batch, in SBUF."""

    def __init__(self, k, v, batch: int, heads: tuple[int, int], dtype, balance: Balance):
        pmax, (count, width) = nl.tile_size.pmax, k.shape[2:]
        key_rows, value_rows = _rows_of_heads(k, batch, heads), _rows_of_heads(v, batch, heads)
        self.k = nl.ndarray((width, heads[1] - heads[0], count), dtype, nl.sbuf)
        shape = (min(count, pmax), cover(count, pmax), value_rows.columns)
        self.v = nl.ndarray(shape, v.dtype, nl.sbuf)
        for rows in spans(count, pmax):
            transposed(key_rows.tile(rows), dtype, balance, width, self.k, rows[0])
        for block, rows in enumerate(spans(count, pmax)):
            value_rows.load(self.v[0 : rows[1] - rows[0], block, :], rows[0])


class Queries:
    """A tile of queries of some heads: transposed [D, n, T], and the tile of their results."""

    def __init__(self, source, rows: tuple[int, int], width: int, dtype, scoring: Scoring):
        tile = source.tile(rows)
        self.turned = transposed(tile, dtype, scoring.balance, width)
        if scoring.sign != 1:
            nisa.tensor_scalar(self.turned, self.turned, nl.multiply, float(scoring.sign))
        self.done = nl.ndarray(tile.shape, source.dtype, nl.sbuf)


class Chain:
    """Results of one tile of queries and one head, merged from windows of keys."""

    def __init__(self):
        self.peak = self.total = self.sums = None

    def add(self, peak, total, product) -> None:
        """Take in a window: minus its maxima [T, 1], its sums [T, 1], its products [T, D]."""
        if self.peak is None:
            self.peak, self.total, self.sums = peak, total, nl.copy(product)
            return
        lowest = nl.minimum(self.peak, peak)
        # What was divided by e^maximum is to be divided by the e^maximum of both.
        old, new = nl.empty_like(peak), nl.empty_like(peak)
        nisa.activation(old, nl.exp, self.peak, scale=-1.0, bias=lowest)
        nisa.activation(new, nl.exp, peak, scale=-1.0, bias=lowest)
        self.total = nl.add(nl.multiply(self.total, old), nl.multiply(total, new))
        nisa.tensor_scalar(self.sums, self.sums, nl.multiply, old)
        nisa.scalar_tensor_tensor(self.sums, product, nl.multiply, new, nl.add, self.sums)
        self.peak = lowest

    def finish(self, dst) -> None:
        """dst [T, D] = products over sums."""
        share = nl.empty_like(self.total)
        nisa.tensor_scalar(share, self.total, nl.maximum, LEAST_SUM, op1=nl.reciprocal)
        nisa.tensor_scalar(dst, self.sums, nl.multiply, share)
        self.peak = self.total = self.sums = None


class Group:
    """Some heads of a tile of queries, from scores to results in five stages.

    `keys` is the range of keys, `heads` that of query heads; `chain` merges windows of keys.
    """

    def __init__(self, scoring: Scoring, batch: int, heads, rows, keys, chain: Chain | None = None):
        self.scoring, self.batch, self.heads, self.rows = scoring, batch, heads, rows
        self.keys, self.chain, self.height = keys, chain, rows[1] - rows[0]
        self.is_last = True

    def multiply(self, pairs: list) -> None:
        """Scores [T, G, S], with what is hidden added.

        `pairs` holds (queries [D, T], keys [D, S], values [≤128, S/128, D]) of each head.
        """
        scoring, height = self.scoring, self.height
        self.pairs, keys, mask = pairs, self.keys[1] - self.keys[0], self.scoring.mask
        added = mask and mask.rows(self.batch, self.heads[0], self.rows, self.keys)
        in_psum = not scoring.numbers and len(pairs) * keys <= scoring.psum_scores
        memory = nl.psum if in_psum else nl.sbuf
        self.raw = nl.ndarray((height, len(pairs), keys), nl.float32, memory)
        bank = nl.tile_size.psum_bank_fmax
        step = bank if in_psum or scoring.numbers else BANKS_TAKEN * bank
        self.peaks = None
        if not in_psum and not scoring.numbers:
            shape = (height, len(pairs), cover(keys, step))
            self.peaks = nl.ndarray(shape, nl.float32, nl.sbuf)
        for n, (q, k, _) in enumerate(pairs):
            for at, (first, last) in enumerate(spans(keys, step)):
                total = block = self.raw[:, n, first:last]
                if not in_psum:
                    total = nl.ndarray((height, last - first), nl.float32, nl.psum)
                for a, b in spans(last - first, bank):
                    columns = (first + a, first + b)
                    self._score(total[:, a:b], q, k, added, columns)
                if not in_psum:
                    part = None if added is None else added[:, first:last]
                    self._take(block, total, part, n, at)
        if scoring.numbers and scoring.causal and self.rows[0] < self.keys[1]:
            hide_later(self.raw[:, 0, self.rows[0] - self.keys[0] : keys], float("-inf"))

    def _score(self, total, q, k, added, columns: tuple[int, int]) -> None:
        """Products of queries with the keys `columns`, counted from the first; hidden in PSUM."""
        first, last = columns
        nisa.nc_matmul(total, q, k[:, first:last], accumulate=False)
        if not self.scoring.numbers:
            part = None if added is None else added[:, first:last]
            self._hide(total, part, (self.keys[0] + first, self.keys[0] + last))

    def _hide(self, total, part, columns: tuple[int, int]) -> None:
        """Add HIDDEN to scores in PSUM, by a product of the identity with the mask."""
        scoring, height, rows = self.scoring, self.height, self.rows
        if part is not None:
            nisa.nc_matmul(total, scoring.identity[0:height, 0:height], part, accumulate=True)
        first, last = max(columns[0], rows[0]), min(columns[1], rows[1])
        if scoring.causal and first < last:
            later = scoring.later[0:height, first - rows[0] : last - rows[0]]
            block = total[:, first - columns[0] : last - columns[0]]
            nisa.nc_matmul(block, scoring.identity[0:height, 0:height], later, accumulate=True)

    def _take(self, dst, total, part, n: int, at: int) -> None:
        """Scores from PSUM to SBUF, and on the way the largest of each row; a mask of numbers is
        added to what is already scaled."""
        scoring = self.scoring
        scoring.balance.vector += 2 * START + dst.shape[1]
        if self.peaks is None:
            nisa.scalar_tensor_tensor(dst, total, nl.multiply, scoring.scale, nl.add, part)
            return
        peak = self.peaks[:, n, at : at + 1]
        nisa.tensor_scalar_reduce(dst, total, nl.multiply, 1.0, nl.maximum, peak)

    def find_peaks(self) -> None:
        """Minus the largest score of each row: [T, G]."""
        scoring, source = self.scoring, self.raw if self.peaks is None else self.peaks
        _, heads, width = source.shape
        self.peak = nl.ndarray((self.height, heads), nl.float32, nl.sbuf)
        nisa.tensor_reduce(self.peak, nl.maximum, source, axis=2, negate=True)
        scoring.balance.vector += heads * width + 2 * START
        self._scale_peak()

    def exponentiate(self) -> None:
        """Probabilities but for the division [T, G, S], and their sums [T, G]."""
        scoring, (height, heads, keys) = self.scoring, self.raw.shape
        self.grown = nl.ndarray((height, heads, keys), scoring.dtype, nl.sbuf)
        total = nl.ndarray((height, heads), nl.float32, nl.sbuf)
        for n in range(heads):
            nisa.activation_reduce(
                self.grown[:, n, :],
                nl.exp,
                self.raw[:, n, :],
                nl.add,
                total[:, n : n + 1],
                bias=self.peak[:, n : n + 1],
                scale=scoring.factor,
            )
        scoring.balance.scalar += 0.8 * heads * (keys + 3 * START)
        self.raw, self.total = None, total

    def _scale_peak(self) -> None:
        scoring, peak = self.scoring, self.peak
        if scoring.mask is not None:
            lowest, factor = -LOWEST[scoring.mask.kind], scoring.factor
            nisa.tensor_scalar(peak, peak, nl.minimum, lowest, op1=nl.multiply, operand1=factor)
        elif scoring.factor != 1.0:
            nisa.tensor_scalar(peak, peak, nl.multiply, scoring.factor)

    def turn(self) -> None:
        """Blocks of at most 128 keys on partitions [≤128, G · blocks, T]; one over the sums."""
        if self.chain is None:
            self.share = nl.empty_like(self.total)
            nisa.tensor_scalar(self.share, self.total, nl.maximum, LEAST_SUM, op1=nl.reciprocal)
        height, heads, keys = self.grown.shape
        flat = self.grown.reshape((height, heads * keys))
        width = min(keys, nl.tile_size.pmax)
        self.turned = transposed(flat, self.scoring.dtype, self.scoring.balance, width)
        self.blocks, self.grown = list(spans(keys, nl.tile_size.pmax)), None

    def weigh(self, dst) -> None:
        """dst [T, G·D] = probabilities · values, over their sums."""
        heads, width = len(self.pairs), self.pairs[0][2].shape[2]
        total = nl.ndarray((self.height, heads, width), nl.float32, nl.psum)
        for n, (_, _, values) in enumerate(self.pairs):
            for block, (first, last) in enumerate(self.blocks):
                rows = last - first
                chosen = self.turned[0:rows, n * len(self.blocks) + block, :]
                part = values[0:rows, block, :]
                nisa.nc_matmul(total[:, n, :], chosen, part, accumulate=block > 0)
        if self.chain is not None:
            self._merge(dst, total)
            return
        shares = self.share.reshape((self.height, heads, 1)).broadcast(2, width)
        out = dst.reshape((self.height, heads, width))
        nisa.tensor_tensor(out, total, shares, nl.multiply)
        self.scoring.balance.vector += heads * width + 2 * START
        self.turned = self.pairs = None

    def _merge(self, dst, total) -> None:
        """Add this window of keys to the chain; write its results after the last."""
        self.chain.add(self.peak, self.total, total[:, 0, :])
        if self.is_last:
            self.chain.finish(dst)
        self.turned = self.pairs = None


class Attention:
    """All groups of heads of one attention, written as a pipeline of their stages."""

    def __init__(self, q, k, v, out, scoring: Scoring, held_bytes: int = HELD_BYTES):
        self.held_bytes = held_bytes
        self.q, self.k, self.v, self.out, self.scoring = q, k, v, out, scoring
        self.width, self.keys, self.repeat = q.shape[3], k.shape[2], q.shape[1] // k.shape[1]
        self.dtype = operand_dtype(q, k)
        self.window = WINDOW * 2 // max(2, self.dtype.itemsize)
        self.held_at = self.held = self.queries_at = self.queries = None

    def run(self) -> None:
        """Write every group."""
        per_head = self.keys * self.dtype.itemsize
        per_head += cover(self.keys, nl.tile_size.pmax) * self.width * self.v.dtype.itemsize
        items: list[Group] = []
        together = max(1, self.held_bytes // per_head)
        for batch in range(self.q.shape[0]):
            for held in spans(self.k.shape[1], together):
                if per_head > WINDOW_BYTES and self.keys > self.window:
                    items += self._windows(batch, held)
                    continue
                for rows in spans(self.q.shape[2], nl.tile_size.pmax):
                    items += self._groups(batch, held, rows)
        # Queries are turned a whole step before they are needed: no product waits for them.
        stages = [
            (2, self.multiply),
            (3, Group.find_peaks),
            (4, Group.exponentiate),
            (5, Group.turn),
            (6, self.weigh),
            (0, self.prepare),
        ]
        pipelined(items, stages)

    def _groups(self, batch: int, held: tuple[int, int], rows: tuple[int, int]) -> list[Group]:
        """The groups of heads of one tile of queries."""
        first, last = held[0] * self.repeat, held[1] * self.repeat
        # Later keys than the last query may see are skipped altogether.
        seen = min(self.keys, rows[1]) if self.scoring.causal else self.keys
        found = []
        for a, b in spans(last - first, self.scoring.together(seen, last - first, self.width)):
            group = Group(self.scoring, batch, (first + a, first + b), rows, (0, seen))
            group.held, group.all_heads, group.window = held, (first, last), (0, self.keys)
            found.append(group)
        return found

    def _windows(self, batch: int, held: tuple[int, int]) -> list[Group]:
        """The groups of one key head whose keys are taken in windows."""
        first, last = held[0] * self.repeat, held[1] * self.repeat
        found = []
        for block in spans(self.q.shape[2], WINDOW_QUERIES):
            tiles = [
                (block[0] + a, block[0] + b)
                for a, b in spans(block[1] - block[0], nl.tile_size.pmax)
            ]
            chains = {(rows, head): Chain() for rows in tiles for head in range(first, last)}
            for window in spans(self.keys, self.window):
                for rows in tiles:
                    end = min(window[1], rows[1]) if self.scoring.causal else window[1]
                    for head in range(first, last) if end > window[0] else ():
                        heads, chain = (head, head + 1), chains[rows, head]
                        keys = (window[0], end)
                        group = Group(self.scoring, batch, heads, rows, keys, chain)
                        group.held, group.all_heads, group.window = held, (first, last), window
                        group.is_last = end == self.keys or (self.scoring.causal and end == rows[1])
                        found.append(group)
        return found

    def prepare(self, group: Group) -> None:
        """Load keys, values and queries of a group when they are new."""
        batch, heads = group.batch, group.all_heads
        if self.held_at != (batch, group.held, group.window):
            self.held_at = (batch, group.held, group.window)
            k, v = (x.slice(2, *group.window) for x in (self.k, self.v))
            self.held = Held(k, v, batch, group.held, self.dtype, self.scoring.balance)
        if self.queries_at != (batch, heads, group.rows, group.window):
            self.queries_at = (batch, heads, group.rows, group.window)
            source = _rows_of_heads(self.q, batch, heads)
            self.queries = Queries(source, group.rows, self.width, self.dtype, self.scoring)
        group.keys_and_values, group.queries = self.held, self.queries

    def multiply(self, group: Group) -> None:
        """The scores of a group."""
        seen, pairs, first = group.keys[1] - group.keys[0], [], group.all_heads[0]
        held, turned = group.keys_and_values, group.queries.turned
        for head in range(*group.heads):
            n, at = head - first, (head - first) // self.repeat
            values = held.v[:, :, at * self.width : (at + 1) * self.width]
            pairs.append((turned[:, n, :], held.k[:, at, 0:seen], values))
        group.keys_and_values = None
        group.multiply(pairs)

    def weigh(self, group: Group) -> None:
        """The last stage of a group; stores the results of the last group of a tile."""
        done, (first, last) = group.queries.done, group.all_heads
        start, end = group.heads[0] - first, group.heads[1] - first
        group.weigh(done[:, start * self.width : end * self.width])
        if group.heads[1] == last and group.is_last:
            target = self.out[group.batch][:, first:last]
            sheet(target, columns=2).store(done, group.rows[0])
        group.queries = None


@jit
def attention(q, k, v, mask=None, scale=None, causal=False, cut=(HELD_BYTES, PSUM_SCORES)):
    """softmax(q · kᵀ · scale + mask) · v for q [B, H, T, D], k and v [B, Hk, S, D], D ≤ 128.

    Hk divides H: each key head serves H / Hk query heads in a row.  `mask` [B|1, H|1, T|1, S] is
    added to the scores if it is float, otherwise hides keys where it is 0; `causal` lets query t
    see keys 0 … t.  A query that sees no key gives 0.  `scale` is 1/√D by default.  The result is
    [B, H, T, D], laid out in memory as [B, T, H, D].  `cut` says how many bytes of a partition the
    heads that are worked on together may hold, and how many scores of a tile stay in PSUM.
    """
    batches, heads, queries, width = q.shape
    if width > nl.tile_size.pmax:
        raise LimitError(f"attention: heads of {width} elements", code="kernels.attention_head")
    out = nl.ndarray((batches, queries, heads, width), q.dtype, nl.shared_hbm)
    factor = 1 / sqrt(width) if scale is None else scale
    Attention(q, k, v, out, Scoring(factor, mask, causal, v.dtype, cut[1]), cut[0]).run()
    return out.permute((0, 2, 1, 3))
