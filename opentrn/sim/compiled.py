"""Whether compiled code pays: where Numba is installed, and there is, or was, enough to do.

Loading it takes as long as plain Python takes for some tens of thousands of instructions, and
compiling it, once on a machine, as long as for a million; then it is ten times as fast, also for
the few thousand instructions of a kernel.  So what a process has done in plain Python counts.
"""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from opentrn.base import UsageError, declare

declare(
    "sim.fast",
    "The compiled scheduler was asked for, but Numba is not installed.",
    rule="timeline(fast=True) needs the package numba; results are the same without it",
    fix="install opentrn[fast], or leave `fast` out",
)

# Instructions that plain Python has handled until code is loaded, and until it is compiled.
_WORTH_LOADING, _WORTH_COMPILING = 50_000, 1_000_000
_LONG = 300_000  # a program for which it is compiled at once: whoever has it will have it again
_WORTH_CALLING = 300  # fewer take no longer in plain Python


class Choice:
    """What decides between plain Python and compiled code, for one process."""

    def __init__(self):
        self.handled, self.loaded = 0, False

    def compiled(self, count: int, fast: bool | None) -> bool:
        """Whether compiled code handles `count` instructions; `fast` as in `timeline`.

        Raises UsageError `sim.fast`.
        """
        if fast and not installed():
            raise UsageError("Numba is not installed", code="sim.fast")
        if fast is None:
            self.handled += count
            fast = installed() and count >= _WORTH_CALLING and (self.loaded or self.worth_it(count))
        self.loaded |= fast
        return fast

    def worth_it(self, count: int) -> bool:
        """Whether there was enough to do, or is with this program, for loading compiled code."""
        enough = _WORTH_LOADING if stored() else _WORTH_COMPILING
        return count >= _LONG or self.handled >= enough


CHOICE = Choice()


@cache
def installed() -> bool:
    """Whether Numba is."""
    return find_spec("numba") is not None


@cache
def stored() -> bool:
    """Whether compiled code lies beside its source, where Numba puts it by default."""
    return any((Path(__file__).parent / "__pycache__").glob("timing_fast._run-*.nbi"))


__all__ = ["CHOICE", "Choice", "installed", "stored"]
