"""What the environment says about target and debugging, read when a kernel is called.

A script may set NEURON_PLATFORM_TARGET_OVERRIDE at any time before its kernel runs, as for the
official tools, which know trn1, inf2, gen2, trn2, gen3, trn3 and gen4.
"""

import os

DEFAULT_TARGET = "trn2"


def full_tracebacks() -> bool:
    """Whether errors keep the frames of this package (OPENTRN_TRACEBACK=full)."""
    return os.environ.get("OPENTRN_TRACEBACK", "").strip().lower() == "full"


def debug_folder() -> str:
    """Where the runtime would write what kernels print (NEURON_RT_DEBUG_OUTPUT_DIR), or ""."""
    return os.environ.get("NEURON_RT_DEBUG_OUTPUT_DIR", "").strip()


def told_target() -> str:
    """The target named by the environment, else trn2."""
    return os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE", "").strip() or DEFAULT_TARGET
