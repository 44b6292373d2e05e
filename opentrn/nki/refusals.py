"""Whatever a wrong argument makes Python raise inside OpenTrn becomes a refusal at the user's line.

Instructions and views refuse what they know to be wrong themselves.  What slips through, say a
string where a size belongs, ends in Python's own error somewhere in our code: here it gets the
line of the kernel that made the call.  Errors raised by the kernel's own lines stay as they are.
"""

import os
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import TracebackType
from typing import Any

from opentrn.base import CapacityError, TrnError, UsageError, Where, declare, hide_frames
from opentrn.nki.removed import removal
from opentrn.nki.target import full_tracebacks

declare(
    "nki.argument",
    "A function of nki was given something it cannot take.",
    rule="sizes and indices are integers, operands tiles, operators names of nki.language",
    fix="correct the argument; if it is right, this is a fault of OpenTrn: please report it",
)
declare(
    "nki.recursion",
    "A kernel calls itself without end.",
    rule="a kernel is built by running its Python, which must come to an end",
    fix="give the recursion an end, or write a loop",
)
declare(
    "nki.host_memory",
    "This machine does not have the memory to simulate a kernel's tensors.",
    rule="tensors of a kernel lie in the memory of the machine that simulates it",
    fix="run on smaller inputs, or check the kernel from shapes: opentrn check",
)

WRONG = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)
# Libraries that our code calls: what they raise is raised for the one who called them.
LIBRARIES = ("numpy", "ml_dtypes")
_NKI = os.path.dirname(os.path.abspath(__file__))
# Kernels of the library count as a user's, as in `base.user_line`.
_PACKAGE, _KERNELS = os.path.dirname(_NKI) + os.sep, os.path.join(_NKI, "kernels") + os.sep


class PlainTracebacks:
    """Errors that leave the block show lines of the user only; with OPENTRN_TRACEBACK=full, all.

    A class, because `contextmanager` would put the whole traceback back.
    """

    def __enter__(self) -> None:
        """Nothing is changed before there is an error."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Take our frames out of the traceback, this one included."""
        if error is not None and not full_tracebacks():
            hide_frames(error)


@contextmanager
def refused() -> Iterator[None]:
    """Turn errors of Python raised inside OpenTrn, on behalf of a kernel, into refusals."""
    try:
        yield
    except TrnError:
        raise
    except RecursionError as error:
        what = "the kernel's Python calls itself too deeply"
        raise UsageError(what, code="nki.recursion", at=_calls(error)[0]) from None
    except MemoryError as error:
        what = f"not enough memory: {error}" if str(error) else "not enough memory"
        raise CapacityError(what, code="nki.host_memory", at=_calls(error)[0]) from error
    except WRONG as error:
        found = removal(error) if isinstance(error, TypeError) else None
        where, inside = _calls(error)
        if found is None and inside:
            found = _wrong_argument(error, inside, where)
        if found is None:
            raise
        raise found from error


# What our code asks a tile for first; who gives something else is told that.
_OF_TILES = ("_view", "buffer", "dtype", "ndim", "shape")


def _wrong_argument(error: Exception, inside: str, where: Where | None) -> UsageError:
    """The refusal of an argument that made `inside`, a function of ours, raise `error`."""
    what, fix = f"{inside}: {type(error).__name__}: {error}", ""
    if isinstance(error, AttributeError) and error.name in _OF_TILES:
        what = f"{inside}: {reprlib.repr(error.obj)} is given where a tensor belongs"
        fix = "pass a tensor; of a kernel's arguments only arrays become tensors"
    return _refusal(type(error))(what, code="nki.argument", fix=fix, at=where)


@cache
def _refusal(kind: type[Exception]) -> type[UsageError]:
    """A UsageError that is also of `kind`, for those who catch that."""
    try:
        return type(f"Refused{kind.__name__}", (UsageError, kind), {})
    except TypeError:  # kinds whose objects are laid out otherwise
        return UsageError


def _calls(error: BaseException) -> tuple[Where | None, str]:
    """The kernel's last line on the way to the error, and the function of ours it called.

    The name is "" when the error was raised by the kernel's own line (or by what else it called).
    """
    where, inside = None, ""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        file, name = frame.f_code.co_filename, frame.f_globals.get("__name__", "")
        if file.startswith(_PACKAGE) and not file.startswith(_KERNELS):
            inside = inside or frame.f_code.co_name
        elif name.partition(".")[0] not in LIBRARIES:
            where = Where(frame.f_code.co_filename, trace.tb_lineno, frame.f_code.co_name)
            inside = ""
        trace = trace.tb_next
    return where, inside
