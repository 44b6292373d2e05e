"""Calls on very large tensors, taken in equal pieces of which a kernel is traced and timed once.

Pieces end where a kernel's own loops begin anew, so they cost the chip next to nothing: what a
product holds in SBUF is loaded once more for each piece of its rows.
"""

from typing import Any, NamedTuple

from opentrn.base import DType
from opentrn.compiler.choose import Use
from opentrn.isa import View
from opentrn.nki import kernels

# Elements of a tensor, and multiplications of a product, beyond which a call is cut.
ELEMENTS, MULTIPLICATIONS = 1 << 26, 1 << 37
# Pieces of products are whole tiles of rows or banks of columns where the length allows, and at
# least so many of them.
ROWS, COLUMNS, LEAST = 128, 512, 8
BY_ELEMENT = (kernels.elementwise, kernels.elementwise_together)


class Cut(NamedTuple):
    """Results of `shape` and `dtypes` made in pieces of `length` along `axis`."""

    shape: tuple[int, ...]
    dtypes: tuple[DType, ...]
    axis: int
    length: int


def cut_of(use: Use, args: tuple) -> Cut | None:
    """How a call with these arguments is cut; None where it is small, or does not divide."""
    if use.kernel is kernels.elementwise:
        return _along_first(use.options["shape"], (use.options["out_dtype"],))
    if use.kernel is kernels.elementwise_together:
        dtypes = tuple([kind for _, kind in use.options["results"]])
        return _along_first(use.options["shape"], dtypes)
    if use.kernel is kernels.copy:
        return _along_first(args[0].shape, (args[0].dtype,))
    return _of_product(use, args) if use.kernel is kernels.linear else None


def _along_first(shape: tuple[int, ...], dtypes: tuple[DType, ...]) -> Cut | None:
    size = 1
    for n in shape:
        size *= n
    length = _length(shape[0], -(-size // ELEMENTS), 1) if len(shape) > 1 else None
    return Cut(shape, dtypes, 0, length) if length else None


def _of_product(use: Use, args: tuple) -> Cut | None:
    x, w = args[:2]
    shape = (*x.shape[:-1], w.shape[1])
    rows, columns = shape[-2:]
    if any(n > 1 for n in shape[:-2]):
        return None
    count = -(-rows * columns * w.shape[0] // MULTIPLICATIONS)
    tall = rows > columns
    length = _length(max(rows, columns), count, ROWS if tall else COLUMNS)
    axis = len(shape) - (2 if tall else 1)
    return Cut(shape, (use.options["out_dtype"],), axis, length) if length else None


def _length(total: int, least: int, unit: int) -> int | None:
    """The length of equal pieces, at least so many and at most twice as many."""
    lengths = [total // n for n in range(max(least, 2), 2 * least + 1) if total % n == 0]
    even = [length for length in lengths if length % unit == 0]
    enough = [length for length in lengths if unit == 1 or length >= LEAST * unit]
    found = even or enough
    return found[0] if least > 1 and found else None


def piece_of(use: Use, args: tuple, cut: Cut, start: int) -> tuple:
    """The arguments of the piece that begins at `start`."""
    stop = start + cut.length
    if use.kernel in BY_ELEMENT:
        return (tuple([x.slice(0, start, stop) for x in args[0]]),)
    if use.kernel is kernels.copy:
        return (args[0].slice(0, start, stop),)
    x, w, bias, residual = args
    if residual is not None:
        residual = residual.slice(cut.axis, start, stop)
    if cut.axis < len(cut.shape) - 1:
        return x.slice(cut.axis, start, stop), w, bias, residual
    bias = None if bias is None else bias.slice(0, start, stop)
    return x, w.slice(1, start, stop), bias, residual


def options_of(use: Use, cut: Cut) -> dict[str, Any]:
    """The options of every piece."""
    if use.kernel not in BY_ELEMENT:
        return use.options
    return {**use.options, "shape": (cut.length, *cut.shape[1:])}


def views_in(args: Any) -> list[View]:
    """All views among arguments, in order."""
    if isinstance(args, View):
        return [args]
    return [v for a in args for v in views_in(a)] if isinstance(args, tuple | list) else []


__all__ = ["Cut", "cut_of", "options_of", "piece_of", "views_in"]
