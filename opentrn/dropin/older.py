"""The modules a script imports, as they were in the NKI version it was written for."""

import sys
from types import ModuleType
from typing import Any

from opentrn import nki

_VERSIONED = ("nki.isa", "nki.language", "nki.collectives")


class Modules:
    """The modules of one NKI version, each made once."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._made: dict[str, ModuleType] = {}

    def of(self, today: ModuleType) -> ModuleType:
        """The module that stands for `today`'s in this version: itself where nothing differs."""
        name = today.__name__.removeprefix("opentrn.")
        if self.version == nki.TODAY or name not in ("nki", *_VERSIONED):
            return today
        if name not in self._made:
            self._made[name] = self._package() if name == "nki" else self._older(name, today)
        return self._made[name]

    def _older(self, name: str, today: ModuleType) -> ModuleType:
        found = nki.older_functions(name, today, self.version)
        names = {n: v for n, v in vars(today).items() if not n.startswith("__")}
        names |= found
        made = _Older(name, today.__doc__)
        vars(made).update({n: v for n, v in names.items() if v is not None or n not in found})
        made.__file__, made.version, made.__path__ = today.__file__, self.version, []
        return made

    def _package(self) -> ModuleType:
        made = ModuleType("nki", nki.__doc__)
        vars(made).update({n: v for n, v in vars(nki).items() if not n.startswith("__")})
        made.__file__, made.__path__ = nki.__file__, []
        for name in _VERSIONED:
            today = sys.modules[f"opentrn.{name}"]
            setattr(made, name.rpartition(".")[2], self.of(today))
        return made


class _Older(ModuleType):
    """A module that says which version brought a name it does not have."""

    version = ""

    def __getattr__(self, name: str) -> Any:
        if self.version >= nki.NEWER:
            nki.refuse_newer(self.__name__, name)
        since = nki.missing_name(self.__name__, name, self.version)
        reason = f"; it came with NKI {since}" if since else ""
        raise AttributeError(f"{self.__name__} has no `{name}` in NKI {self.version}{reason}")


__all__ = ["Modules"]
