"""Check the kernels of a file: load it under the drop-in names, then ask `nki.check` of each."""

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from opentrn import nki
from opentrn.base import UnknownNameError, UsageError, declare
from opentrn.dropin.names import install
from opentrn.dropin.script import others, refuse_no_source, refusing_no_python

NO_KERNEL = declare(
    "dropin.kernel",
    "A file to check holds no such kernel.",
    rule="FILE.py checks every function decorated with @nki.jit that the file defines; "
    "FILE.py:NAME one of them, or an undecorated function",
    fix="check the name, or decorate the kernel",
)


def check_file(
    place: str,
    targets: Sequence[str],
    arguments: Mapping[str, Any],
    grid: tuple[int, ...] = (),
    version: str | None = None,
) -> list[nki.Checked]:
    """Check `FILE.py` or `FILE.py:KERNEL` for each target: one report for each kernel and target.

    The file is imported, so what stands at its top level runs (keep calls of kernels behind
    `if __name__ == "__main__"`).  Arguments are given by name; when a file has several kernels
    each takes those it has parameters for.
    `grid` is the launch grid, where the kernel itself has none; `version` the NKI it was written
    for, as for `install`.
    Raises MissingFileError, UnknownNameError `dropin.kernel`, and what the file itself raises.
    """
    path, _, name = place.rpartition(":") if not os.path.exists(place) else (place, "", "")
    refuse_no_source(path or place, "cannot check", NO_KERNEL)
    checked = []
    with _loaded(path, version) as module:
        for kernel in _kernels(module, path, name):
            given = arguments if name else _own(kernel, arguments)
            for target in targets:
                with install(target, version):
                    checked.append(nki.check(kernel, target, given, vars(module), grid))
    return checked


def _own(kernel: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments a kernel has parameters for."""
    code = kernel.func.__code__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return {name: value for name, value in arguments.items() if name in known}


def _kernels(module: ModuleType, path: str, name: str) -> list[Any]:
    """The named kernel, or all that the file itself defines, in the order of their lines."""
    found = {n: v for n, v in vars(module).items() if isinstance(v, nki.AnyKernel)}
    if name:
        thing = getattr(module, name, None)
        if not callable(thing):
            raise UnknownNameError(
                f"{path} has no kernel `{name}`", code=NO_KERNEL, fix=others(name, found)
            )
        return [thing if isinstance(thing, nki.AnyKernel) else nki.jit(thing)]
    here = os.path.abspath(path)
    own = {
        id(v.func): v
        for v in found.values()
        if os.path.abspath(v.func.__code__.co_filename) == here
    }
    if not own:
        raise UsageError(f"{path} defines no kernel", code=NO_KERNEL)
    return sorted(own.values(), key=lambda v: v.func.__code__.co_firstlineno)


@contextlib.contextmanager
def _loaded(path: str, version: str | None = None) -> Iterator[ModuleType]:
    """The file as a module, importable under its name (in its package, if it lies in one)."""
    root, name = _package(os.path.abspath(path))
    before = set(sys.modules)
    sys.path.insert(0, root)
    try:
        with install(version=version):
            with refusing_no_python(path):
                module = _import(name, path)
            yield module
    finally:
        sys.path.remove(root)
        for made in set(sys.modules) - before:
            if made == name or made.startswith(name.partition(".")[0] + "."):
                del sys.modules[made]


def _import(name: str, path: str) -> ModuleType:
    if "." in name:
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _package(path: str) -> tuple[str, str]:
    """(folder to import from, dotted name) of a file, by the `__init__.py` files above it."""
    folder, file = os.path.split(path)
    parts = [file.removesuffix(".py")]
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, part = os.path.split(folder)
        parts.insert(0, part)
    if len(parts) == 1 and parts[0] in sys.modules:
        return folder, f"{parts[0]}_checked"
    return folder, ".".join(parts)


__all__ = ["check_file"]
