"""What the environment says about target and debugging, read when a kernel is called.

A script may set NEURON_PLATFORM_TARGET_OVERRIDE at any time before its kernel runs, as for the
official tools, which know trn1, inf2, gen2, trn2, gen3, trn3 and gen4.
"""

import os

from opentrn.base import UsageError, declare

DEFAULT_TARGET = "trn2"
ROUNDING = declare(
    "nki.rounding",
    "A variable of stochastic rounding has a value that means nothing.",
    rule="NEURON_RT_STOCHASTIC_ROUNDING_EN is 0, 1, true or false, "
    "NEURON_RT_STOCHASTIC_ROUNDING_SEED a whole number",
    fix="export NEURON_RT_STOCHASTIC_ROUNDING_EN=1 NEURON_RT_STOCHASTIC_ROUNDING_SEED=0",
    neuron="NRT_INVALID 2",
)
_SWITCH = {"": False, "0": False, "false": False, "1": True, "true": True}


def full_tracebacks() -> bool:
    """Whether errors keep the frames of this package (OPENTRN_TRACEBACK=full)."""
    return os.environ.get("OPENTRN_TRACEBACK", "").strip().lower() == "full"


def debug_folder() -> str:
    """Where the runtime would write what kernels print (NEURON_RT_DEBUG_OUTPUT_DIR), or ""."""
    return os.environ.get("NEURON_RT_DEBUG_OUTPUT_DIR", "").strip()


def told_target() -> str:
    """The target named by the environment, else trn2."""
    return os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE", "").strip() or DEFAULT_TARGET


def told_rounding() -> int | None:
    """The seed of stochastic rounding where the environment asks for it, else None.

    Raises UsageError `nki.rounding`."""
    told = os.environ.get("NEURON_RT_STOCHASTIC_ROUNDING_EN", "").strip().lower()
    if told not in _SWITCH:
        raise UsageError(f"NEURON_RT_STOCHASTIC_ROUNDING_EN is {told!r}", code=ROUNDING)
    if not _SWITCH[told]:
        return None
    seed = os.environ.get("NEURON_RT_STOCHASTIC_ROUNDING_SEED", "").strip() or "0"
    if not seed.isdigit():
        raise UsageError(f"NEURON_RT_STOCHASTIC_ROUNDING_SEED is {seed!r}", code=ROUNDING)
    return int(seed)
