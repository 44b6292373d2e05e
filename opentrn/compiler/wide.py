"""Whole numbers of 32 bits made of narrower ones: products of integers, random bits."""

from opentrn.base import UnsupportedError, declare
from opentrn.graph import Builder, Graph, Pattern, PatternBuilder, Rule, Value, no

# Products of bytes are below 2^16, so that sums of 256 of them are exact in float32.
EXACT_PRODUCTS = 256
DIGIT = 8


def _digits(g: Builder, x: Value) -> list[Value]:
    """An integer as bytes, lowest first, in bfloat16, which has them all; the highest is signed
    where the integer is."""
    if x.op == "convert" and x.args[0].dtype.kind in ("int", "uint"):
        inner = x.args[0]
        signed = inner.dtype.kind == "int" and x.dtype.kind == "uint"
        if inner.dtype.bits < x.dtype.bits and (not signed or x.dtype.bits == 32):
            x = inner  # modulo 2^32 a negative number is the same with or without its sign
    bits, whole = min(x.dtype.bits, 32), x
    if bits > DIGIT:
        whole = g.bitcast_convert(x, "int32") if x.dtype == "uint32" else g.cast(x, "int32")
    found = []
    for first in range(0, bits, DIGIT):
        last = first + DIGIT == bits
        part = whole
        if first:
            move = g.shift_right_arithmetic if last else g.shift_right_logical
            part = move(whole, g.like(whole, first))
        if not last:
            part = g.and_(part, g.like(part, (1 << DIGIT) - 1))
        found.append(g.cast(part, "bfloat16"))
    return found


declare(
    "compiler.integer_product",
    "A matrix product or convolution of 32- or 64-bit integers.",
    rule="the Neuron compiler refuses it: the Tensor Engine would compute with floats, exact to "
    "2**24",
    fix="convert to a float first, x.float() @ y.float(), or compile(..., integer_products=True), "
    "which is exact and runs here only",
    neuron="NCC_EVRF035",
)


def refuse_integer_products(graph: Graph) -> None:
    """UnsupportedError `compiler.integer_product` for products that the Neuron compiler refuses."""
    products = ("dot_general", "convolution")
    refused = [v for v in graph if v.op in products and all(map(_long, v.args))]
    if refused:
        raise UnsupportedError(
            f"{len(refused)} × {refused[0].op} of {refused[0].args[0].dtype}: "
            "the Tensor Engine multiplies floats",
            code="compiler.integer_product",
            at=refused[0].where,
        )


def _long(x: Value) -> bool:
    """Whether it holds integers of 32 or more bits that were no shorter ones before."""
    if x.op == "convert" and x.args[0].dtype.kind in ("int", "uint", "bool"):
        x = x.args[0]
    return x.dtype.kind in ("int", "uint") and x.dtype.bits >= 32


class IntegerProduct(Rule):
    """product of integers → products of their bytes on the Tensor Engine, summed exactly"""

    def find(p: PatternBuilder, x: Pattern, y: Pattern) -> Pattern:
        return p.dot_general(x, y, bind="product")

    def when(x: Value, product: Value) -> bool | no:
        whole = ("int", "uint")
        if x.dtype.kind not in whole or product.dtype.kind not in whole:
            return no("the operands are not integers")
        if "uint64" in map(str, (x.dtype, product.dtype)):
            return no("the chip has no 64-bit numbers")
        if len(product.attrs.lhs_contracting) != 1:
            return no("it sums over no axis, or over several")
        return product.size > 0 and x.size > 0

    def make(g: Builder, x: Value, y: Value, product: Value) -> Value:
        d = product.attrs
        rows, columns = _digits(g, x), _digits(g, y)
        most = product.dtype.bits
        depth = x.shape[d.lhs_contracting[0]]
        total = g.full(product.shape, 0, "int32")
        for i, left in enumerate(rows):
            for j, right in enumerate(columns):
                if DIGIT * (i + j) >= min(most, 32):
                    continue
                for first in range(0, depth, EXACT_PRODUCTS):
                    span = (first, min(first + EXACT_PRODUCTS, depth))
                    made = g.dot_general(
                        _part(g, left, d.lhs_contracting[0], span),
                        _part(g, right, d.rhs_contracting[0], span),
                        d.lhs_contracting, d.rhs_contracting, d.lhs_batch, d.rhs_batch, "float32",
                    )  # fmt: skip
                    whole = g.cast(made, "int32")
                    if i + j:
                        whole = g.shift_left(whole, g.like(whole, DIGIT * (i + j)))
                    total = g.add(total, whole)
        if product.dtype == "uint32":
            return g.bitcast_convert(total, "uint32")
        return g.cast(total, product.dtype)

    def _product(g: Builder, kind: str, other: str, depth: int, result: str = "int32") -> Value:
        x, y = g.input("x", (2, depth), kind), g.input("y", (depth, 3), other)
        x, y = (g.add(g.cast(v, result), g.full(v.shape, 70_000, result))
                if v.dtype == "int32" else g.cast(v, result) for v in (x, y))  # fmt: skip
        return g.dot_general(x, y, lhs_contracting=1, rhs_contracting=0)

    def sample(g: Builder) -> tuple[Value, ...]:
        return (
            IntegerProduct._product(g, "int32", "int32", 300),
            IntegerProduct._product(g, "int8", "uint8", 5),
            IntegerProduct._product(g, "uint16", "int32", 5, "uint32"),
            IntegerProduct._product(g, "int16", "int8", 5, "int16"),
        )

    def refuse(g: Builder) -> Value:
        return g.matmul(g.input("x", (2, 3)), g.input("y", (3, 4)))


def _part(g: Builder, x: Value, axis: int, span: tuple[int, int]) -> Value:
    if span == (0, x.shape[axis]):
        return x
    starts, limits = [0] * x.rank, list(x.shape)
    starts[axis], limits[axis] = span
    return g.slice(x, starts, limits, [1] * x.rank)


# ---------------------------------------------------------------------- random bits

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
TURNS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


class Words:
    """Arithmetic of arrays of 32-bit words."""

    def __init__(self, g: Builder, shape: tuple[int, ...]):
        self.g, self.shape = g, shape

    def number(self, n: int) -> Value:
        """One word everywhere."""
        return self.g.full(self.shape, n & 0xFFFFFFFF, "uint32")

    def carry(self, total: Value, part: Value) -> Value:
        """1 where a sum passed 2^32: it is then less than each of its parts."""
        return self.g.cast(self.g.compare(total, part, direction="LT"), "uint32")

    def low(self, x: Value) -> Value:
        """The lower 16 bits."""
        return self.g.and_(x, self.number(0xFFFF))

    def high(self, x: Value) -> Value:
        """The upper 16 bits."""
        return self.g.shift_right_logical(x, self.number(16))

    def upper(self, x: Value, by: int | Value) -> Value:
        """The upper word of a 64-bit product, from products of halves of words."""
        if isinstance(by, int):
            one, two = self.number(by & 0xFFFF), self.number(by >> 16)
        else:
            one, two = self.low(by), self.high(by)
        low, high = self.low(x), self.high(x)
        first, second, third = low * one, low * two, high * one
        middle = self.high(first) + self.low(second) + self.low(third)
        return high * two + self.high(second) + self.high(third) + self.high(middle)

    def turned(self, x: Value, places: int) -> Value:
        """The bits of a word moved up in a circle."""
        up = self.g.shift_left(x, self.number(places))
        return self.g.or_(up, self.g.shift_right_logical(x, self.number(32 - places)))

    def philox(self, counters: list[Value], key: tuple[Value, Value]) -> list[Value]:
        """Philox4x32 with 10 rounds (Salmon and others, SC 2011)."""
        g, (c0, c1, c2, c3) = self.g, counters
        for turn in range(10):
            keys = [k + self.number(turn * w) for k, w in zip(key, WEYL, strict=True)]
            high0, high1 = self.upper(c0, MULTIPLIERS[0]), self.upper(c2, MULTIPLIERS[1])
            low0, low1 = c0 * self.number(MULTIPLIERS[0]), c2 * self.number(MULTIPLIERS[1])
            c0, c1 = g.xor(g.xor(high1, c1), keys[0]), low1
            c2, c3 = g.xor(g.xor(high0, c3), keys[1]), low0
        return [c0, c1, c2, c3]

    def threefry(self, x0: Value, x1: Value, key: tuple[Value, Value]) -> list[Value]:
        """Threefry2x32 with 20 rounds (Salmon and others, SC 2011)."""
        g = self.g
        keys = (*key, g.xor(g.xor(key[0], key[1]), self.number(PARITY)))
        x0, x1 = x0 + keys[0], x1 + keys[1]
        for turn in range(5):
            for places in TURNS[turn % 2]:
                x0 = x0 + x1
                x1 = g.xor(self.turned(x1, places), x0)
            x0 = x0 + keys[(turn + 1) % 3]
            x1 = x1 + keys[(turn + 2) % 3] + self.number(turn + 1)
        return [x0, x1]


class RandomBits(Rule):
    """rng_bit_generator of a state of four or six words → its rounds in arithmetic of 32 bits"""

    def find(p: PatternBuilder, state: Pattern) -> Pattern:
        return p.get_tuple_element(p.rng_bit_generator(state, bind="call"), bind="part")

    def when(state: Value, call: Value, part: Value) -> bool | no:
        if state.dtype != "uint32":
            return no("the chip has no 64-bit numbers: the state is words of 32 bits")
        known = call.attrs.dtype.bits in (8, 16, 32) and call.type.parts[1].size > 0
        return known or no("bits are 8, 16 or 32 of an element")

    def make(g: Builder, state: Value, call: Value, part: Value) -> Value:
        a, size = call.attrs, call.type.parts[1].size
        four = a.algorithm != "THREE_FRY"
        blocks = _blocks(call)
        if part.attrs.index == 0:
            return _next_state(g, state, blocks)
        word = Words(g, (blocks,))
        w0, w1, w2, w3, *top = (
            g.broadcast(g.slice(state, (n,), (n + 1,), (1,)), (blocks,))
            for n in range(state.size)
        )
        low = g.iota((blocks,), 0, "uint32") + w2
        carry = word.carry(low, w2)
        high = w3 + carry
        if four:
            # Of a state of four words the key is also the upper half of the counter.
            w4, w5 = top or (w0, w1)
            over = word.carry(high, carry)
            above = w4 + over
            made = word.philox([low, high, above, w5 + word.carry(above, over)], (w0, w1))
        else:
            made = word.threefry(low, high, (w0, w1))
        # The words of a counter side by side: along one axis for Threefry, in order for Philox.
        before, half, after, kept = (1, blocks, 1, size) if four else a.laid()
        rows = [g.reshape(m, (before, half, 1, after)) for m in made]
        words = g.reshape(g.concatenate(*rows, dimension=2), (before, len(made) * half, after))
        words = g.slice(words, (0, 0, 0), (before, kept, after), (1, 1, 1))
        words = g.reshape(words, part.shape)
        narrow = g.cast(words, f"uint{a.dtype.bits}")
        return narrow if narrow.dtype == a.dtype else g.bitcast_convert(narrow, a.dtype)

    def _drawn(g: Builder, algorithm: str, kind: str, index: int) -> Value:
        state = g.input("state", (4,), "uint32") - g.full((4,), 2, "uint32")
        call = g.rng_bit_generator(state, algorithm, (3, 5), kind)
        return g.get_tuple_element(call, index)

    def sample(g: Builder) -> tuple[Value, ...]:
        return tuple(
            RandomBits._drawn(g, algorithm, kind, index)
            for algorithm in ("DEFAULT", "THREE_FRY") for kind in ("uint32", "int8")
            for index in (0, 1)
        )  # fmt: skip

    def refuse(g: Builder) -> Value:
        call = g.rng_bit_generator(g.input("state", (2,), "uint64"), "PHILOX", (3,), "uint32")
        return g.get_tuple_element(call, 1)


def _blocks(call: Value) -> int:
    """How many counters the bits of a generator take: each gives two words or four."""
    if call.attrs.algorithm == "THREE_FRY":
        before, half, after, _ = call.attrs.laid()
        return before * half * after
    return -(-call.type.parts[1].size // 4)


def _next_state(g: Builder, state: Value, blocks: int) -> Value:
    """The state with its counter of 64 or 128 bits moved on."""
    word = Words(g, (1,))
    over, moved = word.number(blocks), []
    for n in range(2, state.size):
        part = g.slice(state, (n,), (n + 1,), (1,)) + over
        over = word.carry(part, over)
        moved.append(part)
    return g.concatenate(g.slice(state, (0,), (2,), (1,)), *moved, dimension=0)


WIDE = (IntegerProduct, RandomBits)

__all__ = ["WIDE", "Words", "refuse_integer_products"]
