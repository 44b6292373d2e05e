"""Tiles of SBUF and PSUM in place and time: what lies where when, and what is alive at the peak."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from opentrn.base import Where, bytes_text, seconds_text
from opentrn.hw import Chip
from opentrn.isa import Loop, View

NS = 1e-9
WIDTH = 100
BAR = 20
_ASSIGNED = re.compile(r"(\w+)\s*(?::[^=]+)?=[^=]")


class Tile(NamedTuple):
    """One on-chip buffer: `address` and `nbytes` within each partition, `begin` to `end` in ns.

    It counts from the first start to the last end of an instruction that touches it, and lies in
    `partitions` partitions from `partition` on.
    """

    space: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    where: Where | None
    partitions: int
    address: int
    nbytes: int
    begin: float
    end: float
    partition: int = 0

    def lies_in(self, partition: int) -> bool:
        """Whether the tile has bytes in a partition."""
        return self.partition <= partition < self.partition + self.partitions


class Peak(NamedTuple):
    """The fullest moment of one memory: when (ns), the most bytes within a partition, and the tiles
    alive there then.
    """

    space: str
    time: float
    nbytes: int
    tiles: tuple[Tile, ...]


def tiles_of(
    instructions: Sequence, start: Iterable[float], end: Iterable[float], slots: Mapping
) -> tuple[Tile, ...]:
    """The tiles of a timed program, in order of their first use.

    `instructions` are the executed ones (a Loop stands for its branch) with their times in ns;
    `slots` maps buffers to places with `.address`, `.nbytes` and `.partition`.
    """
    first: dict[Any, float] = {}
    last: dict[Any, float] = {}
    for one, begin, done in zip(instructions, start, end, strict=True):
        if isinstance(one, Loop):
            continue
        for operand in one.operands:
            if type(operand) is View and operand.buffer.on_chip:
                buffer = operand.buffer
                if begin < first.get(buffer, float("inf")):
                    first[buffer] = begin
                if done > last.get(buffer, -1.0):
                    last[buffer] = done
    found = [
        Tile(
            buffer.space, _name(buffer), buffer.shape, str(buffer.dtype),
            buffer.where, buffer.partitions, slot.address, slot.nbytes, float(first[buffer]),
            float(last[buffer]), slot.partition,
        )
        for buffer, slot in slots.items() if buffer in first
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda tile: (tile.begin, tile.space, tile.address)))


def _name(buffer: Any) -> str:
    """The name it was given, else that of the variable it was assigned to, else its number."""
    if buffer.name:
        return buffer.name
    found = _ASSIGNED.match(buffer.where.text) if buffer.where else None
    return found[1] if found else f"#{buffer.id}"


def peak_of(tiles: Iterable[Tile], space: str) -> Peak | None:
    """The first moment at which most bytes of `space` are in use; None without tiles in it."""
    own = [tile for tile in tiles if tile.space == space]
    if not own:
        return None
    # A partition at which no tile begins is no fuller than the one before it.
    found = [_peak_in(own, space, first) for first in sorted({tile.partition for tile in own})]
    return max(found, key=lambda peak: peak.nbytes)


def _peak_in(tiles: Iterable[Tile], space: str, partition: int) -> Peak:
    """The peak of one partition."""
    own = [tile for tile in tiles if tile.lies_in(partition)]
    changes = [(tile.begin, 1, tile.nbytes) for tile in own]
    changes += [(tile.end, 0, -tile.nbytes) for tile in own]
    now, most, at = 0, -1, 0.0
    for time, _, change in sorted(changes):  # what ends makes room before what begins
        now += change
        if now > most:
            most, at = now, time
    alive = [tile for tile in own if tile.begin <= at < tile.end]
    return Peak(space, at, most, tuple(sorted(alive, key=lambda tile: tile.address)))


def memory_text(tiles: Iterable[Tile], chip: Chip, most: int = 24) -> str:
    """The live tiles of SBUF and PSUM at their peaks as a page of text, with their lines."""
    tiles = tuple(tiles)
    core = chip.core
    sizes = {"sbuf": core.sbuf_usable, "psum": core.psum_banks * core.psum_bank}
    lines: list[str] = []
    for space, size in sizes.items():
        peak = peak_of(tiles, space)
        if peak is None:
            lines += [f"{space.upper()}: no tile", ""]
            continue
        lines.append(
            f"{space.upper()} is fullest at {seconds_text(peak.time * NS)}: "
            f"{bytes_text(peak.nbytes)} of {bytes_text(size)} in each partition "
            f"({100 * peak.nbytes / size:.0f} %), {len(peak.tiles)} tiles alive"
        )
        lines += _peak_lines(peak, size, most)
        lines.append("")
    return "\n".join(lines)


def _peak_lines(peak: Peak, size: float, most: int) -> list[str]:
    shown = sorted(peak.tiles, key=lambda tile: (-tile.nbytes, tile.address))[:most]
    lines = [f"  {'address':>7}  {'bytes':>7}  {'place':{BAR}}  tile"]
    for tile in sorted(shown, key=lambda tile: tile.address):
        head = f"  {tile.address:7}  {tile.nbytes:7}  {_place(tile, size)}  "
        lines.append(_cut(head + _words(tile)))
    rest = len(peak.tiles) - len(shown)
    if rest:
        small = peak.nbytes - sum(tile.nbytes for tile in shown)
        lines.append(f"  and {rest} smaller ones with {bytes_text(small)}")
    return lines


def _place(tile: Tile, size: float) -> str:
    """Where the tile lies in its memory, as a line of `BAR` cells."""
    first = min(BAR - 1, int(tile.address * BAR / size))
    last = max(first + 1, min(BAR, round((tile.address + tile.nbytes) * BAR / size)))
    return "·" * first + "█" * (last - first) + "·" * (BAR - last)


def _words(tile: Tile) -> str:
    return f"{tile.name} {list(tile.shape)} {tile.dtype}  {tile.where or ''}".rstrip()


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"


__all__ = ["Peak", "Tile", "memory_text", "peak_of", "tiles_of"]
