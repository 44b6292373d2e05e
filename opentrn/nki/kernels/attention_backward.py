"""Gradients of softmax attention; the weights are computed again, a block of keys at a time.

With P the weights and dP = dO · Vᵀ:  dV = Pᵀ · dO,  dS = P ∘ (dP - rowsum(dO ∘ O)),
dQ = scale · dS · K,  dK = scale · dSᵀ · Q  (Dao et al., FlashAttention, 2022, §3 and appendix B).

A window holds tiles of 128 queries of all heads that read one key head.  It passes by the keys
twice, CHUNK keys at a time: first each row's maximum and sum of exponentials are found, then the
products are made.  With a mask of numbers maximum and sum are kept apart and not as one logarithm,
which would lose the sum where the mask moves all scores of a row towards -1e38.  The gradients of
a chunk's keys and values stay in PSUM while the window passes by; those of windows before are added
from HBM.
"""

from math import sqrt

from opentrn.base import LimitError
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.nki.jit import jit
from opentrn.nki.kernels.attention import (
    HELD_BYTES,
    LOWEST,
    Mask,
    later_keys,
)
from opentrn.nki.kernels.matmul import operand_dtype
from opentrn.nki.kernels.tiles import Balance, ahead, pipelined, sheet, spans, transposed

# Keys that are worked on together: their scores fill a PSUM bank (half of them for float32, whose
# slopes take a bank when they are turned).
CHUNK = 512
# Any visible score makes a sum at least 1: this keeps 0 / 0 away from rows without one.
LEAST = 0.5
# Bytes of a partition for the queries of a window, with what belongs to them.
WINDOW_BYTES = 72 << 10


class Scores:
    """How queries meet a chunk of keys: scale, mask, causality."""

    def __init__(self, scale: float, mask, causal: bool, dtype):
        self.scale, self.causal, self.dtype, self.balance = scale, causal, dtype, Balance()
        self.mask = None if mask is None else Mask(mask)
        # Numbers of a mask are added to scaled scores; otherwise exp takes the factor along.  Its
        # sign goes to the queries, for a maximum commutes with a positive factor only.
        self.numbers = mask is not None and self.mask.kind == "float"
        self.sign = (scale > 0) - (scale < 0)
        self.factor = 1.0 if self.numbers else abs(scale) or 1.0
        self.identity = nl.shared_identity_matrix(nl.tile_size.pmax, nl.bfloat16)
        self.later = later_keys() if causal else None

    def seen(self, rows: tuple[int, int], chunk: tuple[int, int]) -> int:
        """How many keys of a chunk these rows may see, counted from its first."""
        last = min(chunk[1], rows[1]) if self.causal else chunk[1]
        return max(0, last - chunk[0])

    def of(self, tile: "Tile", keys: "Keys"):
        """Scores [T, keys seen] with what is hidden added, but for the factor of `exp`."""
        seen = self.seen(tile.rows, keys.span)
        total = nl.ndarray((tile.height, seen), nl.float32, nl.psum)
        nisa.nc_matmul(total, tile.turned, keys.k[:, 0:seen], accumulate=False)
        last = (keys.span[0], keys.span[0] + seen)
        added = self.mask and self.mask.rows(tile.batch, tile.head, tile.rows, last)
        if not self.numbers:
            self._hide(total, added, tile, last)
            return total
        raw = nl.ndarray(total.shape, nl.float32, nl.sbuf)
        scale = abs(self.scale)
        nisa.scalar_tensor_tensor(raw, total, nl.multiply, scale, nl.add, added)
        if self.causal and tile.rows[0] < last[1]:
            self._hide_diagonal(raw, tile.rows, last)
        return raw

    def _hide(self, total, added, tile: "Tile", columns: tuple[int, int]) -> None:
        """Add HIDDEN to scores in PSUM, by products of the identity."""
        height, rows = tile.height, tile.rows
        one = self.identity[0:height, 0:height]
        if added is not None:
            nisa.nc_matmul(total, one, added, accumulate=True)
        first = max(columns[0], rows[0])
        if self.causal and first < columns[1]:
            later = self.later[0:height, first - rows[0] : columns[1] - rows[0]]
            block = total[:, first - columns[0] : columns[1] - columns[0]]
            nisa.nc_matmul(block, one, later, accumulate=True)

    def _hide_diagonal(self, raw, rows: tuple[int, int], columns: tuple[int, int]) -> None:
        """Write -∞ where the key lies after the query."""
        nisa.affine_select(
            raw,
            pattern=[[-1, raw.shape[1]]],
            channel_multiplier=1,
            offset=rows[0] - columns[0],
            on_true_tile=raw,
            on_false_value=float("-inf"),
            cmp_op=nl.greater_equal,
        )


class Keys:
    """A chunk of keys of one head: K and V turned [D, S], and K as it is [≤128, S/128, D]."""

    def __init__(self, k, v, span: tuple[int, int], scores: Scores, turn_values: bool):
        pmax, width, count = nl.tile_size.pmax, k.shape[1], span[1] - span[0]
        self.span, self.blocks = span, list(spans(count, pmax))
        self.k = nl.ndarray((width, 1, count), scores.dtype, nl.sbuf)
        self.rows = nl.ndarray((min(count, pmax), len(self.blocks), width), k.dtype, nl.sbuf)
        for n, (first, last) in enumerate(self.blocks):
            part = self.rows[0 : last - first, n, :]
            sheet(k).load(part, span[0] + first)
            transposed(part, scores.dtype, scores.balance, width, self.k, first)
        self.k = self.k[:, 0, :]
        if turn_values:
            self._turn_values(v, scores)

    def _turn_values(self, v, scores: Scores) -> None:
        width = v.shape[1]
        self.v = nl.ndarray((width, 1, self.span[1] - self.span[0]), scores.dtype, nl.sbuf)
        for first, last in self.blocks:
            tile = sheet(v).tile((self.span[0] + first, self.span[0] + last))
            transposed(tile, scores.dtype, scores.balance, width, self.v, first)
        self.v = self.v[:, 0, :]


class Tile:
    """A tile of queries of one head, the gradients there, and what is found of each row."""

    def __init__(self, operands, batch: int, head: int, rows: tuple[int, int], scores: Scores):
        self.batch, self.head, self.rows, self.height = batch, head, rows, rows[1] - rows[0]
        self.scores, self.peaks, self.totals = scores, [], []
        q, grad, out = (sheet(x[batch, head]) for x in operands)
        self.q, self.grad = q.tile(rows), grad.tile(rows)
        self.turned = transposed(self.q, scores.dtype, scores.balance)[:, 0, :]
        if scores.sign != 1:
            nisa.tensor_scalar(self.turned, self.turned, nl.multiply, float(scores.sign))
        self.turned_grad = transposed(self.grad, scores.dtype, scores.balance)[:, 0, :]
        product = nl.ndarray(self.q.shape, nl.float32, nl.sbuf)
        self.drift = nl.ndarray((self.height, 1), nl.float32, nl.sbuf)
        nisa.tensor_tensor(product, self.grad, out.tile(rows), nl.multiply)
        nisa.tensor_reduce(self.drift, nl.add, product, axis=1)
        self.sums = nl.zeros(self.q.shape, nl.float32)

    def find_peak(self, raw) -> None:
        """Minus the largest score of each row in a chunk."""
        peak = nl.ndarray((self.height, 1), nl.float32, nl.sbuf)
        nisa.tensor_reduce(peak, nl.maximum, raw, axis=1, negate=True)
        scores = self.scores
        if scores.mask is not None:
            lowest = -LOWEST[scores.mask.kind]
            nisa.tensor_scalar(
                peak, peak, nl.minimum, lowest, op1=nl.multiply, operand1=scores.factor
            )
        elif scores.factor != 1.0:
            nisa.tensor_scalar(peak, peak, nl.multiply, scores.factor)
        self.peaks.append(peak)

    def add_up(self, raw, chunk: int) -> None:
        """The sum of the exponentials of a chunk, over that of its maximum."""
        total = nl.ndarray((self.height, 1), nl.float32, nl.sbuf)
        grown = nl.ndarray(raw.shape, nl.bfloat16, nl.sbuf)
        nisa.activation_reduce(
            grown, nl.exp, raw, nl.add, total, bias=self.peaks[chunk], scale=self.scores.factor
        )
        self.totals.append(total)

    def settle(self) -> None:
        """`peak`, minus the maximum of a row over all chunks, and `share`, one over its sum.

        Without numbers of a mask both go into the exponent."""
        self.peak = self.peaks[0]
        for peak in self.peaks[1:]:
            self.peak = nl.minimum(self.peak, peak)
        total = None
        for peak, part in zip(self.peaks, self.totals, strict=True):
            if len(self.peaks) > 1:
                # What was divided by e^maximum is to be divided by the e^maximum of all.
                change = nl.empty_like(peak)
                nisa.activation(change, nl.exp, peak, scale=-1.0, bias=self.peak)
                part = nl.multiply(part, change)
            total = part if total is None else nl.add(total, part)
        self.share = nl.empty_like(self.peak)
        nisa.tensor_scalar(self.share, total, nl.maximum, LEAST, op1=nl.reciprocal)
        if not self.scores.numbers:
            self.peak = nl.add(self.peak, nl.log(self.share))
        self.peaks = self.totals = None


class Pair:
    """A tile of queries and a chunk of keys, from scores to its parts of the gradients."""

    def __init__(self, tile: Tile, keys: Keys, sums: "Sums"):
        self.tile, self.keys, self.sums, self.is_last = tile, keys, sums, False
        self.seen = tile.scores.seen(tile.rows, keys.span)

    def multiply(self) -> None:
        """Scores, and what each weight's change would be worth: dO · Vᵀ."""
        self.raw = self.tile.scores.of(self.tile, self.keys)
        self.worth = nl.ndarray((self.tile.height, self.seen), nl.float32, nl.psum)
        values = self.keys.v[:, 0 : self.seen]
        nisa.nc_matmul(self.worth, self.tile.turned_grad, values, accumulate=False)

    def exponentiate(self) -> None:
        """Weights P and slopes dS (but for the scale), both in the dtype of products."""
        tile, scores = self.tile, self.tile.scores
        shape = (tile.height, self.seen)
        self.weights = nl.ndarray(shape, scores.dtype, nl.sbuf)
        grown = nl.ndarray(shape, nl.float32, nl.sbuf) if scores.numbers else self.weights
        nisa.activation(grown, nl.exp, self.raw, bias=tile.peak, scale=scores.factor)
        if scores.numbers:
            nisa.tensor_scalar(self.weights, grown, nl.multiply, tile.share)
        self.slopes = nl.ndarray(shape, scores.dtype, nl.sbuf)
        nisa.scalar_tensor_tensor(
            self.slopes, self.worth, nl.subtract, tile.drift, nl.multiply, self.weights
        )
        scores.balance.scalar += self.seen
        scores.balance.vector += self.seen
        self.raw = self.worth = None

    def sum_up(self) -> None:
        """Add to dV and dK of the chunk; turn the slopes."""
        tile, pmax = self.tile, nl.tile_size.pmax
        for n, (first, last) in enumerate(spans(self.seen, pmax)):
            self.sums.add(n, self.weights[:, first:last], tile.grad, self.slopes[:, first:last],
                          tile.q)  # fmt: skip
        width = min(self.seen, pmax)
        self.turned = transposed(self.slopes, tile.scores.dtype, tile.scores.balance, width)
        self.weights = None

    def finish(self) -> None:
        """Add dS · K to the sums of the queries."""
        tile, pmax = self.tile, nl.tile_size.pmax
        total = nl.ndarray(tile.q.shape, nl.float32, nl.psum)
        for n, (first, last) in enumerate(spans(self.seen, pmax)):
            rows = last - first
            chosen, part = self.turned[0:rows, n, :], self.keys.rows[0:rows, n, :]
            nisa.nc_matmul(total, chosen, part, accumulate=n > 0)
        nisa.tensor_tensor(tile.sums, tile.sums, total, nl.add)
        tile.scores.balance.vector += total.shape[1]
        self.turned = self.slopes = None


class Sums:
    """dK and dV of one chunk of keys [≤128, S/128, D] in PSUM, while queries pass by."""

    def __init__(self, keys: Keys, width: int):
        self.keys = keys
        shape = (min(nl.tile_size.pmax, keys.span[1] - keys.span[0]), len(keys.blocks), width)
        self.k = nl.ndarray(shape, nl.float32, nl.psum)
        self.v = nl.ndarray(shape, nl.float32, nl.psum)
        self.begun: set[int] = set()

    def add(self, block: int, weights, grad, slopes, queries) -> None:
        """Add the products of a tile of queries to one block of keys.

        Of a causal attention a later tile may see more of the block than the first one, and some
        keys may be seen by none: an accumulation begins where it is first touched."""
        whole = self.keys.blocks[block][1] - self.keys.blocks[block][0]
        rows = weights.shape[1]
        if block not in self.begun and rows < whole:
            nisa.memset(self.k[0:whole, block, :], 0.0)
            nisa.memset(self.v[0:whole, block, :], 0.0)
        self.begun.add(block)
        nisa.nc_matmul(self.v[0:rows, block, :], weights, grad)
        nisa.nc_matmul(self.k[0:rows, block, :], slopes, queries)

    def store(self, target: "Target", more: bool) -> None:
        """Write both to their places, adding to what windows before have left."""
        for n, (first, last) in enumerate(self.keys.blocks):
            rows = (self.keys.span[0] + first, self.keys.span[0] + last)
            for part, (total, scale) in enumerate(((self.k, target.scale), (self.v, 1.0))):
                if n not in self.begun:
                    nisa.memset(total[0 : last - first, n, :], 0.0)
                target.take(part, total[0 : last - first, n, :], rows, scale, more)


class Target:
    """Where the gradients of the keys and values of one head go."""

    def __init__(self, k, v, scale: float, windows: int):
        self.outs, self.scale, self.left = (sheet(k), sheet(v)), scale, ()
        if windows > 1:
            self.left = tuple(sheet(nl.ndarray(x.shape, nl.float32, nl.hbm)) for x in (k, v))
        self.begun = False

    def take(self, part: int, total, rows: tuple[int, int], scale: float, more: bool) -> None:
        """One block of sums in PSUM; `more` when other windows will add to it."""
        if self.begun:
            added, held = nl.ndarray(total.shape, nl.float32, nl.sbuf), self.left[part].tile(rows)
            nisa.tensor_tensor(added, total, held, nl.add)
            total = added
        kind = nl.float32 if more else self.outs[part].dtype
        done = nl.ndarray(total.shape, kind, nl.sbuf)
        if more or scale == 1.0:
            nisa.tensor_copy(done, total)
        else:
            nisa.tensor_scalar(done, total, nl.multiply, scale)
        (self.left if more else self.outs)[part].store(done, rows[0])


class Backward:
    """The gradients of one attention, head by head of the keys."""

    def __init__(self, operands, grads, scores: Scores):
        (self.q, self.grad, self.out, self.k, self.v), self.grads = operands, grads
        self.scores, self.repeat = scores, self.q.shape[1] // self.k.shape[1]
        self.width, size = self.q.shape[3], scores.dtype.itemsize
        self.chunks = list(spans(self.k.shape[2], CHUNK * 2 // size))
        # Of a tile: q and dO, both also turned, and the sums of dQ.
        each = self.width * (2 * size + 4) + 2 * nl.tile_size.pmax * size
        self.most = max(1, WINDOW_BYTES // each)
        per_key = size * (2 + self.width / nl.tile_size.pmax)
        self.holds = self.k.shape[2] * per_key <= HELD_BYTES

    def run(self) -> None:
        """Write every head."""
        for batch in range(self.k.shape[0]):
            for head in range(self.k.shape[1]):
                self._head(batch, head)

    def _head(self, batch: int, head: int) -> None:
        heads = range(head * self.repeat, (head + 1) * self.repeat)
        rows = list(spans(self.q.shape[2], nl.tile_size.pmax))
        places = [(h, each) for each in rows for h in heads]
        windows = list(spans(len(places), self.most))
        _, grad_k, grad_v = self.grads
        target = Target(grad_k[batch, head], grad_v[batch, head], self.scores.scale, len(windows))
        k, v = self.k[batch, head], self.v[batch, head]
        held = [Keys(k, v, chunk, self.scores, True) for chunk in self.chunks if self.holds]
        for first, last in windows:
            operands = (self.q, self.grad, self.out)
            tiles = [Tile(operands, batch, h, r, self.scores) for h, r in places[first:last]]
            self._find(tiles, held, k, v)
            self._multiply(tiles, held, k, v, target, last < len(places))
            target.begun = True
            for tile in tiles:
                self._store(tile)

    def _pairs(self, tiles, held, k, v, turn_values: bool):
        """(keys, tiles that see some of them) of each chunk; keys are loaded one chunk ahead."""
        if held:
            found = zip(self.chunks, held, strict=True)
        else:
            found = ahead(self.chunks, lambda c: Keys(k, v, c, self.scores, turn_values))
        for chunk, keys in found:
            yield keys, [t for t in tiles if self.scores.seen(t.rows, chunk)]

    def _find(self, tiles, held, k, v) -> None:
        """Maximum and sum of every row of the tiles."""
        items = [
            [tile, keys, n]
            for n, (keys, some) in enumerate(self._pairs(tiles, held, k, v, False))
            for tile in some
        ]

        def multiply(item):
            item.append(self.scores.of(item[0], item[1]))

        stages = [
            (0, multiply),
            (2, lambda item: item[0].add_up(item.pop(), item[2])),
            (1, lambda item: item[0].find_peak(item[3])),
        ]
        pipelined(items, stages)
        for tile in tiles:
            tile.settle()

    def _multiply(self, tiles, held, k, v, target: Target, more: bool) -> None:
        """All products of the tiles with all chunks of keys."""
        items = []
        for keys, some in self._pairs(tiles, held, k, v, True):
            sums = Sums(keys, self.width)
            items += [Pair(tile, keys, sums) for tile in some]
            if some:
                items[-1].is_last = True
            else:
                sums.store(target, more)

        def sum_up(pair):
            pair.sum_up()
            if pair.is_last:
                pair.sums.store(target, more)

        stages = [(0, Pair.multiply), (1, Pair.exponentiate), (2, sum_up), (3, Pair.finish)]
        pipelined(items, stages)

    def _store(self, tile: Tile) -> None:
        done = nl.ndarray(tile.sums.shape, self.grads[0].dtype, nl.sbuf)
        nisa.tensor_scalar(done, tile.sums, nl.multiply, self.scores.scale)
        sheet(self.grads[0][tile.batch, tile.head]).store(done, tile.rows[0])


@jit
def attention_backward(q, k, v, out, grad, mask=None, scale=None, causal=False):
    """Gradients of q, k and v, where `grad` is that of out = attention(q, k, v, mask, scale, …).

    Operands as in `attention`; out and grad are [B, H, T, D].  Products sum in float32; weights
    and their slopes are rounded to the dtype of the operands before they are multiplied again,
    results once.  Queries that see no key have gradients of 0 and add none.  The results are laid
    out in memory as [B, T, H, D].  Raises LimitError for D > 128.
    """
    width = q.shape[3]
    if width > nl.tile_size.pmax:
        raise LimitError(
            f"attention_backward: heads of {width} elements", code="kernels.attention_head"
        )
    grads = []
    for x in (q, k, v):
        b, h, t, d = x.shape
        made = nl.ndarray((b, t, h, d), x.dtype, nl.shared_hbm)
        grads.append(made.permute((0, 2, 1, 3)))
    scores = Scores(1 / sqrt(width) if scale is None else scale, mask, causal, operand_dtype(q, k))
    Backward((q, grad, out, k, v), grads, scores).run()
    return tuple(grads)
