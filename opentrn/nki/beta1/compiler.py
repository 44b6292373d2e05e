"""`neuronxcc.nki.compiler`: addresses chosen by hand, and decorators without effect here.

Source: NKI API reference v2.26.1 (nki.compiler.sbuf, nki.compiler.psum).
"""

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from opentrn.nki.beta1.blocks import Allocation
from opentrn.nki.language.loops import no_reorder
from opentrn.nki.tensor import MemoryRegion


def _wrapped(index: tuple[int, ...], tiles: tuple[int, ...]) -> int:
    """Which physical tile a block gets: its index modulo `tiles`, row-major."""
    tiles = tuple(tiles) or (1,) * len(index)
    number = 0
    for i, n in zip(index, tiles, strict=True):
        number = number * n + i % n
    return number


class sbuf:
    """Buffers in SBUF whose tiles are placed by hand."""

    @staticmethod
    def alloc(func: Callable) -> Allocation:
        """Tiles lie where `func(index, partitions, bytes)` says: (partition, byte)."""
        return Allocation(MemoryRegion.sbuf, func)

    @staticmethod
    def mod_alloc(
        *, base_addr, base_partition=0, num_par_tiles=(), num_free_tiles=()
    ) -> Allocation:
        """Tiles lie one after another from `base_addr`, and again from the first after the last."""

        def place(index: tuple, partitions: int, size_bytes: int) -> tuple[int, int]:
            return (
                base_partition + _wrapped(index, num_par_tiles) * partitions,
                base_addr + _wrapped(index, num_free_tiles) * size_bytes,
            )

        return Allocation(MemoryRegion.sbuf, place)

    @staticmethod
    def auto_alloc() -> Allocation:
        """Tiles lie anywhere."""
        return Allocation(MemoryRegion.sbuf)


class psum:
    """Buffers in PSUM whose tiles are placed by hand."""

    @staticmethod
    def alloc(func: Callable) -> Allocation:
        """Tiles lie where `func(index, partitions, bytes)` says: (bank, partition, byte)."""
        return Allocation(MemoryRegion.psum, func)

    @staticmethod
    def mod_alloc(
        *,
        base_bank,
        base_addr=0,
        base_partition=0,
        num_bank_tiles=(),
        num_par_tiles=(),
        num_free_tiles=(),
    ) -> Allocation:
        """Tiles lie one after another from `base_bank`, and again from the first after the last."""

        def place(index: tuple, partitions: int, size_bytes: int) -> tuple[int, int, int]:
            return (
                base_bank + _wrapped(index, num_bank_tiles),
                base_partition + _wrapped(index, num_par_tiles) * partitions,
                base_addr + _wrapped(index, num_free_tiles) * size_bytes,
            )

        return Allocation(MemoryRegion.psum, place)

    @staticmethod
    def auto_alloc() -> Allocation:
        """Tiles lie anywhere."""
        return Allocation(MemoryRegion.psum)


def _unchanged(func: Callable | None = None, **options: Any) -> Any:
    return (lambda given: given) if func is None else func


def enable_stack_allocator(func: Callable | None = None, log_level: int = 50) -> Any:
    """The kernel itself: placement happens when it is timed."""
    return _unchanged(func)


def skip_middle_end_transformations(func: Callable | None = None) -> Any:
    """The kernel itself: no compiler changes it here."""
    return _unchanged(func)


def force_auto_alloc(func: Callable | None = None) -> Any:
    """The kernel itself: tiles without addresses are placed when it is timed."""
    return _unchanged(func)


@contextmanager
def multi_buffer(factor: int = 2):
    """A block whose tiles a compiler would double; tiles here never share memory."""
    yield


@contextmanager
def allocation_scope():
    """A block at whose end a compiler would free tiles; tiles here live as long as their names."""
    yield


__all__ = [
    "allocation_scope",
    "enable_stack_allocator",
    "force_auto_alloc",
    "multi_buffer",
    "no_reorder",
    "psum",
    "sbuf",
    "skip_middle_end_transformations",
]
