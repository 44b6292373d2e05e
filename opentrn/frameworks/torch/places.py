"""The user's line: the innermost place in a traceback or stack that is neither ours nor torch's."""

import os
import sys
from collections.abc import Iterable
from typing import Any

from opentrn.base import Where

_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_THEIRS = (f"{os.sep}torch{os.sep}", f"{os.sep}functorch{os.sep}", "<frozen ", "<string>",
           "<eval_with_key>")  # fmt: skip


_PRINTER = os.path.join("torch", "_tensor_str.py")


def is_users(file: str) -> bool:
    """Whether a source file belongs to the user."""
    return not file.startswith(_OURS) and not any(word in file for word in _THEIRS)


def user_place() -> Where | None:
    """The line of the user's code that is running now."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return Where(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None


def prints() -> bool:
    """Whether PyTorch is turning a tensor into text, which is the host's work.

    PyTorch does it by ops on the tensor's device, in float64, but for devices in a list of its own.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith(_PRINTER):
            return True
        frame = frame.f_back
    return False


def place_in(summary: Iterable[Any]) -> Where | None:
    """The innermost user's line of a `traceback.StackSummary`."""
    own = [f for f in summary or () if is_users(f.filename)]
    return Where(own[-1].filename, own[-1].lineno or 0, own[-1].name) if own else None


__all__ = ["is_users", "place_in", "prints", "user_place"]
