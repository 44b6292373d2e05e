"""Whether a kernel's tiles fit the memories of a core.

A tile that Python can still reach may be used again; one it cannot is dead.  So while the tiles
Python can reach fit, all that live at one time fit, and counting them costs almost nothing.  Only
where they do not is the program placed by the lives of its tiles (`sim.place`).
"""

from opentrn.base import CapacityError, bytes_text, declare
from opentrn.isa import Buffer, Loop, Program
from opentrn.sim import Finding, noticed, place, spilled

declare(
    "nki.hbm_capacity",
    "A tensor is larger than the device memory of a chip.",
    rule="tensors of a kernel lie in the HBM of one chip",
    fix="cut the tensor, or spread it over several chips",
)


class Room:
    """Bytes per partition of the on-chip tiles that Python can reach, now and at most."""

    __slots__ = ("live", "most")

    def __init__(self) -> None:
        self.live = {"sbuf": 0, "psum": 0}
        self.most = {"sbuf": 0, "psum": 0}

    def enter(self, buffer: Buffer) -> None:
        """A tile was made."""
        space = buffer.space
        total = self.live[space] = self.live[space] + buffer.partition_bytes
        if total > self.most[space]:
            self.most[space] = total

    def leave(self, buffer: Buffer) -> None:
        """Python let go of a tile."""
        self.live[buffer.space] -= buffer.partition_bytes


def sizes(core) -> dict[str, int]:
    """Usable bytes of a partition, by memory."""
    banks = int(core.psum_banks) * int(core.psum_bank)
    return {"sbuf": int(core.sbuf_usable), "psum": banks}


def refuse_larger(chip, buffer: Buffer) -> None:
    """CapacityError for a tile that no partition can hold, or a tensor that no chip can."""
    if not buffer.on_chip:
        if buffer.nbytes > int(chip.hbm):
            raise CapacityError(
                f"ndarray: {buffer.dtype}{list(buffer.shape)} takes {bytes_text(buffer.nbytes)}, "
                f"{chip.name} has {bytes_text(int(chip.hbm))} of HBM",
                code="nki.hbm_capacity",
            )
        return
    size = sizes(chip.core)[buffer.space]
    if buffer.partition_bytes > size:
        raise CapacityError(
            f"ndarray: {buffer.dtype}{list(buffer.shape)} takes {buffer.partition_bytes:,} bytes "
            f"of each partition, {size:,} are usable in {buffer.space}",
            code=f"sim.{buffer.space}_capacity",
            fix=f"cut the free dimensions into {-(-buffer.partition_bytes // size)} tiles",
        )


def check_room(room: Room, program: Program, chip) -> list[Finding]:
    """What is to be noticed of a program that needs more SBUF than there is: its spills.

    CapacityError with the tiles alive at the peak, where spills do not help.
    """
    most = sizes(chip.core)
    loops = any(isinstance(node, Loop) for node in program.body)
    if not loops and all(room.most[space] <= size for space, size in most.items()):
        return []
    try:
        place(program, chip)
    except CapacityError as error:
        return [noticed(spilled(program, chip, error), error)]
    return []
