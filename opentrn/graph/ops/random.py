"""Random numbers: bits that follow from a state by a published algorithm, and draws that do not.

Philox4x32-10 and Threefry2x32-20 are those of Salmon, Moraes, Dror and Shaw, "Parallel random
numbers: as easy as 1, 2, 3" (SC 2011).  How the state is laid out, and which words make an element,
is StableHLO's implementation-defined part; it follows XLA's, so that JAX draws the same numbers
here as on its own CPU device.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from opentrn.base import DType, uint32
from opentrn.graph import carriers
from opentrn.graph.ops.define import Ints, Op, Traffic, TupleType, Type, Wrong, count, stream

U32 = np.uint32
_MASK = np.uint64(0xFFFFFFFF)
_PHILOX_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_PHILOX_KEYS = (0x9E3779B9, 0xBB67AE85)
_THREEFRY_TURNS = ((13, 15, 26, 6), (17, 29, 16, 24))
_THREEFRY_PARITY = 0x1BD11BDA


def philox(counters: list[np.ndarray], key: tuple[int, int]) -> list[np.ndarray]:
    """Philox4x32 with 10 rounds: four words of each counter of four words."""
    c0, c1, c2, c3 = (c.astype(np.uint64) for c in counters)
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * _PHILOX_MULTIPLIERS[0], c2 * _PHILOX_MULTIPLIERS[1]
        c0, c1, c2, c3 = ((p1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0), p1 & _MASK,
                          (p0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1), p0 & _MASK)
        k0, k1 = (k0 + _PHILOX_KEYS[0]) & 0xFFFFFFFF, (k1 + _PHILOX_KEYS[1]) & 0xFFFFFFFF
    return [c.astype(U32) for c in (c0, c1, c2, c3)]


def threefry(x0: np.ndarray, x1: np.ndarray, key: tuple[int, int]) -> tuple[np.ndarray, ...]:
    """Threefry2x32 with 20 rounds: two words of each counter of two words."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ _THREEFRY_PARITY)
    x0, x1 = x0 + U32(keys[0]), x1 + U32(keys[1])
    for turn in range(5):
        for places in _THREEFRY_TURNS[turn % 2]:
            x0 = x0 + x1
            x1 = (x1 << U32(places) | x1 >> U32(32 - places)) ^ x0
        x0 = x0 + U32(keys[(turn + 1) % 3])
        x1 = x1 + U32((keys[(turn + 2) % 3] + turn + 1) & 0xFFFFFFFF)
    return x0, x1


def _words(number: int) -> tuple[int, int]:
    return number & 0xFFFFFFFF, number >> 32 & 0xFFFFFFFF


class RngBitGenerator(Op):
    """Random bits that follow from a state, and the next state: (state, bits).

    PHILOX and DEFAULT: the state is a 64-bit key and a counter of 64 or 128 bits; THREE_FRY: a key
    and a 64-bit counter.  Four or six words of 32 bits are read as two or three of 64."""

    operands = ("state",)
    law = ("the state is uint64[2] or [3] ([2] for THREE_FRY), or uint32 words of the same bits; "
           "the bits have an integer or float dtype of 8 to 64 bits")
    choices: ClassVar = {"algorithm": ("DEFAULT", "THREE_FRY", "PHILOX")}
    algorithm: str
    shape: Ints
    dtype: DType

    def result(self, state: Type) -> TupleType:
        wide = state.dtype == "uint64" and state.shape in ((2,), (3,))
        if not wide and state not in (Type((4,), uint32), Type((6,), uint32)):
            raise Wrong(f"the state is {state}")
        if self.algorithm == "THREE_FRY" and state.shape in ((3,), (6,)):
            raise Wrong(f"the state of THREE_FRY is {state}, not uint64[2]")
        if self.dtype.kind not in ("int", "uint", "float") or self.dtype.bits < 8:
            raise Wrong(f"bits cannot be {self.dtype}", kind="dtype")
        return TupleType((state, Type(self.shape, self.dtype)))

    def evaluate(self, out: TupleType, state: np.ndarray) -> tuple[np.ndarray, ...]:
        words = np.ascontiguousarray(state).view(np.uint64)
        kind, number = self.dtype, count(self.shape)
        if self.algorithm == "THREE_FRY":
            bits, moved = _threefry_bits(words, self)
        else:
            bits, moved = _philox_bits(words, number, kind.bits)
        stored = bits.view(carriers.storage(kind)).reshape(self.shape)
        return moved.view(state.dtype).reshape(state.shape), carriers.enter(stored, kind)

    def laid(self) -> tuple[int, int, int, int]:
        """(elements before, half the axis, elements after, the axis) along which THREE_FRY lays the
        two words of a counter side by side: the first axis of even size, else the longest."""
        shape = self.shape or (1,)
        even = (n for n, size in enumerate(shape) if size % 2 == 0)
        axis = next(even, shape.index(max(shape)))
        half = -(-shape[axis] // 2)
        return count(shape[:axis]), half, count(shape[axis + 1:]), shape[axis]

    def flops(self, out: TupleType, state: Type) -> int:
        words = max(out.parts[1].nbytes // 4, 1)
        # Integer operations of the rounds: 8 each make 4 words (Philox), 3 each make 2 (Threefry).
        return words * 20 if self.algorithm != "THREE_FRY" else words * 30

    def traffic(self, out: TupleType, state: Type) -> Traffic:
        return stream(out, state)


def _philox_bits(state: np.ndarray, number: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """`number` elements of `bits` bits, and the next state: each counter gives four words.

    Of a state of two numbers the key is also the upper half of the counter."""
    blocks = -(-number // (2 if bits == 64 else 4))
    start, above = state[1], state[2] if len(state) == 3 else state[0]
    low = np.arange(blocks, dtype=np.uint64) + start
    high = above + (low < start).astype(np.uint64)
    counters = [low & _MASK, low >> np.uint64(32), high & _MASK, high >> np.uint64(32)]
    words = np.stack(philox(counters, _words(int(state[0]))), axis=-1).reshape(-1)
    end = int(start) + blocks
    moved = state.copy()
    moved[1] = end & (1 << 64) - 1
    if len(state) == 3:
        moved[2] = (int(above) + (end >> 64)) & (1 << 64) - 1
    return _elements(words, number, bits), moved


def _threefry_bits(state: np.ndarray, call: RngBitGenerator) -> tuple[np.ndarray, np.ndarray]:
    """Elements of `bits` bits, and the next state: each counter gives two words.

    Elements of 64 bits take both words of a counter, others one, laid out as `laid` says."""
    number, bits = count(call.shape), call.dtype.bits
    before, half, after, size = (number, 1, 1, 1) if bits == 64 else call.laid()
    blocks = before * half * after
    counter = np.arange(blocks, dtype=np.uint64) + state[1]
    halves = (counter & _MASK).astype(U32), (counter >> np.uint64(32)).astype(U32)
    words = [w.reshape(before, half, after) for w in threefry(*halves, _words(int(state[0])))]
    moved = np.array([state[0], state[1] + np.uint64(blocks)], np.uint64)
    if bits == 64:
        return _elements(np.stack(words, axis=-1).reshape(-1), number, bits), moved
    whole = np.stack(words, axis=2).reshape(before, 2 * half, after)[:, :size]
    return _elements(whole.reshape(-1), number, bits), moved


def _elements(words: np.ndarray, number: int, bits: int) -> np.ndarray:
    """The first elements of so many bits: two words make one of 64, one word one of fewer."""
    if bits == 64:
        return np.ascontiguousarray(words).view(np.uint64)[:number]
    return words[:number].astype(f"u{bits // 8}")


class Rng(Op):
    """Random numbers of a distribution: UNIFORM in [a, b), NORMAL of mean a and deviation b.

    The `number`-th draw of a program: two draws are two values.  The reference draws by NumPy's
    Philox generator keyed by `number`, so an evaluation can be repeated."""

    drawn = True
    operands = ("a", "b")
    law = "a and b are scalars of one dtype; NORMAL needs floats"
    choices: ClassVar = {"distribution": ("UNIFORM", "NORMAL")}
    distribution: str
    shape: Ints
    number: int

    def result(self, a: Type, b: Type) -> Type:
        if a != b or a.shape:
            raise Wrong(f"a is {a}, b is {b}")
        if a.dtype.kind == "complex" or self.distribution == "NORMAL" and a.dtype.kind != "float":
            raise Wrong(f"cannot draw {a.dtype}", kind="dtype")
        return Type(self.shape, a.dtype)

    def evaluate(self, out: Type, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        source = np.random.Generator(np.random.Philox(key=self.number))
        low, high = float(a), float(b)
        if self.distribution == "NORMAL":
            return source.normal(low, high, self.shape)
        if out.dtype.kind == "float":
            return source.uniform(low, high, self.shape)
        if out.dtype.kind == "bool":
            return source.integers(0, 2, self.shape).astype(np.bool_)
        return source.integers(int(a), max(int(b), int(a) + 1), self.shape).astype(a.dtype)

    def flops(self, out: Type, a: Type, b: Type) -> int:
        return 20 * out.size  # as RngBitGenerator's

    def traffic(self, out: Type, a: Type, b: Type) -> Traffic:
        return Traffic(a.nbytes + b.nbytes, out.nbytes)
