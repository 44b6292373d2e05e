"""Which degrees of parallelism and which lengths a model allows, and why not the others."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from opentrn.base.errors import LimitError
from opentrn.workloads import Model


@dataclass(frozen=True, slots=True)
class Degree:
    """One degree: whether it is legal, and what it costs or why it is not.

    `copies` is how often each key and value head is stored, `padded` how many query heads are
    added so that they divide.
    """

    value: int
    legal: bool
    why: str = ""
    copies: float = 1.0
    padded: int = 0


@dataclass(frozen=True)
class Degrees:
    """The degrees a model allows on so many devices."""

    tp: tuple[Degree, ...]
    pp: tuple[int, ...]
    cp: tuple[int, ...]
    ep: tuple[int, ...]

    @property
    def legal_tp(self) -> tuple[int, ...]:
        """Tensor-parallel degrees that divide the heads."""
        return tuple(d.value for d in self.tp if d.legal)


CONTEXTS = (1, 2, 4, 8, 16, 32)
"""Degrees of context parallelism that are tried."""


def divisors(number: int, most: int | None = None) -> list[int]:
    """All whole numbers up to `most` that divide it, in order."""
    most = number if most is None else most
    small = [n for n in range(1, min(isqrt(number), most) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small if number // n <= most)})


def default_sequence(m: Model) -> int:
    """Tokens of a sequence when none are asked for: the model's context, 8,192 at most."""
    return min(m.context, 8192)


def longer(m: Model, tokens: int) -> str:
    """A note when a sequence is longer than a model was made for, else nothing.

    Learned positions end: beyond them LimitError `plan.request`, with the longest that there is.
    """
    last = min(m.positions, m.context) or m.patches  # OPT's table has two that are for padding
    if last and tokens > last:
        raise LimitError(f"{tokens:,} tokens: {m.name} has learned positions for {last:,}",
                         code="plan.request", fix=f"at most {last:,} tokens")  # fmt: skip
    if tokens <= m.context:
        return ""
    return f"{tokens:,} tokens are beyond the {m.context:,} that {m.name} was made for"


WIDE = 2.0
"""Bytes of a weight that is not quantised: bfloat16."""


def as_stored(m: Model, weight_bytes: float) -> str:
    """A note when weights that are published quantised are served as bfloat16, else nothing."""
    if not m.stored or weight_bytes != WIDE:
        return ""
    return (f"the weights of {m.name} are stored as {m.stored}, and taken for 2 bytes each: "
            "--weight-bytes says otherwise")  # fmt: skip


def tensor_degree(m: Model, tp: int) -> Degree:
    """Whether `tp` divides a model's heads, and what it does to key and value heads.

    More devices than key-value heads mean copies of them; that is legal and costs cache. Query
    heads that do not divide would have to be padded, which frameworks do only on request.
    """
    if not m.attends:
        fine = m.inner % tp == 0
        return Degree(tp, fine, "" if fine else f"inner width {m.inner} does not divide by {tp}")
    heads, kv = m.heads, m.kv_heads
    copies = 1.0 if m.latent_kv else (-(-kv // tp)) * tp / kv
    padded = -heads % tp
    if padded:
        more = f"; {heads + padded} heads with {padded} padded ones would"
        note = "" if kv % tp == 0 or m.latent_kv else _kv_note(kv, tp, copies)
        return Degree(tp, False, f"{heads} heads do not divide by {tp}{more}{note}", copies, padded)
    if m.latent_kv or kv % tp == 0:
        return Degree(tp, True)
    if tp % kv == 0:
        return Degree(tp, True, f"each of {kv} KV heads is stored {tp // kv} times", copies)
    note = f"{kv} KV heads and {tp} devices do not divide{_kv_note(kv, tp, copies)}"
    return Degree(tp, False, note, copies)


def _kv_note(kv: int, tp: int, copies: float) -> str:
    return f"; {kv} KV heads become {round(kv * copies)}: {copies:.2f} x the cache"


def degrees(m: Model, devices: int, domain: int, sequence: int = 1) -> Degrees:
    """The degrees for `devices` devices, of which `domain` are joined by fast links.

    Tensor parallelism beyond the domain is not considered: it would cross the network in every
    layer. Context parallelism divides sequences of 8,192 tokens or more.
    """
    top = min(devices, domain, 256)
    tp = tuple(tensor_degree(m, t) for t in divisors(devices, top))
    pp = tuple(divisors(devices, m.layers))
    cp = tuple(c for c in CONTEXTS if c == 1 or sequence // c >= 4096 and m.attends)
    ep = tuple(divisors(m.experts)) if m.experts else (1,)
    return Degrees(tp, pp, cp, ep)
