"""OpenTrn: a Trainium you can pip install.

The rooms are sub-packages (`opentrn.hw`, `opentrn.nki`, `opentrn.compiler`, ...). The names people
use most can also be taken from here; each loads its room when it is first asked for, so that
`import opentrn` stays quick.
"""

import importlib.util

__version__ = "0.1.0"

_HOMES = {
    "TrnError": "base",
    "chip": "hw",
    "instance": "hw",
    "price": "hw",
    "jit": "nki",
    "simulate": "nki",
    "compile": "compiler",
    "devices": "runtime",
    "load": "runtime",
    "summarize": "profiler",
    "install": "dropin",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> object:
    """Load a public name, or a room, the first time it is asked for."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"opentrn.{_HOMES[name]}"), name)
    if not name.startswith("_") and importlib.util.find_spec(f"opentrn.{name}"):
        return importlib.import_module(f"opentrn.{name}")
    raise AttributeError(f"module 'opentrn' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names without loading what they come from."""
    return __all__
