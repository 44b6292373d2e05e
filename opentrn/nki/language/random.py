"""Random numbers, dropout and the gather within partitions, on top of `nki.isa`.

NKI 0.3 release notes, known issues: on trn3 `rand` is `nisa.rand2`, on earlier chips `nisa.rng`;
both here on the Vector Engine, whose generators `random_seed` seeds.
"""

from typing import Any

from opentrn.base import ShapeError, UsageError, declare, int32, uint32
from opentrn.base import dtype as as_dtype
from opentrn.nki import isa as nisa
from opentrn.nki.language.memory import is_on_chip, ndarray, rows_of, sbuf
from opentrn.nki.session import current
from opentrn.nki.tensor import NkiTensor

declare(
    "nki.seed",
    "A random seed is not a tile of one 32-bit value.",
    rule="nl.random_seed takes a [1, 1] tile in SBUF or PSUM, of a 32-bit dtype",
    fix="pass nl.full((1, 1), 42, dtype=nl.int32)",
)
declare(
    "nki.gather",
    "The operands of gather_flattened do not fit.",
    rule="data and integer indices have the same number of partitions; axis is 0",
    fix="load as many rows of indices as of data",
)


def random_seed(seed: NkiTensor) -> None:
    """Seed the generators of `rand` from a [1, 1] tile with a 32-bit value.

    Raises UsageError `nki.seed` for anything else.
    """
    fits = isinstance(seed, NkiTensor) and seed.size == 1 and seed.dtype.itemsize == 4
    if not fits or not is_on_chip(seed.buffer):
        told = f"a {type(seed).__name__}"
        if isinstance(seed, NkiTensor):
            told = f"{seed.dtype}{list(seed.shape)} in {seed.buffer.value}"
        raise UsageError(f"nl.random_seed of {told}", code="nki.seed")
    nisa.set_rng_seed(seed.reshape((1, 1)))


def rand(shape, dtype, buffer=sbuf, name="") -> NkiTensor:
    """A new tensor of random numbers, uniform in [0, 1), rounded to `dtype`.

    Raises what `nl.ndarray` raises.
    """
    made = ndarray(shape, dtype, buffer, name)
    if is_on_chip(made.buffer):
        _draw(made)
        return made
    for part in rows_of(made):
        tile = ndarray(part.shape, made.dtype, sbuf)
        _draw(tile)
        nisa.dma_copy(part, tile)
    return made


def _draw(tile: NkiTensor) -> None:
    """Fill an on-chip tile; the upper 24 bits of a word are exact in float32 and stay below 1."""
    if current().chip.generation >= 4:
        nisa.rand2(tile, 0.0, 1.0)
        return
    bits = ndarray(tile.shape, uint32, sbuf)
    nisa.rng(bits)
    nisa.tensor_scalar(bits, bits, "right_shift", 8)
    nisa.tensor_scalar(tile, bits, "multiply", 2.0**-24)


def dropout(x: NkiTensor, rate: Any, dtype=None) -> NkiTensor:
    """`x` with elements set to zero with probability `rate`; the others are not scaled.

    `rate` is a number or a tile [P, 1] with a probability for each partition.
    """
    made = ndarray(x.shape, x.dtype, sbuf)
    nisa.dropout(made, x, rate)
    return _cast(made, dtype)


def gather_flattened(data: NkiTensor, indices: NkiTensor, axis=0, dtype=None) -> NkiTensor:
    """dst[p, i…] = data[p, indices[p, i…]], the free dimensions of `data` counted as one.

    `indices` are integers; those outside a partition of `data` raise BoundsError.
    Raises ShapeError `nki.gather` for unequal partitions, UsageError for another axis than 0.
    """
    if axis != 0:
        raise UsageError(
            f"gather_flattened along axis {axis}",
            code="nki.gather",
            rule="every partition gathers from its own row: axis=0 is all that is documented",
            fix="leave `axis` out; permute the free dimensions first",
        )
    if data.shape[0] != indices.shape[0] or not indices.dtype.is_integer:
        raise ShapeError(
            f"gather_flattened of {data.dtype}{list(data.shape)} by "
            f"{indices.dtype}{list(indices.shape)}",
            code="nki.gather",
        )
    made = ndarray(indices.shape, data.dtype, sbuf)
    nisa.nc_n_gather(_flat(made), _flat(data), _words(_flat(indices)))
    return _cast(made, dtype)


def _flat(tile: NkiTensor) -> NkiTensor:
    return tile.flatten_dims(1, tile.ndim - 1) if tile.ndim > 2 else tile


def _words(indices: NkiTensor) -> NkiTensor:
    """The indices as uint32; a negative one becomes an index outside every tile."""
    if indices.dtype == uint32:
        return indices
    wide = indices
    if indices.dtype != int32:
        wide = ndarray(indices.shape, int32, sbuf)
        nisa.tensor_copy(wide, indices)
    return wide.view(uint32)


def _cast(tile: NkiTensor, dtype) -> NkiTensor:
    if dtype is None or as_dtype(dtype) == tile.dtype:
        return tile
    made = ndarray(tile.shape, as_dtype(dtype), sbuf)
    nisa.tensor_copy(made, tile)
    return made
