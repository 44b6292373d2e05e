"""Run somebody's script or module as `python` would, with the drop-in names installed."""

import importlib.util
import os
import runpy
import sys
from collections.abc import Sequence
from typing import Any

from opentrn.base import MissingFileError, UnknownNameError, declare, nearest
from opentrn.dropin.names import install

NO_SCRIPT = declare(
    "dropin.script",
    "The script to run does not exist, or is not a file.",
    rule="`opentrn run` takes a Python file, or `-m` and the name of a module",
    fix="check the path; it is read relative to the current directory",
)
NO_MODULE = declare(
    "dropin.module",
    "The module to run (`opentrn run -m NAME`) cannot be found.",
    rule="the name is looked up as `python -m` does: current directory, then installed packages",
    fix="run from the directory that holds the package, or install it",
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
    Raises MissingFileError for a script or module that does not exist, and UnknownNameError for an
    unknown target or version, both before anything has run.
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
    name; `what` says in the message what was expected.  What the file raises goes through.
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
        with install():
            spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    if not hasattr(module, name):
        near = nearest(name, [n for n in vars(module) if not n.startswith("_")])
        raise UnknownNameError(
            f"{path} has no `{name}`", code=NO_MODEL, fix=f"nearest: {', '.join(near) or 'none'}"
        )
    return getattr(module, name)


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
