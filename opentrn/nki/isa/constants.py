"""The enumerations of `nki.isa` under the name NKI 0.1 and 0.2 kept them, `nki.isa.constants`.

A name taken from here is noticed as `nki.migrate.constants`, at its line.
"""

from typing import Any

from opentrn import isa
from opentrn.base import declare

declare(
    "nki.migrate.constants",
    "A name of nki.isa.constants, the place of enumerations up to NKI 0.2.",
    rule="enumerations are names of nki.isa (NKI 0.6 reference)",
    fix="nisa.oob_mode instead of nki.isa.constants.oob_mode",
)

__all__ = [  # noqa: F822 - they come through __getattr__
    "dge_mode",
    "dma_engine",
    "engine",
    "matmul_perf_mode",
    "nc_version",
    "oob_mode",
    "reduce_cmd",
]


def __getattr__(name: str) -> Any:
    """The enumeration, and a finding for the kernel that runs (or the next that does)."""
    if name not in __all__:
        raise AttributeError(f"module nki.isa.constants has no attribute {name!r}")
    from opentrn.nki.session import noticed

    noticed("nki.migrate.constants", f"nki.isa.constants.{name}", f"use nisa.{name}")
    return getattr(isa, name)
