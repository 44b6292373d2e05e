"""Memory: a `Buffer` is a shape of a dtype in one of the chip's memory spaces."""

from math import prod
from typing import Any

from opentrn.base import DType, ShapeError, SpaceError, Where
from opentrn.isa.index import integers, refuse
from opentrn.isa.relayout import row_major

SPACES = ("hbm", "sbuf", "psum")


class Sort:
    """What buffers of one space, shape, dtype and first partition have in common.

    `steps` are those of its whole view; `ways` holds the derived facts of views of such buffers
    (see `isa.access`), so that a tile made anew in each turn of a loop has them worked out once;
    `whole` are those of the whole view.
    """

    __slots__ = (
        "dtype",
        "free",
        "nbytes",
        "on_chip",
        "partition",
        "partition_bytes",
        "shape",
        "space",
        "steps",
        "ways",
        "whole",
    )

    def __init__(self, space: str, shape: tuple[int, ...], dtype: DType, partition: int):
        self.space, self.dtype, self.partition = space, dtype, partition
        self.shape = integers("buffer", shape)
        if space not in SPACES or not self.shape or any(n < 1 for n in self.shape):
            refuse(
                ShapeError if space in SPACES else SpaceError,
                "buffer",
                f"{list(self.shape)} in {space!r}",
                "sizes are positive, there is at least one, the space is hbm, sbuf or psum",
                "change the shape or the space",
            )
        total = prod(self.shape)
        self.on_chip = space != "hbm"
        self.free = total // self.shape[0] if self.on_chip else total
        self.partition_bytes = self.free * dtype.itemsize
        self.nbytes = total * dtype.itemsize
        self.steps = row_major(self.shape)
        self.ways: dict[tuple, dict[str, Any]] = {}
        self.whole = self.ways[0, self.steps, dtype, dtype.narrow] = {}

    def __reduce__(self):
        return sort_of, (self.space, self.shape, self.dtype, self.partition)


_SORTS: dict[tuple, Sort] = {}
_SORT_LIMIT = 100_000


def sort_of(space: str, shape: tuple[int, ...], dtype: DType, partition: int) -> Sort:
    """The one Sort of these; ShapeError or SpaceError for what cannot be."""
    # 64.0 and True equal integers, and so would be found where they must be looked at.
    if type(shape) is not tuple or set(map(type, shape)) != {int}:
        shape = integers("buffer", shape)
    key = space, shape, dtype, dtype.narrow, partition
    found = _SORTS.get(key)
    if found is None:
        if len(_SORTS) >= _SORT_LIMIT:
            _SORTS.clear()
        found = _SORTS[key] = Sort(space, shape, dtype, partition)
    return found


class Buffer:
    """Memory of one shape and dtype in a space; two buffers are equal only if they are the same.

    `address` is the first byte (within each partition on chip, within HBM otherwise) and
    `partition` the first partition, once placed.  `kind`: temp, input, output or constant.
    `sort` is what it shares with others like it.
    """

    __slots__ = (
        "id",
        "dtype",
        "name",
        "where",
        "address",
        "partition",
        "kind",
        "sort",
    )

    def __init__(
        self,
        id: int,
        space: str,
        shape: tuple[int, ...],
        dtype: DType,
        name: str = "",
        where: Where | None = None,
        address: int | None = None,
        partition: int = 0,
        kind: str = "temp",
    ):
        self.sort, self.id, self.dtype = sort_of(space, shape, dtype, partition), id, dtype
        self.name, self.where, self.kind = name, where, kind
        self.address, self.partition = address, partition

    @property
    def space(self) -> str:
        """One of `SPACES`."""
        return self.sort.space

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        return self.sort.shape

    @property
    def on_chip(self) -> bool:
        """Whether it lies in SBUF or PSUM."""
        return self.sort.on_chip

    @property
    def free(self) -> int:
        """Elements of each partition on chip; all elements in HBM."""
        return self.sort.free

    @property
    def partition_bytes(self) -> int:
        """Bytes in each partition on chip; all bytes in HBM."""
        return self.sort.partition_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of all partitions."""
        return self.sort.nbytes

    @property
    def partitions(self) -> int:
        """Number of partitions the buffer spans on chip; 1 in HBM."""
        return self.shape[0] if self.on_chip else 1

    def overlaps(self, other: "Buffer") -> bool:
        """Whether both lie at explicit addresses of one on-chip memory and share a byte."""
        if self.space != other.space or self.address is None or other.address is None:
            return False
        rows = self.partition < other.partition + other.partitions
        rows = rows and other.partition < self.partition + self.partitions
        last, end = self.address + self.partition_bytes, other.address + other.partition_bytes
        return rows and self.address < end and other.address < last

    def __repr__(self) -> str:
        return f"Buffer({self.id}, {self.space} {self.name or '?'}{list(self.shape)} {self.dtype})"
