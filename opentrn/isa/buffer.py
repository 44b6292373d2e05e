"""Memory: a `Buffer` is a shape of a dtype in one of the chip's memory spaces."""

from math import prod

from opentrn.base import DType, ShapeError, SpaceError, Where
from opentrn.isa.index import integers, refuse

SPACES = ("hbm", "sbuf", "psum")


class Buffer:
    """Memory of one shape and dtype in a space; two buffers are equal only if they are the same.

    `address` is the first byte (within each partition on chip, within HBM otherwise) and
    `partition` the first partition, once placed.  `kind`: temp, input, output or constant.
    `free` counts elements per partition on chip and all elements in HBM.
    """

    __slots__ = (
        "id",
        "space",
        "shape",
        "dtype",
        "name",
        "where",
        "address",
        "partition",
        "kind",
        "on_chip",
        "free",
        "partition_bytes",
        "nbytes",
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
        self.id, self.space, self.dtype = id, space, dtype
        self.shape = integers("buffer", shape)
        self.name, self.where, self.kind = name, where, kind
        self.address, self.partition = address, partition
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
