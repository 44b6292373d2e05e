"""`nki.compiler.frontend`: would the compiler take this kernel?

The compiler's front end turns a kernel's Python into MLIR. Here `compile` records the kernel's
instructions from the shapes of its arguments, checks them, and gives that report; there is no MLIR.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from opentrn import nki
from opentrn.dropin.standins.absent import refuse


@dataclass(frozen=True)
class Compiled:
    """A kernel that was accepted for one target: the findings, counts and memory of its check."""

    checked: nki.Checked

    def __getattr__(self, name: str) -> Any:
        """Say that there is no MLIR module (nor anything else of the compiler's)."""
        refuse("nki.compiler.frontend", name, "read `checked`, or record with opentrn.nki.record")


class NKIFrontend:
    """What turns a kernel into something to run."""

    def compile(
        self,
        kernel: Callable,
        inputs: Mapping[str, Any],
        target: str,
        lnc: int = 1,
        artifacts_dir: str | None = None,
        dump_python_ast: bool = False,
        output_names: list[str] | None = None,
    ) -> Compiled:
        """Record and check `kernel` for `inputs` by name, on `lnc` cores of `target`.

        Of arrays only the shapes and dtypes count.  Nothing is written to `artifacts_dir`, outputs
        keep their own names and there is no syntax tree to dump.  Raises the first refusal: what
        the chip would not take, or an error of the kernel's own Python.
        """
        checked = nki.check(kernel, target, inputs, grid=lnc)
        if checked.refusals:
            raise checked.refusals[0]
        return Compiled(checked)


class ParserFrontend(NKIFrontend):
    """The front end that reads a kernel's source; here its Python runs, without values."""


class TracerFrontend(NKIFrontend):
    """The front end that runs a kernel's Python, as ours does."""


def __getattr__(name: str) -> Any:
    """Say what to do about what is not here."""
    refuse("nki.compiler.frontend", name)


__all__ = ["Compiled", "NKIFrontend", "ParserFrontend", "TracerFrontend"]
