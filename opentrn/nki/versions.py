"""The NKI versions a script may be written for, and what is noted where they differ.

Versions and the Neuron SDK they came with (aws-neuron-sdk v2.32.0, nki/migration/index.rst and
release-notes/components/nki.rst): 0.1 with 2.27, 0.2 with 2.28, 0.3 with 2.29, 0.4 with 2.30, 0.5
with 2.31, 0.6 with 2.32; release notes of 2.33: 0.7.  The older `neuronxcc.nki` is a language of
its own (`nki.beta1`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from opentrn.base import UnknownNameError, Where, declare, explanation, user_line
from opentrn.sim import Finding

declare(
    "nki.version",
    "There is no NKI of this version.",
    rule="a script is written for NKI 0.1 to 0.7, or named by its Neuron SDK, 2.27 to 2.33",
    fix="for example opentrn run --nki 0.2 script.py, or OPENTRN_NKI=0.2",
)

SDK = {
    "0.1": "2.27",
    "0.2": "2.28",
    "0.3": "2.29",
    "0.4": "2.30",
    "0.5": "2.31",
    "0.6": "2.32",
    "0.7": "2.33",
}
VERSIONS = tuple(SDK)
# The version that `opentrn.nki` itself is, and that holds where nothing names one.
TODAY = "0.6"
_VERSION: ContextVar[str] = ContextVar("opentrn_nki_version", default=TODAY)
# Findings from outside kernels (decorators, imports), waiting for the next kernel that runs.
_WAITING: ContextVar[list[Finding] | None] = ContextVar("opentrn_nki_waiting", default=None)


def version_of(name: str) -> str:
    """The version called "0.2", "0.2.0" or by its SDK ("2.28", "2.28.1").

    Raises UnknownNameError `nki.version`.
    """
    short = ".".join(str(name).strip().split(".")[:2])
    found = {**{v: v for v in VERSIONS}, **{sdk: v for v, sdk in SDK.items()}}.get(short)
    if found is None:
        raise UnknownNameError(f"there is no NKI {name}", code="nki.version")
    return found


def current_version() -> str:
    """The version kernels are taken to be written for."""
    return _VERSION.get()


def before(version: str) -> bool:
    """Whether the version in force is older than `version`."""
    return VERSIONS.index(_VERSION.get()) < VERSIONS.index(version)


@contextmanager
def use_version(name: str) -> Iterator[str]:
    """Take kernels as written for this version inside the block; UnknownNameError for others."""
    token = _VERSION.set(version_of(name))
    try:
        yield _VERSION.get()
    finally:
        _VERSION.reset(token)


def finding(code: str, what: str, where: Where | None = None, fix: str = "") -> Finding:
    """A finding of a declared code, at the user's line."""
    known = explanation(code)
    return Finding(code, what, where or user_line(), known.rule, fix or known.fix)


def wait(found: Finding) -> None:
    """Keep a finding from outside any kernel for the next kernel that runs."""
    waiting = _WAITING.get()
    if waiting is None:
        waiting = []
        _WAITING.set(waiting)
    if found not in waiting:
        waiting.append(found)


def waiting() -> list[Finding]:
    """The findings that waited, which do so no longer."""
    found = _WAITING.get()
    _WAITING.set(None)
    return found or []
