"""Random numbers: the generators of the Vector and GpSimd engines, and dropout.

Generators.  Documented (NKI 0.6 API reference; Trainium3 architecture guide, "XORWOW-based PRNG"):
each lane of GpSimd keeps one XORWOW state of 6 uint32, each lane of the Vector Engine of
NeuronCore-v4 four of them, used in turn; before that the Vector Engine has an LFSR.  XORWOW itself
is published: G. Marsaglia, "Xorshift RNGs", J. Statistical Software 8(14), 2003, page 5.  Assumed,
for nothing says it: the words of a state are x, y, z, w, v, d in that order; the LFSR is the
xorshift of XORWOW without its counter; a seed and the state at power-on are spread over lanes and
words by the finaliser of MurmurHash3.  So streams repeat exactly, but bit patterns are not those
of the chip.  A row of numbers advances the lanes it is written to, and only these.
"""

import numpy as np

from opentrn.base import ON_CHIP, UsageError, dtypes, float32, uint32
from opentrn.isa.enums import engine
from opentrn.isa.operands import Cycles, Dim, Flag, In, OperandForm, Out, Scalar, assumed, stated
from opentrn.isa.vector_laws import VectorInstr, as_bits, engine_cycles

TILE = "sbuf|psum"
WORDS, STREAMS = 6, 4
# The step of the counter d (Marsaglia 2003).
WEYL = 362437
INTEGERS = (
    dtypes.int8,
    dtypes.int16,
    dtypes.int32,
    dtypes.uint8,
    dtypes.uint16,
    dtypes.uint32,
)
UNIFORM = (
    *(dtypes.float8_e4m3, dtypes.float8_e5m2, dtypes.float16, dtypes.bfloat16, float32),
    *(dtypes.tfloat32, *INTEGERS),
)
VALUES = tuple(d for d in ON_CHIP if d.kind != "packed")


# ---------------------------------------------------------------------- generators


def streams(engine_name: str, generation: int) -> int:
    """How many states each lane keeps: four on the Vector Engine of NeuronCore-v4, else one."""
    return STREAMS if engine_name == "vector" and generation >= 4 else 1


def seeded(seed: int, lanes: int, states: int) -> np.ndarray:
    """uint32 [lanes, 6 · states] from a 32-bit seed (assumed: finaliser of MurmurHash3)."""
    words = np.arange(1, lanes * WORDS * states + 1, dtype=np.uint32) * np.uint32(0x9E3779B9)
    words += np.uint32(seed & 0xFFFFFFFF)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        words ^= words >> np.uint32(shift)
        words *= np.uint32(factor)
    words ^= words >> np.uint32(16)
    return words.reshape(lanes, WORDS * states)


def xorwow(state: np.ndarray, count: int, step: int = WEYL) -> tuple[np.ndarray, np.ndarray]:
    """`count` words of each of n generators: (uint32 [n, count], the states [n, 6] after them).

    One word: t = x ^ x>>2; x, y, z, w = y, z, w, v; v ^= v<<4 ^ t ^ t<<1; d += 362437; v + d.
    With step 0 it is a pure xorshift, a linear-feedback shift register over 160 bits.
    """
    history = np.empty((count + 5, len(state)), np.uint32)
    history[:5] = state[:, :5].T
    v, shifted = history[4].copy(), np.empty(len(state), np.uint32)
    four, one, two = np.uint32(4), np.uint32(1), np.uint32(2)
    for first in range(0, count, 5):
        # five steps need only words that are known already
        t = history[first : min(first + 5, count)]
        t = t ^ (t >> two)
        t ^= t << one
        for n, mixed in enumerate(t, first + 5):
            np.left_shift(v, four, out=shifted)
            v ^= shifted
            v ^= mixed
            history[n] = v
    counter = np.arange(1, count + 1, dtype=np.uint32)[:, None] * np.uint32(step)
    words = history[5:] + (counter + state[:, 5])
    d = state[:, 5:] + np.uint32(count * step & 0xFFFFFFFF)
    return words.T, np.concatenate([history[count:].T, d], axis=1)


def draw(i, tile: OperandForm, generator: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """uint32 [P, F] for a tile, and the states of all lanes afterwards.

    Element f of a lane with four states comes from state f % 4.
    """
    states = streams(i.engine_name, i.chip.generation)
    linear = i.engine_name == "vector" and states == 1
    lanes = slice(tile.partition, tile.partition + tile.partitions)
    own = generator[lanes].reshape(-1, WORDS)
    each = -(-tile.free // states)
    words, after = xorwow(own, each, 0 if linear else WEYL)
    words = words.reshape(tile.partitions, states, each).transpose(0, 2, 1)
    changed = generator.copy()
    changed[lanes] = after.reshape(tile.partitions, -1)
    return words.reshape(tile.partitions, -1)[:, : tile.free], changed


class RandomInstr(VectorInstr, abstract=True):
    """An instruction that reads or changes the generator of its engine."""

    state = "generator"

    def fresh(self) -> np.ndarray:
        """The state at power-on: that of seed 0."""
        states = streams(self.engine_name, self.chip.generation)
        return seeded(0, int(self.chip.core.partitions), states)


def _rate(i, chip) -> Cycles:
    """One word a lane and cycle; four where a lane has four generators (NG4)."""
    return engine_cycles(i, i.F / streams(i.engine_name, chip.generation))


# ---------------------------------------------------------------------- instructions


class rng(RandomInstr):
    """dst[P,F] = 32 random bits for each element, cut to the low bits of its integer dtype."""

    engines = ("vector", "gpsimd")
    dst = Out(TILE, "P F", *INTEGERS)
    engine = Flag(engine.vector, "vector, or gpsimd (from NeuronCore-v3 on, SBUF only)")

    def laws(i):
        """GpSimd from NeuronCore-v3 on."""
        yield _gpsimd_since_v3(i)

    def exact(self) -> bool:
        """Bits go out as they are."""
        return True

    def run(i, generator):
        """The low bits of the generator's words."""
        words, after = draw(i, i.dst, generator)
        return {"dst": as_bits(words, i.dst.dtype.carrier), "generator": after}

    cycles = assumed(
        "NG4 XORWOW: the Vector Engine of v4 makes 4 words a lane and cycle; no figure for the "
        "others, one a cycle (as rand2's ancestors in ISA v2.26.1: max(MIN_II, N))",
        _rate,
    )


def _gpsimd_since_v3(i):
    return (
        i.engine_name != "gpsimd" or i.chip.generation >= 3,
        f"on {i.chip.name} only the Vector Engine makes random numbers (GpSimd from "
        "NeuronCore-v3 on)",
        "pass engine=nisa.engine.vector",
    )


class rand2(RandomInstr):
    """dst[P,F] = min + u·(max − min), u uniform in [0, 1), in float32; converted to dst's dtype.

    `min` and `max` are numbers or [P, 1] tiles.  u is the upper 24 bits of a word (assumed).
    """

    generations = (4,)
    dst = Out(TILE, "P F", *UNIFORM)
    min = Scalar(TILE, "P 1", float32)
    max = Scalar(TILE, "P 1", float32)

    def run(i, min, max, generator):
        """Uniform numbers; UsageError where max ≤ min."""
        low, high = np.reshape(np.float32(min), (-1, 1)), np.reshape(np.float32(max), (-1, 1))
        if not (low < high).all():
            i.bad(
                UsageError,
                "`max` is not above `min`",
                "min < max in every partition",
                "swap the two, or use nisa.memset for a constant",
                "max",
            )
        words, after = draw(i, i.dst, generator)
        u = (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
        return {"dst": low + u * (high - low), "generator": after}

    cycles = stated(
        "NG4 XORWOW: the Vector Engine makes 4 words for each lane and cycle: max(MIN_II, N/4)",
        _rate,
    )


class dropout(RandomInstr):
    """dst = 0 where a random number u in [0, 1) is below prob, data elsewhere, bit by bit.

    `prob` is a number or a [P, 1] tile.  Kept elements are not scaled.
    """

    dst = Out(TILE, "P F", *VALUES)
    data = In(TILE, "P F", *VALUES)
    prob = Scalar(TILE, "P 1")

    def laws(i):
        """Dtypes of the result and of the probability."""
        yield (
            i.dst.dtype == i.data.dtype,
            f"`dst` has the dtype of `data`: {i.data.dtype}, not {i.dst.dtype}",
            f"allocate dst with dtype={i.data.dtype}",
        )
        if isinstance(i.prob, OperandForm):
            whole = not i.data.dtype.is_float
            yield (
                i.prob.dtype == float32 if whole else i.prob.dtype.is_float,
                f"`prob` is {'float32' if whole else 'a float'} for {i.data.dtype} data, not "
                f"{i.prob.dtype}",
                "copy `prob` into a float32 tile with nisa.tensor_copy",
            )

    def relate(self, operands: tuple) -> None:
        """A number is a probability; UsageError `dropout.prob`."""
        prob = operands[self.operand_names.index("prob")]
        if isinstance(prob, int | float) and not 0 <= prob <= 1:
            self.bad(
                UsageError,
                f"`prob` is {prob}",
                "`prob` is the probability that an element becomes zero, 0 to 1",
                "pass 1 - keep_probability",
                "prob",
            )

    def exact(self) -> bool:
        """Elements are kept bit by bit."""
        return True

    def run(i, data, prob, generator):
        """`data` with some elements replaced by zero."""
        words, after = draw(i, i.dst, generator)
        chance = np.reshape(np.asarray(prob, np.float64), (-1, 1))
        dropped = words * 2.0**-32 < chance
        kept = np.where(dropped.reshape(data.shape), data.dtype.type(0), data)
        return {"dst": kept, "generator": after}

    cycles = stated(
        "NKI ISA v2.26.1 dropout: max(MIN_II, N)", lambda i, chip: engine_cycles(i, i.F)
    )


class set_rng_seed(RandomInstr):
    """Seed the generators of all lanes of the Vector Engine from one 32-bit value."""

    src_seeds = In(TILE, "P F", dtypes.int32, uint32, float32)

    P = Dim(1, "the seed is one value")
    F = Dim(1, "the seed is one value")

    def run(i, src_seeds, generator=None):
        """The states that the bits of the seed give."""
        seed = np.ascontiguousarray(src_seeds).reshape(-1).view(np.uint32)
        lanes, states = int(i.chip.core.partitions), streams("vector", i.chip.generation)
        return {"generator": seeded(int(seed[0]), lanes, states)}

    cycles = assumed(
        "no public figure; one minimum initiation interval",
        lambda i, chip: engine_cycles(i, 1.0),
    )


def _state_laws(i, name: str):
    """Engines, generations and the number of words of a state in memory."""
    tile = getattr(i, name)
    yield (
        i.engine_name != "vector" or i.chip.generation >= 4,
        f"the state of the Vector Engine's generator can be reached from NeuronCore-v4 (trn3) on, "
        f"not on {i.chip.name}",
        "pass engine=nisa.engine.gpsimd, or seed with nisa.set_rng_seed",
    )
    words = WORDS * streams(i.engine_name, i.chip.generation)
    yield (
        tile.free == words,
        f"a lane's state is {words} uint32 on the {i.engine_name} engine, `{name}` has {tile.free}",
        f"give `{name}` the shape (lanes, {words})",
    )


_STATE_COST = assumed(
    "no public figure; the words of a lane pass one a cycle",
    lambda i, chip: engine_cycles(i, i.F),
)


class rand_set_state(RandomInstr):
    """Generator of lane p = src_seeds[p, :]: 6 words (GpSimd) or 24 (Vector, NeuronCore-v4)."""

    engines = ("gpsimd", "vector")
    generations = (3, 4)
    src_seeds = In("sbuf", "P F", uint32)
    engine = Flag(engine.gpsimd, "gpsimd, or vector (from NeuronCore-v4 on)")

    def laws(i):
        """Engines and sizes."""
        yield from _state_laws(i, "src_seeds")

    def run(i, src_seeds, generator):
        """The states with those of some lanes replaced."""
        changed, first = generator.copy(), i.src_seeds.partition
        changed[first : first + i.P] = src_seeds.reshape(i.P, i.F)
        return {"generator": changed}

    cycles = _STATE_COST


class rand_get_state(RandomInstr):
    """dst[p, :] = generator of lane p: 6 words (GpSimd) or 24 (Vector, NeuronCore-v4)."""

    engines = ("gpsimd", "vector")
    generations = (3, 4)
    dst = Out(TILE, "P F", uint32)
    engine = Flag(engine.gpsimd, "gpsimd, or vector (from NeuronCore-v4 on)")

    def laws(i):
        """Engines, sizes, and PSUM only for the Vector Engine."""
        yield from _state_laws(i, "dst")

    def exact(self) -> bool:
        """Words go out as they are."""
        return True

    def run(i, generator):
        """The words of these lanes."""
        first = i.dst.partition
        return {"dst": generator[first : first + i.P].copy().reshape(i.dst.shape)}

    cycles = _STATE_COST


__all__ = [
    "dropout",
    "rand2",
    "rand_get_state",
    "rand_set_state",
    "rng",
    "seeded",
    "set_rng_seed",
    "xorwow",
]
