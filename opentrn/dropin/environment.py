"""Environment variables that scripts set for the Neuron tools, read when a script's call asks."""

import contextlib
import os
from collections.abc import Iterator

from opentrn.base import UsageError, declare

declare(
    "dropin.behaviour",
    "OPENTRN_BEHAVIOUR names no behaviour.",
    rule="kernels do what is specified (spec), or what users saw chips do (as-observed)",
    fix="set OPENTRN_BEHAVIOUR=as-observed, or leave it out",
)


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


def as_observed() -> bool:
    """Whether OPENTRN_BEHAVIOUR asks for what users saw chips do, not for what is specified.

    Raises UsageError `dropin.behaviour` for another word.
    """
    told = os.environ.get("OPENTRN_BEHAVIOUR", "").strip().lower()
    if told not in ("", "spec", "as-observed"):
        raise UsageError(f"OPENTRN_BEHAVIOUR is {told!r}", code="dropin.behaviour")
    return told == "as-observed"


def jax_on_neuron() -> bool:
    """Whether JAX_PLATFORMS asks for the platform of Trainium, as on a machine that has one."""
    return os.environ.get("JAX_PLATFORMS", "").partition(",")[0].strip() == "neuron"


@contextlib.contextmanager
def jax_on_cpu() -> Iterator[None]:
    """JAX_PLATFORMS as JAX itself knows it: the platform of Trainium is a plugin it has not."""
    before = os.environ["JAX_PLATFORMS"]
    os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        yield
    finally:
        os.environ["JAX_PLATFORMS"] = before
