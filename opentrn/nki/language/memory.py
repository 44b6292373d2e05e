"""Allocating tensors, moving them between HBM and the chip, and looking at them."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from opentrn.base import (
    BoundsError,
    DtypeError,
    MissingFileError,
    ShapeError,
    SpaceError,
    UsageError,
    declare,
    float32,
    numerics,
    uint8,
)
from opentrn.base import dtype as as_dtype
from opentrn.nki import isa as nisa
from opentrn.nki.arrays import whole
from opentrn.nki.room import refuse_larger
from opentrn.nki.session import current
from opentrn.nki.target import debug_folder
from opentrn.nki.tensor import DynamicSlice, MemoryRegion, NkiTensor

declare(
    "nki.buffer",
    "A tensor was asked for in a memory that does not exist.",
    rule="buffer is nl.sbuf, nl.psum, nl.private_hbm (nl.hbm) or nl.shared_hbm",
    fix="pass one of them",
)
declare(
    "nki.partitions",
    "An on-chip tensor has more partitions than the chip.",
    rule="the first dimension of an SBUF or PSUM tensor lies on the 128 partitions",
    fix="cut the first dimension into tiles of at most nl.tile_size.pmax",
)
declare(
    "nki.address",
    "An explicit address lies outside its memory.",
    rule="address is (first partition, byte within each partition); the tensor must fit from there",
    fix="choose a lower address, or leave `address` out",
)
declare(
    "nki.alignment",
    "An explicit address in SBUF is a multiple of the element's size, not of sbuf_min_align.",
    rule="nl.tile_size.sbuf_min_align is 4 bytes; the NKI Library, which runs on the chip, aligns "
    "tiles to their elements (BufferManager), and the open front end KLR names 1",
    fix="align addresses to nl.tile_size.sbuf_min_align where that costs nothing",
)
declare(
    "nki.matrix",
    "A function of matrices was given a tensor of another number of dimensions.",
    rule="transposes and products take two dimensions: partitions and one free dimension",
    fix="reshape or slice it to two dimensions",
)
declare(
    "nki.grid_axis",
    "A kernel asks for an axis its launch grid does not have.",
    rule="axes are 0 to nl.program_ndim() - 1; a launch without a grid has axis 0 alone",
    fix="launch kernel[a, b](...) with a grid of that many axes, or ask for axis 0",
)
declare(
    "nki.constant_file",
    "The file of a shared constant does not exist.",
    rule="shared_constant takes an array or the path of a .npy file",
    fix="check the path",
)

sbuf = MemoryRegion.sbuf
psum = MemoryRegion.psum
private_hbm = MemoryRegion.private_hbm
hbm = MemoryRegion.private_hbm
shared_hbm = MemoryRegion.shared_hbm


def region_of(buffer: MemoryRegion | str) -> MemoryRegion:
    """The memory region named by a member or a string ("hbm" is private HBM)."""
    if isinstance(buffer, MemoryRegion):
        return buffer
    names = {**MemoryRegion.__members__, "hbm": private_hbm}
    if buffer not in names:
        raise SpaceError(f"there is no memory `{buffer}`", code="nki.buffer")
    return names[buffer]


def is_hbm(buffer: MemoryRegion | str) -> bool:
    """Whether `buffer` is device memory."""
    return region_of(buffer) in (private_hbm, shared_hbm)


def is_psum(buffer: MemoryRegion | str) -> bool:
    """Whether `buffer` is PSUM."""
    return region_of(buffer) is psum


def is_sbuf(buffer: MemoryRegion | str) -> bool:
    """Whether `buffer` is SBUF."""
    return region_of(buffer) is sbuf


def is_on_chip(buffer: MemoryRegion | str) -> bool:
    """Whether `buffer` is SBUF or PSUM."""
    return not is_hbm(buffer)


def ndarray(shape, dtype, buffer=sbuf, name="", address=None) -> NkiTensor:
    """A new, unwritten tensor.

    `address` is `(first partition, byte within each partition)`; tensors with overlapping
    addresses share memory.  Raises ShapeError for more than 128 partitions on chip.
    """
    region = buffer if type(buffer) is MemoryRegion else _told_region(buffer)
    dtype = as_dtype(dtype)
    _check_named(dtype, name)
    session, shape = current(), tuple(shape)
    if region is shared_hbm:
        made = session.buffer("hbm", shape, dtype, name=name or "", kind="output", address=address)
    else:
        if shape and shape[0] > session.chip.core.partitions and region is not private_hbm:
            _too_many(session, shape, region)
        partition, start = (0, None) if address is None else (int(address[0]), int(address[1]))
        made = session.own(region.space, shape, dtype, name or "", partition, start)
    if made.sort not in session.fits:
        refuse_larger(session.chip, made)
        session.fits.add(made.sort)
    if address is not None:
        _check_address(session, made, address)
    session.allocate(made)
    return whole(session, made, region)


def _told_region(buffer) -> MemoryRegion:
    """SpaceError for a string, which was a memory until NKI 0.3, as for anything else."""
    raise SpaceError(
        f"buffer={buffer!r} is a string",
        code="nki.buffer",
        fix=f"pass buffer=nl.{region_of(buffer).value} (strings went with NKI 0.3)",
    )


def _too_many(session, shape: tuple, region: MemoryRegion) -> None:
    pmax = int(session.chip.core.partitions)
    raise ShapeError(
        f"ndarray: {list(shape)} in {region.value} has {shape[0]} partitions, at most {pmax} exist",
        code="nki.partitions",
        fix=f"cut the first dimension into {-(-shape[0] // pmax)} tiles of at most {pmax}",
    )


def _check_named(dtype, name) -> None:
    """Refuse dtypes the chip does not have, and names that are none (None leaves it unnamed)."""
    if not dtype.on_chip:
        raise DtypeError(f"ndarray: the chip has no {dtype}", code="nki.argument_dtype")
    if name is not None and not isinstance(name, str):
        raise UsageError(
            f"ndarray: name={name!r} is a {type(name).__name__}",
            code="nki.argument",
            fix="a name is a string",
        )


def _check_address(session, made, address) -> None:
    """BoundsError when the tensor does not lie within its memory; SpaceError in HBM.

    UsageError for a byte that is not aligned and for more than two numbers; in SBUF elements of
    one or two bytes may lie at multiples of their size, with a note (`nki.alignment`).
    """
    core = session.chip.core
    if not made.on_chip:
        raise SpaceError(
            "an explicit address for a tensor in HBM",
            code="nki.address",
            rule="addresses are of SBUF and PSUM; HBM is placed by the runtime",
            fix="leave `address` out",
        )
    size = int(core.sbuf_partition if made.space == "sbuf" else core.psum_partition)
    last = made.partition + made.shape[0]
    inside = made.partition >= 0 and last <= int(core.partitions) and made.address >= 0
    if not inside or made.address + made.partition_bytes > size:
        raise BoundsError(
            f"address {tuple(address)}: partitions {made.partition} to {last - 1}, bytes "
            f"{made.address} to {made.address + made.partition_bytes - 1} of {size}",
            code="nki.address",
        )
    least = int(core.sbuf_alignment if made.space == "sbuf" else core.psum_alignment)
    step = min(least, made.dtype.itemsize) if made.space == "sbuf" else least
    if len(address) != 2 or made.address % step:
        raise UsageError(
            f"address {tuple(address)} of a tile in {made.space}",
            code="nki.address",
            rule=f"address is (first partition, byte within each partition), the byte a multiple "
            f"of {step}",
            fix=f"pass {(made.partition, made.address // step * step)}",
        )
    if made.address % least:
        session.note("nki.alignment", f"address {tuple(address)} of a tile of {made.dtype}")


def full(shape, fill_value, dtype, buffer=sbuf, name="") -> NkiTensor:
    """A new tensor filled with one value (HBM tensors are filled through an SBUF tile)."""
    made = ndarray(shape, dtype, buffer, name)
    fill(made, fill_value)
    return made


def fill(tensor: NkiTensor, value) -> None:
    """Write `value` everywhere in a tensor of any memory."""
    if is_on_chip(tensor.buffer):
        nisa.memset(tensor, value)
        return
    tile = None
    for part in rows_of(tensor):
        if tile is None:  # the first part is the largest
            tile = ndarray(part.shape, tensor.dtype, sbuf)
            nisa.memset(tile, value)
        nisa.dma_copy(part, tile[0 : part.shape[0], 0 : part.shape[1]])


def rows_of(tensor: NkiTensor) -> Iterator[NkiTensor]:
    """An HBM tensor as 2-D parts that each fit a tile in SBUF, the largest first."""
    pmax = int(current().chip.core.partitions)
    flat = tensor.reshape((tensor.size,))
    step = min(tensor.size, pmax * 2048)
    columns = -(-step // pmax)
    for start in range(0, tensor.size, step):
        count = min(step, tensor.size - start)
        rows, rest = divmod(count, columns)
        if rows:
            part = flat[start : start + rows * columns]
            yield part.reshape((rows, columns))
        if rest:
            part = flat[start + rows * columns : start + count]
            yield part.reshape((1, rest))


def zeros(shape, dtype, buffer=sbuf, name="") -> NkiTensor:
    """A new tensor of zeros."""
    return full(shape, 0, dtype, buffer, name)


def ones(shape, dtype, buffer=sbuf, name="") -> NkiTensor:
    """A new tensor of ones."""
    return full(shape, 1, dtype, buffer, name)


def empty_like(x: NkiTensor, dtype=None, buffer=None, name="") -> NkiTensor:
    """A new, unwritten tensor of the shape (and dtype and memory) of `x`."""
    return ndarray(x.shape, dtype or x.dtype, buffer or x.buffer, name)


def zeros_like(x: NkiTensor, dtype=None, buffer=None, name="") -> NkiTensor:
    """A new tensor of zeros of the shape (and dtype and memory) of `x`."""
    return zeros(x.shape, dtype or x.dtype, buffer or x.buffer, name)


def load(src: NkiTensor, dtype=None) -> NkiTensor:
    """A new SBUF tile with the values of an HBM tensor; dimension 0 becomes partitions."""
    if src.ndim == 1:
        src = src.expand_dim(0)
    tile = ndarray(src.shape, dtype or src.dtype, sbuf)
    nisa.dma_copy(tile, src)
    return tile


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """Write an on-chip tile to an HBM tensor (PSUM goes through SBUF)."""
    if value.buffer is psum:
        copied = ndarray(value.shape, dst.dtype, sbuf)
        nisa.tensor_copy(copied, value)
        value = copied
    nisa.dma_copy(dst, value)


def two_dimensional(function: str, name: str, x: NkiTensor) -> tuple[int, int]:
    """Rows and columns of a matrix; ShapeError `nki.matrix` for another number of dimensions."""
    if x.ndim != 2:
        raise ShapeError(
            f"{function}: `{name}` has {x.ndim} dimensions, {list(x.shape)}", code="nki.matrix"
        )
    return x.shape


def load_transpose2d(src: NkiTensor, dtype=None) -> NkiTensor:
    """A new SBUF tile [N, M] holding the transpose of an HBM tensor [M, N] (N ≤ 128)."""
    rows, columns = two_dimensional("load_transpose2d", "src", src)
    kind = as_dtype(dtype or src.dtype)
    if kind != src.dtype:
        return _cast_tile(load_transpose2d(src), kind)
    tile = ndarray((columns, rows), kind, sbuf)
    if kind.itemsize == 2:
        nisa.dma_transpose(tile, src)
    else:
        # The DMA transposer takes 2- and 4-byte elements; a strided copy serves any.
        nisa.dma_copy(tile, src.permute((1, 0)))
    return tile


def _cast_tile(tile: NkiTensor, kind) -> NkiTensor:
    made = ndarray(tile.shape, kind, sbuf)
    nisa.tensor_copy(made, tile)
    return made


def shared_constant(constant: Any) -> NkiTensor:
    """An HBM tensor holding data known when the kernel is built (an array or a .npy path)."""
    session = current()
    if isinstance(constant, str | os.PathLike):
        if not os.path.isfile(constant):
            raise MissingFileError(f"no constant file {constant}", code="nki.constant_file")
        constant = np.load(constant, allow_pickle=False)
    data = np.ascontiguousarray(constant)
    made = session.buffer("hbm", data.shape or (1,), as_dtype(data.dtype), kind="constant")
    session.builder.constants[made] = data
    session.machine.adopt(made, data.copy())
    return whole(session, made, shared_hbm)


def shared_identity_matrix(n, dtype=uint8, dst: NkiTensor | None = None) -> NkiTensor:
    """The n × n identity in SBUF; one constant for each size and dtype of a program."""
    session, kind = current(), as_dtype(dtype)
    data = numerics.encode(np.eye(n, dtype=float32.storage), kind)
    known = [
        buffer
        for buffer, held in session.builder.constants.items()
        if buffer.dtype == kind and held.shape == data.shape and np.array_equal(held, data)
    ]
    source = whole(session, known[0], shared_hbm) if known else shared_constant(data)
    tile = dst if dst is not None else ndarray((n, n), kind, sbuf)
    nisa.dma_copy(tile, source)
    return tile


def ds(start, size) -> DynamicSlice:
    """`size` positions from `start`; `start` may be known only on the device."""
    return DynamicSlice(start, size)


def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    """Print a tile's values now, with a prefix.

    With NEURON_RT_DEBUG_OUTPUT_DIR they are also saved, as the runtime would:
    `<folder>/<prefix>/core_<core>/<iteration>/tensor.npy`.
    """
    print(f"{print_prefix} {tensor!r}")
    folder = debug_folder()
    if not folder or current().recording_only:
        return
    core = getattr(current(), "core", 0)
    place = os.path.join(folder, print_prefix, f"core_{core}")
    made = len(os.listdir(place)) if os.path.isdir(place) else 0
    os.makedirs(os.path.join(place, str(made)))
    np.save(os.path.join(place, str(made), "tensor.npy"), tensor.numpy())


def program_id(axis: int = 0) -> int:
    """Index of this program instance along an axis of the launch grid."""
    return _along(current().program_ids, axis)


def num_programs(axes: int | tuple[int, ...] = 0) -> int:
    """Number of program instances along the axes of the launch grid."""
    grid = current().grid
    total = 1
    for axis in axes if isinstance(axes, tuple | list) else (axes,):
        total *= _along(grid, axis)
    return total


def _along(sizes: tuple[int, ...], axis: int) -> int:
    """The entry of a launch grid's axis; BoundsError `nki.grid_axis` where it has none."""
    if not isinstance(axis, int) or not 0 <= axis < len(sizes):
        what = f"axis {axis!r} of a launch grid with {len(sizes)}"
        raise BoundsError(f"{what} {'axis' if len(sizes) == 1 else 'axes'}", code="nki.grid_axis")
    return sizes[axis]


def program_ndim() -> int:
    """Number of axes of the launch grid; 0 when the kernel was called without one."""
    grid = current().grid
    return 0 if grid == (1,) else len(grid)


class _TileSize:
    """Tile limits of the current target, from its hardware facts."""

    @property
    def _core(self):
        from opentrn.nki.session import current_chip

        return current_chip().core

    @property
    def _chip(self):
        from opentrn.nki.session import current_chip

        return current_chip()

    @property
    def pmax(self) -> int:
        """Largest partition dimension."""
        return int(self._core.partitions)

    @property
    def psum_bank_fmax(self) -> int:
        """float32 elements of one PSUM bank in a partition."""
        return int(self._core.psum_bank) // 4

    psum_fmax = psum_bank_fmax

    @property
    def psum_bank_fmax_bytes(self) -> int:
        """Bytes of one PSUM bank in a partition."""
        return int(self._core.psum_bank)

    @property
    def psum_num_banks(self) -> int:
        """PSUM banks of a partition."""
        return int(self._core.psum_banks)

    @property
    def gemm_stationary_fmax(self) -> int:
        """Largest free dimension of a stationary matmul operand."""
        return int(self._chip.tensor.stationary_free)

    @property
    def gemm_moving_fmax(self) -> int:
        """Largest free dimension of a moving matmul operand whose result fits one PSUM bank.

        512 on every chip, as public kernels count on it (also those for trn3, where nc_matmul
        itself takes more over several banks).
        """
        return min(int(self._chip.tensor.moving_free), self.psum_bank_fmax)

    @property
    def bn_stats_fmax(self) -> int:
        """Largest free dimension of bn_stats."""
        return int(self._chip.vector.bn_stats_free)

    @property
    def psum_min_align(self) -> int:
        """Smallest alignment of a PSUM address in bytes."""
        return int(self._core.psum_alignment)

    @property
    def sbuf_min_align(self) -> int:
        """Smallest alignment of an SBUF address in bytes."""
        return int(self._core.sbuf_alignment)

    @property
    def sbuf_size_bytes(self) -> int:
        """SBUF bytes of all partitions together."""
        return int(self._core.sbuf_partition) * self.pmax

    @property
    def sbuf_fmax_bytes(self) -> int:
        """Usable SBUF bytes of a partition."""
        return int(self._core.sbuf_usable)

    total_available_sbuf_size = sbuf_fmax_bytes

    @property
    def sbuf_fmax(self) -> int:
        """Usable SBUF of a partition in float32 elements."""
        return int(self._core.sbuf_usable) // 4


tile_size = _TileSize()
