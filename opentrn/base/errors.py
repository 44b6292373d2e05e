"""One family of refusals: what is wrong, where, by which rule, and the way out.

Every refusal of the package is a `TrnError` of some kind. Its text has at most five lines, its code
is stable, and `.json()` gives the same content to programs. A kind is also the built-in exception
a Python user expects (`ShapeError` is a `ValueError`), so ordinary `except` clauses work.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
from dataclasses import dataclass
from types import TracebackType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_KERNELS = os.path.join(_PACKAGE, "nki", "kernels") + os.sep
_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
# What runs the command `opentrn` (with a script of that name), and what PyTorch puts between a
# user's line and an op of ours: no lines of a user.
_BETWEEN = tuple(os.sep + os.path.join("site-packages", name) + os.sep for name in
                 ("click", "torch"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Where:
    """A line of somebody's source: `file` is the full path, `line` counts from 1."""

    file: str
    line: int
    function: str = ""

    @property
    def text(self) -> str:
        """The source line without its indentation; empty when the source cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    @property
    def portable(self) -> str:
        """`file` without the folders of this machine, as files have it: `opentrn/isa/view.py`."""
        return _portable(self.file)

    def __str__(self) -> str:
        """Show `file.py:15: source text`, with the base name of the file."""
        place = f"{os.path.basename(self.file)}:{self.line}"
        text = self.text
        if text:
            return f"{place}: {text}"
        return f"{place} in {self.function}" if self.function else place


@functools.lru_cache(4096)
def _portable(file: str) -> str:
    """A path from the innermost folder of `sys.path` (or the working directory) that holds it.

    A file in none of them becomes its bare name.  `linecache` finds such names along `sys.path`.
    """
    if not os.path.isabs(file):
        return file
    homes = [os.path.join(os.path.abspath(home or os.curdir), "") for home in (*sys.path, "")]
    inside = [home for home in homes if file.startswith(home)]
    home = max(inside, key=len, default=os.path.join(os.path.dirname(file), ""))
    return file.removeprefix(home).replace(os.sep, "/") or file


_SKIPPED: dict[str, bool] = {}
# id(code) -> (code, {last instruction: Where}); holding the code keeps its id from being reused.
# Keyed by instruction offset because computing a frame's line number is the slow part.
_PLACES: dict[int, tuple[object, dict[int, Where]]] = {}


def _is_skipped(file: str) -> bool:
    """Whether frames of this file are ours or the standard library's, hence never the user's."""
    if file.startswith(_PACKAGE):
        skipped = not file.startswith(_KERNELS)
    elif file.startswith("<frozen "):
        skipped = True
    else:
        skipped = file.startswith(_STDLIB) and not any(part in file for part in _INSTALLED)
        between = any(part in file for part in _BETWEEN)
        skipped = skipped or between or os.path.basename(file) == "opentrn"
    _SKIPPED[file] = skipped
    return skipped


def user_line(depth: int = 1) -> Where | None:
    """Return the innermost line outside this package, or None when there is none.

    Frames of `opentrn` are passed over, except the kernels in `opentrn/nki/kernels`, which count
    as user code; so are frames of the standard library (decorators and context managers) and the
    methods that it writes for dataclasses.  `depth` is where to begin: 1 for the caller; whoever
    is known to be called by our code may begin further out.
    """
    frame = sys._getframe(depth)
    skipped, known = _SKIPPED, _PLACES
    while frame is not None:
        code = frame.f_code
        entry = known.get(id(code))
        if entry is not None:  # a user's, as it was before
            return entry[1].get(frame.f_lasti) or _place(frame, code)
        file = code.co_filename
        skip = skipped.get(file)
        if skip is None:
            skip = _is_skipped(file)
        if not skip and not code.co_qualname.startswith("__create_fn__"):
            return _place(frame, code)
        frame = frame.f_back
    return None


def _place(frame, code) -> Where:
    """The remembered Where of one frame at its present instruction."""
    entry = _PLACES.get(id(code))
    if entry is None:
        entry = _PLACES[id(code)] = (code, {})
    places = entry[1]
    where = places.get(frame.f_lasti)
    if where is None:
        where = Where(code.co_filename, frame.f_lineno or 0, code.co_name)
        places[frame.f_lasti] = where
    return where


def _owner(file: str, caller: str) -> str:
    """Whose a frame is, "user" or "ours": the standard library's is that of its caller."""
    if file.startswith(_PACKAGE):
        return "user" if file.startswith(_KERNELS) else "ours"
    standard = file.startswith(_STDLIB) and not any(part in file for part in _INSTALLED)
    return caller if standard or file.startswith("<frozen ") else "user"


def hide_frames(error: BaseException) -> None:
    """Leave in the traceback of an error, and of those it came from, the lines of the user.

    Frames of this package go (kernels in `opentrn/nki/kernels` are the user's), with the frames of
    the standard library that they called.  Where an error that is no refusal was raised below the
    user's last line, in our code, those frames stay: they are what a report of the fault needs.
    """
    chain, seen = [error], set()
    while chain:
        one = chain.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _without_ours(one)
        chain += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def _without_ours(error: BaseException) -> TracebackType | None:
    frames, owners, owner = [], [], "ours"
    trace = error.__traceback__
    while trace is not None:
        owner = _owner(trace.tb_frame.f_code.co_filename, owner)
        frames.append(trace)
        owners.append(owner)
        trace = trace.tb_next
    last = max((n for n, owner in enumerate(owners) if owner == "user"), default=-1)
    fault_of_ours = not isinstance(error, TrnError | SyntaxError)
    found = None
    for n in reversed(range(len(frames))):
        if owners[n] == "user" or (n > last and fault_of_ours):
            one = frames[n]
            found = TracebackType(found, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return found


@dataclass(frozen=True, slots=True)
class Explanation:
    """What `opentrn explain <code>` shows for a declared code; `fault` is a key of `FAULTS`."""

    code: str
    meaning: str
    rule: str = ""
    fix: str = ""
    neuron: str = ""
    fault: str = ""


FAULTS = {
    "defined": "the chip does the same, but it is probably not what was meant",
    "disputed": "users saw a chip do otherwise; its documentation says what happens here",
    "undefined": "nothing says what the chip does; it need not be what happens here",
    "unpredictable": "the chip may do one thing or another, from run to run",
    "unsupported": "the chip may well do it; it is not built here",
    "unvalidated": "no measurement of a chip that is public confirms it",
}
"""What a finding means for the chip: whose fault a surprise there would be."""


_EXPLANATIONS: dict[str, Explanation] = {}


class Bug(RuntimeError):
    """A promise this package made to itself is broken: never the user's fault."""

    def __init__(self, what: str):
        """Keep `what` and say that this is a defect to report."""
        self.what = what
        super().__init__(what)

    def __str__(self) -> str:
        """The broken promise and the request to report it."""
        return (
            f"{self.what}\n  this is a defect in opentrn, not in your program: "
            "please report it with the lines above"
        )


def declare(
    code: str, meaning: str, rule: str = "", fix: str = "", neuron: str = "", fault: str = ""
) -> str:
    """Register a stable code once, when its module is imported; return the code.

    `rule`, `fix` and `neuron` become the defaults of every TrnError raised with this code; `fault`
    (a key of `FAULTS`) tells what a finding with this code means for the chip.
    Raises Bug when the code is already taken or not dotted, or the fault unknown.
    """
    if fault and fault not in FAULTS:
        raise Bug(f"error code {code!r}: no fault {fault!r}")
    if code in _EXPLANATIONS:
        raise Bug(f"error code {code!r} is declared twice")
    if "." not in code or not meaning:
        raise Bug(f"error code {code!r} needs the form <room>.<name> and a meaning")
    _EXPLANATIONS[code] = Explanation(code, meaning, rule, fix, neuron, fault)
    return code


def explanation(code: str) -> Explanation | None:
    """Return what was declared for `code`, or None."""
    return _EXPLANATIONS.get(code)


def codes() -> list[str]:
    """All declared codes, sorted."""
    return sorted(_EXPLANATIONS)


def nearest(name: str, known, count: int = 3) -> list[str]:
    """The up to `count` known names most like `name`, best first, ignoring case."""
    import difflib

    by_lower = {str(each).lower(): str(each) for each in known}
    close = difflib.get_close_matches(str(name).lower(), list(by_lower), n=count, cutoff=0.5)
    return [by_lower[each] for each in close]


class TrnError(Exception):
    """A refusal with its place, its rule and its way out.

    `at` is a Where; left out, it is the line of the user that led here. Empty `rule`, `fix` and
    `neuron` are filled from the declaration of `code`. `neuron` is the code the Neuron tools print
    for the same refusal (`NCC_...`, `NRT_...`), where there is one.
    """

    usual_fault = ""

    def __init__(
        self,
        what: str,
        *,
        code: str,
        rule: str = "",
        fix: str = "",
        at: Where | None = None,
        neuron: str = "",
    ):
        """Fill what is missing from the declaration and from the stack."""
        super().__init__(what)
        declared = _EXPLANATIONS.get(code)
        if declared is not None:
            rule = rule or declared.rule
            fix = fix or declared.fix
            neuron = neuron or declared.neuron
        self.what = what
        self.code = code
        self.rule = rule
        self.fix = fix
        self.at = at if at is not None else user_line()
        self.neuron = neuron

    def __str__(self) -> str:
        """The five lines; a part that is not known has no line."""
        more = f"opentrn explain {self.code}" + (f"  ({self.neuron})" if self.neuron else "")
        parts = (
            ("at   ", str(self.at) if self.at is not None else ""),
            ("rule ", self.rule),
            ("fix  ", self.fix),
            ("more ", more),
        )
        return "\n".join([self.what, *(f"  {name} {text}" for name, text in parts if text)])

    def json(self) -> dict:
        """The same as plain data: what, at, rule, fix, code, neuron, fault (and the kind)."""
        at = None
        if self.at is not None:
            at = {"file": self.at.file, "line": self.at.line, "text": self.at.text}
        return {
            "kind": type(self).__name__,
            "what": self.what,
            "at": at,
            "rule": self.rule,
            "fix": self.fix,
            "code": self.code,
            "neuron": self.neuron,
            "fault": self.fault,
        }

    @property
    def fault(self) -> str:
        """What the refusal means for the chip: a key of `FAULTS`, or "" for a plain refusal."""
        declared = _EXPLANATIONS.get(self.code)
        return declared.fault if declared is not None and declared.fault else self.usual_fault

    def __reduce__(self):
        """Pickle by content, so that errors cross process borders whole."""
        content = (self.what, self.code, self.rule, self.fix, self.at, self.neuron)
        return _rebuild, (type(self), content)


def _rebuild(kind: type, content: tuple) -> TrnError:
    """Make the error again from its pickled content."""
    what, code, rule, fix, at, neuron = content
    return kind(what, code=code, rule=rule, fix=fix, at=at, neuron=neuron)


class ShapeError(TrnError, ValueError):
    """Sizes that do not fit each other or a limit of the form."""


class DtypeError(TrnError, TypeError):
    """A data type that is unknown or not allowed here."""


class SpaceError(TrnError, ValueError):
    """An operand in the wrong memory (HBM, SBUF, PSUM)."""


class LimitError(TrnError, ValueError):
    """A number beyond what the hardware allows."""


class CapacityError(TrnError, MemoryError):
    """More memory asked for than there is."""


class OrderError(TrnError, RuntimeError):
    """Steps in an order that races, deadlocks or breaks a protocol."""


class UnwrittenError(TrnError, ValueError):
    """Memory that is read or returned although nothing wrote it."""


class BoundsError(TrnError, IndexError):
    """An access outside its tensor."""


class NotBuiltError(TrnError, NotImplementedError):
    """Something real that this package does not have yet."""

    usual_fault = "unsupported"


class UnknownNameError(TrnError, LookupError):
    """A name that is not in the list it is looked up in."""


class UsageError(TrnError, ValueError):
    """A call that cannot mean anything."""


class FactError(TrnError, ValueError):
    """A hardware number without a unit, with a wrong one, or missing."""


class FileFormatError(TrnError, ValueError):
    """A file whose content is not what it claims to be."""


class MissingFileError(TrnError, FileNotFoundError):
    """A file that is not there."""


class UnwritableError(TrnError, OSError):
    """A file that cannot be written where it was asked for."""


class UnsupportedError(TrnError, ValueError):
    """Something the real machine or its compiler refuses."""
