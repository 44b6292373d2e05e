"""Run somebody's script or module as `python` would, with the drop-in names installed."""

import contextlib
import importlib.util
import os
import runpy
import sys
from collections.abc import Collection, Iterator, Sequence
from types import ModuleType
from typing import Any

from opentrn.base import (
    FileFormatError,
    MissingFileError,
    UnknownNameError,
    Where,
    declare,
    nearest,
)
from opentrn.dropin.names import install

NO_SCRIPT = declare(
    "dropin.script",
    "The script to run does not exist, or is not a file.",
    rule="a script is a Python file; `opentrn run` also takes `-m` and the name of a module",
    fix="check the path; it is read relative to the current directory",
)
NO_MODULE = declare(
    "dropin.module",
    "The module to run (`opentrn run -m NAME`) cannot be found.",
    rule="the name is looked up as `python -m` does: current directory, then installed packages",
    fix="run from the directory that holds the package, or install it",
)

NO_PYTHON = declare(
    "dropin.python",
    "A file that is to be run or loaded is no Python program.",
    rule="a script is source text in UTF-8 that this version of Python can read",
    fix="mend the line above, or check that this is the file that was meant",
)
NO_MODEL = declare(
    "dropin.model",
    "There is nothing under the name FILE.py:NAME.",
    rule="FILE.py is a Python file and NAME a name it defines",
    fix="write for example model.py:build, where build() returns (module, arguments)",
)


def run_script(
    path: str,
    argv: Sequence[str] = (),
    target: str | None = None,
    *,
    module: bool = False,
    version: str | None = None,
) -> dict[str, object]:
    """Run the file `path` (or the module of that name) as `__main__`; return its global names.

    The script sees what `python path argv...` would show it: `sys.argv`, its own directory first
    on `sys.path` (the current one for a module), `__name__ == "__main__"`. All of that is put back
    afterwards. What the script raises goes through unchanged, SystemExit included.
    `target` and `version` are those of `install`.
    Raises MissingFileError for a script or module that does not exist, FileFormatError for a file
    that is no Python, and UnknownNameError for an unknown target or version, all before anything
    has run.
    """
    if not module and not os.path.isfile(path):
        why = "it is a directory" if os.path.isdir(path) else "there is no such file"
        raise MissingFileError(f"cannot run {path}: {why}", code=NO_SCRIPT)
    kept_argv, kept_path = sys.argv, sys.path[:]
    sys.argv = [path, *argv]
    sys.path.insert(0, os.getcwd() if module else os.path.dirname(os.path.abspath(path)))
    try:
        with install(target, version):
            if not module:
                with refusing_no_python(path):
                    return runpy.run_path(path, run_name="__main__")
            _refuse_missing(path)
            return runpy.run_module(path, run_name="__main__", alter_sys=True)
    finally:
        sys.argv = kept_argv
        sys.path[:] = kept_path


def _refuse_missing(module: str) -> None:
    """Raise MissingFileError unless a module of this name can be found."""
    try:
        found = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise
        found = False
    if not found:
        raise MissingFileError(f"there is no module named {module}", code=NO_MODULE)


def load_name(place: str, what: str) -> Any:
    """The object `NAME` of `FILE.py:NAME`, with the file's own folder first on the path.

    Raises MissingFileError when there is no such file, UnknownNameError when the file has no such
    name, FileFormatError when it is no Python; `what` says in the message what was expected.  What
    the file raises goes through.
    """
    path, _, name = (place, "", "") if os.path.exists(place) else place.rpartition(":")
    refuse_no_source(path or place, f"cannot load {what} from", NO_MODEL)
    if not name:
        raise UnknownNameError(
            f"{place} is a file; which name in it is meant?",
            code=NO_MODEL,
            rule=f"FILE.py:NAME, where NAME is {what}",
        )
    folder = os.path.dirname(os.path.abspath(path))
    spec = importlib.util.spec_from_file_location(os.path.basename(path).removesuffix(".py"), path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, folder)
    try:
        with install(), refusing_no_python(path):
            spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    if not hasattr(module, name):
        fix = others(name, _defined(module))
        raise UnknownNameError(f"{path} has no `{name}`", code=NO_MODEL, fix=fix)
    return getattr(module, name)


def _defined(module: ModuleType) -> list[str]:
    """Functions and classes a file defines itself, in the order of their lines."""
    return [
        n for n, v in vars(module).items()
        if not n.startswith("_") and getattr(v, "__module__", None) == module.__name__
    ]  # fmt: skip


def others(name: str, known: Collection[str]) -> str:
    """What to write instead of a name a file does not define: names like it, else all it does."""
    like = nearest(name, known)
    if like:
        return f"nearest: {', '.join(like)}"
    return f"it defines {', '.join(known)}" if known else "define it at the top level of the file"


def refuse_no_source(path: str, doing: str, code: str) -> None:
    """Raise MissingFileError unless a path is a file of Python source."""
    why = ""
    if os.path.isdir(path):
        why = "it is a directory"
    elif not os.path.isfile(path):
        why = "no such file"
    elif not path.endswith(".py"):
        why = "it is no Python file (.py)"
    if why:
        raise MissingFileError(f"{doing} {path}: {why}", code=code)


@contextlib.contextmanager
def refusing_no_python(path: str) -> Iterator[None]:
    """Where the block reads the file `path` and runs it: FileFormatError when it is no Python.

    What the file raises once it runs goes through, a SyntaxError of what it imports included.
    """
    try:
        yield
    except (SyntaxError, ValueError) as error:
        if not _is_about(error, os.path.abspath(path)):
            raise
        at = Where(os.path.abspath(path), getattr(error, "lineno", None) or 1)
        why = getattr(error, "msg", None) or str(error)
        raise FileFormatError(f"{path} is no Python: {why}", code=NO_PYTHON, at=at) from None


def _is_about(error: SyntaxError | ValueError, path: str) -> bool:
    """Whether Python could not read this file: no line of it has run when the error came."""
    trace = error.__traceback__
    while trace is not None:
        if os.path.abspath(trace.tb_frame.f_code.co_filename) == path:
            return False
        trace = trace.tb_next
    if not isinstance(error, SyntaxError):
        return "null bytes" in str(error)  # as Python 3.11 has it
    return error.filename is None or os.path.abspath(error.filename) == path
