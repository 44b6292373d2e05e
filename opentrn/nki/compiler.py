"""`nki.compiler`: hints to the NKI compiler, which change nothing here but are accepted."""

from collections.abc import Callable
from typing import Any

from opentrn.base import NotBuiltError, declare
from opentrn.nki.language import no_reorder

# A package by name, so that imports of what lies below it are refused with advice.
__path__: list[str] = []

declare(
    "nki.compiler_internal",
    "A script asked for an internal part of the NKI compiler.",
    rule="kernels run here without being compiled; nki.jit and nki.simulate run them",
    fix="call the kernel, or record its program with opentrn.nki.record",
)


def enable_stack_allocator(kernel: Callable | None = None, **options: Any) -> Any:
    """The kernel itself; tiles are placed by their lifetimes anyway."""
    return (lambda made: made) if kernel is None else kernel


def skip_middle_end_transformations(kernel: Callable) -> Callable:
    """The kernel itself; instructions always run in the order written."""
    return kernel


def __getattr__(name: str) -> Any:
    """A clear refusal for the compiler's own modules (kernel_builder, ncc_driver)."""
    if name.startswith("__"):
        raise AttributeError(f"module nki.compiler has no attribute {name!r}")
    raise NotBuiltError(f"nki.compiler.{name} does not exist here", code="nki.compiler_internal")


__all__ = ["enable_stack_allocator", "no_reorder", "skip_middle_end_transformations"]
