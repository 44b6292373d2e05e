"""Does a model fit one machine, at which tensor-parallel degree, and what is in the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opentrn.base.errors import UsageError
from opentrn.base.units import bytes_text
from opentrn.cost import Platform, Serving, Split, memory, platform, table_text
from opentrn.plan.legal import Degree, as_stored, default_sequence, divisors, longer, tensor_degree
from opentrn.workloads import Model, kv_bytes, model, parameters

COMPILER_BYTES = 8e9
"""Host memory a compilation takes beside two copies of the weights; assumed (users report out-of-
memory kills on 32 GiB hosts with a model of 16 GB)."""


@dataclass(frozen=True)
class Row:
    """One tensor-parallel degree: bytes of a core by kind, whether they fit, and remarks."""

    degree: Degree
    memory: Mapping[str, float]
    capacity: float

    @property
    def used(self) -> float:
        """Bytes of the fullest core."""
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        """Whether they fit."""
        return self.used <= self.capacity

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a user must know of this degree: padding and copied heads. Empty is good news."""
        return (self.degree.why,) if self.degree.why else ()


@dataclass(frozen=True)
class Fit:
    """A model on one machine, served: rows by tensor-parallel degree, and the host's part.

    `kv_token` is bytes of cache for one token, all heads stored once.
    """

    model: str
    machine: str
    rows: tuple[Row, ...]
    weight_bytes: float
    kv_token: float
    kv_total: float
    legal: tuple[int, ...]
    warnings: tuple[str, ...]

    def at(self, tp: int) -> Row:
        """The row of one degree."""
        return next(row for row in self.rows if row.degree.value == tp)

    @property
    def fits(self) -> bool:
        """Whether some degree fits, padded heads allowed."""
        return any(row.fits for row in self.rows)

    def json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "model": self.model, "machine": self.machine, "fits": self.fits,
            "weight_bytes": self.weight_bytes, "kv_bytes_per_token": self.kv_token,
            "legal_tp": list(self.legal), "warnings": list(self.warnings),
            "rows": [
                {"tp": r.degree.value, "fits": r.fits, "legal": r.degree.legal,
                 "memory_per_core": {**r.memory, "total": r.used, "capacity": r.capacity},
                 "kv_copies": r.degree.copies, "remarks": list(r.remarks)}
                for r in self.rows
            ],
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [
            f"{self.model} on {self.machine}: weights {self.weight_bytes / 1e9:.2f} GB, "
            f"KV {self.kv_token:,.0f} B a token, {bytes_text(self.kv_total)} in all"
        ]
        lines += ["", table_text(*self.table(), left=(1, 8)), ""]
        lines.append(f"legal tp: {', '.join(map(str, self.legal))}")
        return "\n".join(lines + [f"warning: {note}" for note in self.warnings])

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """The rows as a table: its head, and the cells of each; bytes of a core in GB."""
        kinds = ("weights", "kv_cache", "scratch", "reserved")
        cells = [
            (
                str(row.degree.value), "fits" if row.fits else "does not fit",
                *(f"{row.memory[kind] / 1e9:.2f}" for kind in kinds),
                f"{row.used / 1e9:.2f}", f"{row.capacity / 1e9:.2f}", "; ".join(row.remarks),
            )
            for row in self.rows
        ]  # fmt: skip
        return ("tp", "a core", "weights GB", "KV GB", "scratch GB", "reserved GB", "in all GB",
                "there are GB", "remarks"), cells  # fmt: skip


def _row(m: Model, where: Platform, job: Serving, degree: Degree) -> Row:
    held = {k: float(v) for k, v in memory(m, where, job, Split(tp=degree.value)).items()}
    # Padded heads hold zeros; what is divided are the published weights, once.
    held["weights"] = job.weight_bytes * parameters(m) / degree.value
    return Row(degree, held, where.memory)


def fits(
    what: str | Model,
    target: str,
    *,
    context: int | None = None,
    batch: int = 1,
    weight_bytes: float = 2.0,
    tp: int | None = None,
    lnc: int | None = None,
) -> Fit:
    """Whether a model can be served from one machine with `context` tokens of each of `batch`.

    `context` is by default the model's own, 8,192 at most.

    All tensor-parallel degrees up to the machine's cores are shown (or `tp` alone), in bytes: the
    weights, the cache with heads copied where they do not divide, a scratchpad of whole pages and
    the microcode of each core. Raises UsageError and LimitError `plan.request` for more cores than
    there are and more tokens than learned positions, and what `model` and `platform` raise.

    Source: `cost.memory`; what the compiler takes is assumed (COMPILER_BYTES).
    """
    m, where = model(what), platform(target, lnc)
    context = default_sequence(m) if context is None else context
    if context < 1:
        raise UsageError(f"context is {context}", code="plan.request", fix="1 token or more")
    notes = [note for note in (longer(m, context), as_stored(m, weight_bytes)) if note]
    if tp is not None and not 1 <= tp <= where.devices:
        raise UsageError(f"tp is {tp}: {where.name} has {where.devices} cores", code="plan.request",
                         fix=f"1 to {where.devices}, or a larger machine")  # fmt: skip
    job = Serving(batch=batch, prompt=max(context - 1, 1), answer=1, weight_bytes=weight_bytes)
    asked = [tp] if tp else divisors(where.devices)
    rows = tuple(_row(m, where, job, tensor_degree(m, t)) for t in asked)
    weight = weight_bytes * parameters(m)
    legal = tuple(t for t in range(1, where.devices + 1) if tensor_degree(m, t).legal)
    return Fit(
        model=m.name, machine=where.name, rows=rows, weight_bytes=weight,
        kv_token=kv_bytes(m, 1), kv_total=batch * kv_bytes(m, context), legal=legal,
        warnings=(*_warnings(m, where, rows, weight), *notes),
    )  # fmt: skip


def _warnings(m: Model, where: Platform, rows: tuple[Row, ...], weight: float) -> tuple[str, ...]:
    out = []
    need = 2.0 * weight + COMPILER_BYTES
    if where.host_memory and need > where.host_memory:
        out.append(
            f"host memory: loading and dividing the weights while the compiler works takes about "
            f"{need / 1e9:.0f} GB, the host has {where.host_memory / 1e9:.0f} GB; compile on a "
            "larger host"
        )
    if not any(row.fits for row in rows):
        least = min(rows, key=lambda row: row.used)
        out.append(
            f"no degree fits: the least is {least.used / 1e9:.2f} GB a core at tp "
            f"{least.degree.value}"
        )
    return tuple(out)
