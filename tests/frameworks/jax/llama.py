"""A Llama-like model in flax.nnx and its training step with optax's AdamW, in jax alone."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx


def linear(inner, outer, rngs, dtype):
    return nnx.Linear(inner, outer, use_bias=False, dtype=dtype, param_dtype=jnp.float32,
                      rngs=rngs)  # fmt: skip


class Attention(nnx.Module):
    """Grouped queries, rotary positions, causal."""

    def __init__(self, width, heads, groups, rngs, dtype):
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.q, self.o = (linear(width, width, rngs, dtype) for _ in range(2))
        self.k, self.v = (linear(width, groups * self.size, rngs, dtype) for _ in range(2))

    def __call__(self, x, cos, sin):
        batch, length, width = x.shape

        def split(y, heads):
            return y.reshape(batch, length, heads, self.size)

        def rotated(y):
            a, b = jnp.split(y, 2, -1)
            return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(y.dtype)

        q = rotated(split(self.q(x), self.heads))
        k, v = rotated(split(self.k(x), self.groups)), split(self.v(x), self.groups)
        k, v = (jnp.repeat(y, self.heads // self.groups, 2) for y in (k, v))
        scores = jnp.einsum("bthd,bshd->bhts", q, k).astype(jnp.float32) / np.sqrt(self.size)
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e30)
        share = jax.nn.softmax(scores, -1).astype(x.dtype)
        return self.o(jnp.einsum("bhts,bshd->bthd", share, v).reshape(batch, length, width))


class Block(nnx.Module):
    """Attention and a gated feed-forward layer, each after a norm."""

    def __init__(self, width, heads, groups, rngs, dtype):
        self.attention = Attention(width, heads, groups, rngs, dtype)
        self.first, self.second = (nnx.RMSNorm(width, dtype=dtype, rngs=rngs) for _ in range(2))
        self.gate, self.up = (linear(width, 2 * width, rngs, dtype) for _ in range(2))
        self.down = linear(2 * width, width, rngs, dtype)

    def __call__(self, x, cos, sin):
        x = x + self.attention(self.first(x), cos, sin)
        h = self.second(x)
        return x + self.down(jax.nn.silu(self.gate(h)) * self.up(h))


class Llama(nnx.Module):
    """Token ids in, logits out."""

    def __init__(self, layers, vocabulary, width, heads, groups, dtype):
        rngs = nnx.Rngs(0)
        self.table = nnx.Embed(vocabulary, width, dtype=dtype, param_dtype=jnp.float32, rngs=rngs)
        self.blocks = nnx.List([Block(width, heads, groups, rngs, dtype) for _ in range(layers)])
        self.norm = nnx.RMSNorm(width, dtype=dtype, rngs=rngs)
        self.head = linear(width, vocabulary, rngs, dtype)
        self.size = width // heads

    def __call__(self, ids):
        turns = 1.0 / 10000 ** (jnp.arange(0, self.size, 2) / self.size)
        angles = jnp.arange(ids.shape[1])[:, None] * turns[None]
        cos, sin = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]
        x = self.table(ids)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x)).astype(jnp.float32)


def training(layers=2, vocabulary=64, width=32, heads=4, groups=2, dtype=jnp.bfloat16):
    """(parameters, the optimiser's state, the step: new ones of both, the loss, the gradients)."""
    form, params = nnx.split(Llama(layers, vocabulary, width, heads, groups, dtype))
    optimizer = optax.adamw(1e-2, weight_decay=0.1)

    def loss_of(params, ids):
        logits = nnx.merge(form, params)(ids[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]).mean()

    def step(params, state, ids):
        loss, grads = jax.value_and_grad(loss_of)(params, ids)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss, grads

    return params, optimizer.init(params), step
