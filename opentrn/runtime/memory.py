"""Device memory: what a loaded program takes of the HBM, by the runtime's categories.

Categories and rules: AWS Neuron SDK documentation, "Device memory" (hardware facts §9).  Sizes of
facts are read from the chip; each row says where it is from and how sure it is.
"""

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import NamedTuple

from opentrn.base import CapacityError, bytes_text, declare
from opentrn.hw import Chip
from opentrn.isa import Buffer, Instruction, Loop, Program, View
from opentrn.runtime.device import Device

declare(
    "runtime.hbm",
    "A program needs more device memory than its NeuronCore has.",
    rule="constants, tensors, scratchpad, code and DMA rings fit the core's share of the HBM",
    fix="use a smaller batch or dtype, or spread the model over more cores",
    neuron="NRT_RESOURCE 4",
)

# A DMA descriptor is 16 bytes, and a transfer has one on the side that reads and one on the side
# that writes: 32 bytes, as measured for spills (hardware facts §9).
RING_BYTES = 32
RINGS_OF_RUNTIME = 4096
RUNTIME_BYTES = 108 * 1024
# Categories that may get smaller by themselves, and how.
SMALLER = {
    "model constants": "store weights in a dtype that takes",
    "shared scratchpad": "take a batch or sequence that takes",
}
# Numbers of cores that a program may be spread over, to say which would hold it.
SPLITS = tuple(1 << n for n in range(1, 11))
_EXAMPLE = "example of the device memory page, one graph"


class Row(NamedTuple):
    """One category: `nbytes`, the grade of that number, and where it is from."""

    name: str
    nbytes: int
    grade: str
    source: str


@dataclass(frozen=True)
class MemoryUse:
    """What one program takes of the HBM of one core, and what there is. Sizes in bytes.

    `use["model constants"]` is the size of one category.
    """

    rows: tuple[Row, ...]
    available: int
    device: str

    @property
    def total(self) -> int:
        """All categories together."""
        return sum(row.nbytes for row in self.rows)

    def __getitem__(self, name: str) -> int:
        """The size of a category; KeyError for a name that is none."""
        return {row.name: row.nbytes for row in self.rows}[name]

    def table(self) -> str:
        """The breakdown as text, largest first."""
        rows = sorted(self.rows, key=lambda row: -row.nbytes)
        lines = [f"{'device memory':22} {'bytes':>10}  {'grade':8} source"]
        lines += [
            f"{row.name:22} {bytes_text(row.nbytes):>10}  {row.grade:8} {row.source}"
            for row in rows
        ]
        lines.append(f"{'total':22} {bytes_text(self.total):>10}")
        lines.append(f"{'available':22} {bytes_text(self.available):>10}  {self.device}")
        return "\n".join(lines)

    __str__ = table

    def would_fit(self) -> str:
        """What would fit: an even split over more cores, or less of one category on this one.

        Every core has its own microcode and runtime; all else is divided.
        """
        every = sum(self[name] for name in ("microcode", "runtime", "DMA rings runtime"))
        each = [(n, every + -(-(self.total - every) // n)) for n in SPLITS]
        found = [f"spread it evenly over {n} cores ({bytes_text(size)} on each)"
                 for n, size in each if size <= self.available][:1]  # fmt: skip
        for name, way in SMALLER.items():
            room = self.available - (self.total - self[name])
            if 0 < room < self[name]:
                found.append(f"{way} {room / self[name]:.2f} of the {name}")
        return ", or ".join(found) or "use many more cores, or a smaller model"


def memory_use(program: Program, device: Device) -> MemoryUse:
    """The breakdown for one program on one core; nothing is checked."""
    sizes = {
        "constants": sum(b.nbytes for b in program.constants),
        "inputs": _sum(program.inputs),
        "outputs": _sum(program.outputs, program.inputs),
        "scratchpad": scratchpad_bytes(program),
    }
    return memory_of(len(program), sizes, _rings(program), device)


def memory_of(
    count: int, sizes: dict[str, int], rings: tuple[int, int], device: Device
) -> MemoryUse:
    """The breakdown for so many instructions, tensors of these bytes, and bytes of `ring_bytes`.

    `sizes` has constants, inputs, outputs and scratchpad.
    """
    chip = device.chip
    code = chip.fact("memory.instruction")
    microcode = chip.fact("memory.microcode")
    page, scratch, (io, spill) = scratchpad_page(chip), sizes["scratchpad"], rings
    pages = -(-scratch // int(page.value)) * int(page.value)
    rows = (
        Row("model code", count * int(code.value), code.grade, f"{count:,} x {code.text}"),
        Row("microcode", int(microcode.value), microcode.grade, "for each physical core"),
        Row("model constants", sizes["constants"], "derived",
            "constants of the executable"),
        Row("input tensors", sizes["inputs"], "derived", "inputs of the executable"),
        Row("output tensors", sizes["outputs"], "derived", "its outputs"),
        Row("shared scratchpad", pages, "derived",
            f"{bytes_text(scratch)} alive at once, in pages of {page.text}"),
        Row("DMA rings IO", io, "fitted", f"{RING_BYTES} B a descriptor that is not generated"),
        Row("DMA rings spill", spill, "fitted", "the same, for tensors that are not IO"),
        Row("DMA rings runtime", RINGS_OF_RUNTIME, "assumed", _EXAMPLE),
        Row("runtime", RUNTIME_BYTES, "assumed", _EXAMPLE),
    )  # fmt: skip
    return MemoryUse(rows, device.hbm_bytes, str(device))


def check_memory(use: MemoryUse, name: str) -> None:
    """CapacityError `runtime.hbm` when it does not fit; the table is the error's note."""
    if use.total <= use.available:
        return
    most = sorted(use.rows, key=lambda row: -row.nbytes)[:3]
    error = CapacityError(
        f"{name} needs {bytes_text(use.total)} of HBM, there are {bytes_text(use.available)}: "
        + ", ".join(f"{row.name} {bytes_text(row.nbytes)}" for row in most),
        code="runtime.hbm",
        fix=use.would_fit(),
    )
    error.add_note(use.table())
    raise error


def scratchpad_page(chip: Chip):
    """The fact of the scratchpad's page size on one physical core.

    Pages are contiguous where the runtime supports it: trn1 and inf2, and trn2 and trn3 with two
    cores to a logical one; a program here runs on one physical core.
    """
    contiguous = int(chip.logical_cores) == 1
    return chip.fact("memory.contiguous_page" if contiguous else "memory.scratchpad_page")


def scratchpad_bytes(program: Program) -> int:
    """The most bytes of temporary HBM buffers that live at the same time.

    A buffer lives from the first instruction that touches it to the last; one that is touched in a
    device loop lives through the whole loop.
    """
    lives: dict[Buffer, list[int]] = {}
    _walk(program.body, 0, lives)
    skip = {*program.inputs, *program.outputs, *program.constants}
    changes: list[tuple[int, int]] = []
    for buffer, (first, last) in lives.items():
        if buffer.space == "hbm" and buffer not in skip:
            changes += [(first, buffer.nbytes), (last + 1, -buffer.nbytes)]
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def _walk(body, position: int, lives: dict[Buffer, list[int]]) -> int:
    """Note first and last use of each buffer; returns the next position."""
    for node in body:
        if isinstance(node, Loop):
            begin, inner = position, {}
            position = _walk(node.body, position, inner)
            for buffer in inner:
                _use(lives, buffer, begin)
                _use(lives, buffer, max(begin, position - 1))
            continue
        for view in node.views():
            _use(lives, view.buffer, position)
        position += 1
    return position


def _use(lives: dict[Buffer, list[int]], buffer: Buffer, position: int) -> None:
    lives.setdefault(buffer, [position, position])[1] = position


def _sum(buffers: Iterable[Buffer], but: Iterable[Buffer] = ()) -> int:
    """Bytes of the buffers, each counted once, without those of `but`."""
    skip = set(but)
    return sum(b.nbytes for b in dict.fromkeys(buffers) if b not in skip)


def _rings(program: Program) -> tuple[int, int]:
    return ring_bytes(program, {*program.inputs, *program.outputs})


def ring_bytes(program: Program, outside: Set[Buffer]) -> tuple[int, int]:
    """Bytes of DMA rings for transfers to or from the tensors `outside`, and for all others."""
    io = spill = 0
    for one, size in _prepared(program.instructions()):
        views = [o for o in one.operands if isinstance(o, View)]
        if any(view.buffer in outside for view in views):
            io += size
        else:
            spill += size
    return io, spill


def _prepared(instructions: Iterable[Instruction]) -> Iterator[tuple[Instruction, int]]:
    """Transfers whose descriptors lie ready in memory, and the bytes of those descriptors."""
    for one in instructions:
        move = getattr(one.form, "move", None)
        mode = getattr(getattr(one.form, "dge_mode", None), "name", "unknown")
        if move is None or mode in ("hwdge", "swdge"):
            continue
        if any(side.indirect for _, side in one.form.tiles()):
            continue  # the address is known only while it runs, so the descriptor is made then
        yield one, move.descriptors * RING_BYTES
