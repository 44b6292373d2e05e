"""Random numbers whose seed a program does not know: `tf.random.uniform`, `tf.nn.dropout`.

XLA draws them of a generator of its device's, which a pure program has not.  Here they follow by
Philox from words that each call hands in, so that two calls draw two sets of numbers; as on XLA's
devices they are not those TensorFlow draws eagerly.
"""

import numpy as np

from opentrn.graph import Builder, Graph, Value, remake

NAME = "seed"
WORDS = (4,)
# Bits of a uniform number in [0, 1): as many as the significand of its dtype stores.
DIGITS = {"float32": 23, "float16": 10, "bfloat16": 7}
WORD = 32


class Seed:
    """What stands among the captured values for the words a call hands in."""

    def read(self) -> np.ndarray:
        """Fresh words of TensorFlow's global generator, which `tf.random.set_seed` sets back."""
        import tensorflow as tf

        drawn = tf.random.uniform(WORDS, tf.int32.min, tf.int32.max, tf.int32)
        return drawn.numpy().view(np.uint32)


def seeded(graph: Graph) -> Graph:
    """The graph with the input `seed` after the others, of which its draws are made; the graph
    itself where it has none of them.

    Draws inside loops and branches stay as they are: each turn would draw the same numbers."""
    if not any(map(_is_made, graph)):
        return graph
    seed = Builder().input(NAME, WORDS, "uint32")
    opened = Graph([*graph.inputs, seed], graph.outputs, graph.constants, name=graph.name,
                  output_names=graph.output_names)  # fmt: skip
    return opened.rebuild(lambda value, args: _drawn(seed, value, args) if _is_made(value)
                         else remake(value, args))  # fmt: skip


def _is_made(value: Value) -> bool:
    whole = value.op == "rng" and str(value.dtype) in ("int32", "uint32", "bool")
    return whole or (value.op == "rng" and str(value.dtype) in DIGITS)


def _drawn(seed: Value, value: Value, args: tuple[Value, ...]) -> Value:
    """The numbers of one draw of a distribution between, or by, its two scalars."""
    g, a = Builder(value.where), value.attrs
    low, high = (g.broadcast(x, value.shape) for x in args)
    if value.dtype == "bool":
        return g.compare(g.and_(_bits(g, seed, value, 0), g.full(a.shape, 1, "uint32")),
                         g.full(a.shape, 0, "uint32"), direction="NE")  # fmt: skip
    if value.dtype.kind != "float":
        # Modulo 2^32 the span of two integers is the same with and without their signs.
        span, first = (_as(g, x, "uint32") for x in (g.subtract(high, low), low))
        return _as(g, g.add(g.remainder(_bits(g, seed, value, 0), span), first), value.dtype)
    low, high = g.cast(low, "float32"), g.cast(high, "float32")
    one = _uniform(g, seed, value, 0)
    if a.distribution == "UNIFORM":
        return g.cast(g.add(g.multiply(one, g.subtract(high, low)), low), value.dtype)
    # Box and Muller, "A note on the generation of random normal deviates" (1958).
    far = g.sqrt(g.multiply(g.log(g.subtract(g.like(one, 1), one)), g.like(one, -2)))
    turn = g.multiply(_uniform(g, seed, value, 1), g.like(one, 2 * np.pi))
    normal = g.multiply(far, g.cosine(turn))
    return g.cast(g.add(g.multiply(normal, high), low), value.dtype)


def _as(g: Builder, x: Value, kind: str) -> Value:
    return x if x.dtype == kind else g.bitcast_convert(x, kind)


def _uniform(g: Builder, seed: Value, value: Value, part: int) -> Value:
    """Numbers in [0, 1) as float32, with the digits of the value's dtype."""
    digits = DIGITS[str(value.dtype)] if value.attrs.distribution == "UNIFORM" else 23
    bits = _bits(g, seed, value, part)
    whole = g.cast(g.shift_right_logical(bits, g.like(bits, WORD - digits)), "float32")
    return g.multiply(whole, g.like(whole, 2.0**-digits))


def _bits(g: Builder, seed: Value, value: Value, part: int) -> Value:
    """32 bits of each element: keyed by the seed, counted from the number of the draw."""
    first = g.constant(np.array([0, 0, value.attrs.number, part], np.uint32))
    key, rest = (g.slice(seed, (n,), (n + 2,), (1,)) for n in (0, 2))
    counter = g.xor(first, g.concatenate(rest, rest, dimension=0))
    state = g.concatenate(key, counter, dimension=0)
    call = g.rng_bit_generator(state, "PHILOX", value.shape, "uint32")
    return g.get_tuple_element(call, 1)


__all__ = ["Seed", "seeded"]
