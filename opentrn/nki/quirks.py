"""Where users saw a chip do something else than its documentation says, and how to have it so here.

Everything here follows the documentation.  Inside `nki.use_strict(Strict(as_observed=True))`, or
with OPENTRN_BEHAVIOUR=as-observed, kernels written for an NKI version of the table and run for a
chip of it get what was observed.  An observation is one report, no measurement: it says nothing of
other chips and versions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opentrn.base import declare
from opentrn.nki.session import current, running

declare(
    "nki.quirk",
    "The kernel got what users observed on a chip, which its documentation does not say.",
    rule="behaviour as observed was asked for (OPENTRN_BEHAVIOUR, Strict(as_observed=True))",
    fix="write the kernel so that it does not matter, or leave the switch alone",
    fault="disputed",
)


@dataclass(frozen=True)
class Quirk:
    """One observation: of which functions, NKI versions and chips; said and seen; where reported.

    `turn` gives the arguments that do what was seen, or None for calls it does not concern.
    """

    functions: tuple[str, ...]
    versions: tuple[str, ...]
    chips: tuple[str, ...]
    specified: str
    observed: str
    source: str
    turn: Callable[[dict[str, Any]], dict[str, Any] | None]


def _without_bias(given: dict[str, Any]) -> dict[str, Any] | None:
    name = getattr(given["op"], "nki_op", given["op"])
    if name != "copy" or given["bias"] is None:
        return None
    return {**given, "bias": None}


QUIRKS = (
    Quirk(
        ("nki.isa.activation", "nki.isa.activation_reduce"),
        ("0.2",),
        ("trn1",),
        "op(data · scale + bias), for nl.copy as for every other operator",
        "nl.copy leaves `bias` out",
        "github.com/aws-neuron/aws-neuron-sdk, issue 1296 (2026-03-18, trn1.2xlarge)",
        _without_bias,
    ),
)


def applied(function: str, version: str, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call, changed where the quirk of a chip is asked for and noticed then."""
    if not running():
        return given
    session = current()
    if not session.machine.strict.as_observed:
        return given
    for quirk in QUIRKS:
        if function in quirk.functions and version in quirk.versions:
            turned = quirk.turn(given) if session.chip.name in quirk.chips else None
            if turned is not None:
                name = function.rpartition(".")[2]
                what = f"{name}: {quirk.observed}, as observed on {session.chip.name}"
                session.note("nki.quirk", f"{what} with NKI {version}")
                given = turned
    return given


__all__ = ["QUIRKS", "Quirk", "applied"]
