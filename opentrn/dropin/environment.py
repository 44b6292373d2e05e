"""Environment variables that scripts set for the Neuron tools, read when a script's call asks."""

import os


def target() -> str | None:
    """The chip generation NKI_NC_VERSION names (gen2, gen3, gen4), else the platform override."""
    told = os.environ.get("NKI_NC_VERSION") or os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE")
    return told or None


def nki_version() -> str | None:
    """The NKI version that OPENTRN_NKI names."""
    return os.environ.get("OPENTRN_NKI", "").strip() or None


def precise() -> bool:
    """Whether floats are rounded to their format: NKI_PRECISE_FP is not 0."""
    return os.environ.get("NKI_PRECISE_FP", "1").strip().lower() not in ("0", "false")
