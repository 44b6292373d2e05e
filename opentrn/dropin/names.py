"""Answer `import nki` and its sub-modules with OpenTrn's kernel language, while asked to.

This is the one place where OpenTrn changes state that belongs to others (`sys.meta_path`,
`sys.modules`). It does so on request only, and puts back exactly what it found.
"""

import contextlib
import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

from opentrn import nki

NAMES = {
    "nki": "opentrn.nki",
    "nki.language": "opentrn.nki.language",
    "nki.isa": "opentrn.nki.isa",
    "nki.collectives": "opentrn.nki.collectives",
    "nki.typing": "opentrn.nki.typing",
}
"""What a script may import -> the module it gets, one object under both names."""


def _ours(name: str) -> bool:
    return name == "nki" or name.startswith("nki.")


class _Alias:
    """Import a name of NAMES as the module it stands for; refuse its siblings with a reason."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Answer for `nki` and everything below it, so that no other package mixes with ours."""
        if not _ours(name):
            return None
        real = NAMES.get(name)
        if real is None or importlib.util.find_spec(real) is None:
            known = ", ".join(n for n, r in NAMES.items() if importlib.util.find_spec(r))
            raise ModuleNotFoundError(
                f"OpenTrn has no module named {name!r}; a script can import {known}", name=name
            )
        return importlib.machinery.ModuleSpec(name, self, is_package=name == "nki")

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Let Python make an empty stand-in; `exec_module` replaces it."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the real module in the stand-in's place: the import system re-reads `sys.modules`."""
        name = module.__name__
        sys.modules[name] = importlib.import_module(NAMES[name])


class Installed:
    """A standing installation: leave it with `remove()` or at the end of a `with` block."""

    def __init__(self, target: str | None) -> None:
        self._found = {n: m for n, m in sys.modules.items() if _ours(n)}
        self._alias = _Alias()
        self._stack = contextlib.ExitStack()
        if target is not None:
            self._stack.enter_context(nki.use_target(target))
        for name in self._found:
            del sys.modules[name]
        sys.meta_path.insert(0, self._alias)

    def remove(self) -> None:
        """Put back the modules and the target of before; a second call does nothing."""
        if self._alias not in sys.meta_path:
            return
        sys.meta_path.remove(self._alias)
        for name in [n for n in sys.modules if _ours(n)]:
            del sys.modules[name]
        sys.modules.update(self._found)
        self._stack.close()

    def __enter__(self) -> "Installed":
        return self

    def __exit__(self, *details: object) -> None:
        self.remove()


def install(target: str | None = None) -> Installed:
    """Make `import nki` (and the names of NAMES) mean OpenTrn from now on, for one target.

    `target` is a chip, a generation or an instance as `hw.target` knows them; without one, the
    current target of `opentrn.nki` stays. A package of that name that was imported before is set
    aside until `remove()`. Raises UnknownNameError for an unknown target, before anything changes.
    """
    return Installed(target)
