"""What the clock needs to know of one instruction form: streams, durations, shared ports.

The costs of `isa` say how long an instruction streams and when its result can be read.  Here what
lies between two instructions of one engine is added (hw: `issue`, `pointer`, `function_issue`): an
instruction that follows another begins that many cycles after the other's last element, while the
result is still on its way.  An operand that holds one number for each partition is read first.
"""

from typing import Any, NamedTuple

from opentrn.base import Bug
from opentrn.isa import OperandForm, cores
from opentrn.sim.timing import CELLS, ENGINES, queue_number

# Roles of operands that are read and written.  A PSUM accumulator ("acc") orders as a write only:
# the engine that adds to it works in order.
READS, WRITES = ("in", "inout"), ("out", "inout", "acc")

# Ports that engines of one core share, as bits of `Row.ports`: the SBUF port of the Vector Engine
# and GpSimd, then the PSUM banks as the Vector and the Scalar Engine see them.
SBUF_PORT = 1
PSUM_PORT = 2
# The class of service of a transfer that names none: the last one (assumed, nothing says which).
LAST_CLASS = 3
FAST_MODES = ("tensor_copy", "tensor_scalar", "tensor_tensor")


class Row(NamedTuple):
    """What the clock needs of one form (ns; see `timing.Columns`), and where that is known from.

    `table` is the set of activation coefficients it needs ("" for any); `banks` whether PSUM banks
    are added to `ports` for each instruction; `meets` whether it waits for the other core.
    """

    stream: int
    busy: float
    latency: float
    background: float
    lead: float
    move: float
    finish: float
    hbm: float
    first: int
    count: int
    ports: int
    cells: int
    share: float
    priority: int
    grade: str
    table: str = ""
    banks: bool = False
    meets: bool = False


def row_of(form: Any, chip) -> Row:
    """The clock's view of a form on `chip`."""
    transfer = getattr(form, "move", None)
    return engine_row(form, chip) if transfer is None else transfer_row(form, chip, transfer)


def branch_row(engine: int, chip) -> Row:
    """One iteration's branch of a device loop on an engine."""
    fact = chip.fact("launch.loop")
    return _plain(engine, fact.value * 1e9, 0.0, fact.grade, share=0.0)


def _plain(stream: int, busy: float, latency: float, grade: str, **more) -> Row:
    given = {"background": 0.0, "lead": 0.0, "move": 0.0, "finish": 0.0, "hbm": 0.0, "first": 0,
             "count": 0, "ports": 0, "cells": 0, "share": 1.0,
             "priority": LAST_CLASS, **more}  # fmt: skip
    return Row(stream=stream, busy=busy, latency=latency, grade=grade, **given)


def transfer_row(form: Any, chip, transfer) -> Row:
    """A DMA instruction; its queue follows from its sides.

    HBM time is the bytes it reads and writes there over the bandwidth of one HBM stack, which the
    cores beside it share (hw/chips: "two cores share one stack").
    """
    sides = [(form.operands[name].role, side.space) for name, side in form.tiles()]
    from_hbm = any(space == "hbm" and role in READS for role, space in sides)
    into_hbm = any(space == "hbm" and role in WRITES for role, space in sides)
    kind = 1 if into_hbm else (0 if from_hbm else 2)
    return _plain(
        queue_number(ENGINES.index(transfer.issuer), kind),
        transfer.issue_ns,
        0.0,
        form.cost.grade,
        lead=transfer.start_ns,
        move=transfer.busy_ns,
        finish=transfer.finish_ns + chip.dma.finish * 1e9,
        hbm=(from_hbm + into_hbm) * transfer.nbytes / stack_bandwidth(chip) * 1e9,
        priority=LAST_CLASS if getattr(form, "priority", None) is None else int(form.priority),
        first=int(transfer.first_engine),
        count=int(transfer.engines),
    )


def stack_bandwidth(chip) -> float:
    """Bytes a second of one HBM stack."""
    return chip.hbm_bandwidth / chip.hbm_stacks


def engine_row(form: Any, chip) -> Row:
    """An instruction of one of the five engines."""
    if form.engine_name not in ENGINES:
        raise Bug(f"{type(form).__name__} runs on {form.engine_name}, which has no clock")
    cost, tiles = form.cost, [side for _, side in form.tiles()]
    busy, latency = cost.busy_ns, cost.latency_ns
    meets = isinstance(form, cores.Meeting)
    if form.engine_name in ("vector", "scalar") and tiles and not form.meets:
        busy, latency = dispatched(form, chip)
    cells, share = (0, 1.0) if form.engine_name != "tensor" else array_part(form, chip)
    ports, banks = shared_ports(form, chip, tiles)
    return _plain(
        ENGINES.index(form.engine_name),
        busy,
        latency,
        cost.grade,
        background=cost.background_ns,
        ports=ports,
        cells=cells,
        share=share,
        table=table_of(form),
        banks=banks,
        meets=meets,
    )


def table_of(form: Any) -> str:
    """The set of coefficients an activation function needs ("" for those in every set)."""
    return getattr(getattr(form, "op", None), "table", "") if form.engine_name == "scalar" else ""


def dispatched(form: Any, chip) -> tuple[float, float]:
    """(busy, latency) in ns with what lies between instructions of the Vector or Scalar Engine.

    What streams is what `isa` counts up to the readable result, less the engine's latency.
    """
    engine, cost = getattr(chip, form.engine_name), form.cost
    tick, special = 1e9 / engine.clock, bool(table_of(form))
    after = (engine.function_latency if special else engine.latency) * 1e9
    stream = max(cost.busy_ns + cost.latency_ns - after, 0.0)
    between = (engine.function_issue if special else engine.issue) * tick
    pointers = 0.0 if special else pointer_operands(form) * engine.pointer * tick
    busy = max(engine.min_cycles * tick, stream + between) + pointers
    return busy, max(0.0, stream + pointers + after - busy)


def pointer_operands(form: Any) -> int:
    """How many operands are tiles that stand where a number could."""
    declared, given = form.operands, zip(form.operand_names, form.given, strict=True)
    return sum(
        isinstance(side, OperandForm) and getattr(declared[name], "immediate", False)
        for name, side in given
    )


# ---------------------------------------------------------------------- what engines share


def shared_ports(form: Any, chip, tiles: list) -> tuple[int, bool]:
    """(ports without banks, whether PSUM banks are to be added), by generation.

    NeuronCore-v2: Vector and GpSimd cannot access SBUF in parallel, Vector and Scalar not PSUM
    (NG2:763-768).  From v3 on: Vector's performance modes use the bus it shares with GpSimd, and
    Vector and Scalar access PSUM in parallel unless they meet in one bank (NG3:266-273).
    """
    engine, ports = form.engine_name, 0
    spaces = {side.space for side in tiles}
    old = chip.generation < 3
    if "sbuf" in spaces and (
        engine == "gpsimd" or (engine == "vector" and (old or in_fast_mode(form, tiles)))
    ):
        ports = SBUF_PORT
    in_psum = engine in ("vector", "scalar") and "psum" in spaces
    return (ports | PSUM_PORT, False) if in_psum and old else (ports, in_psum)


def in_fast_mode(form: Any, tiles: list) -> bool:
    """Whether the Vector Engine moves more than one element a cycle and lane (NG3:222-239)."""
    if type(form).__name__ not in FAST_MODES:
        return False
    clock, free = form.chip.vector.clock, max(side.free for side in tiles)
    after = form.chip.vector.latency * 1e9
    stream = (form.cost.busy_ns + form.cost.latency_ns - after) * clock / 1e9
    if type(form).__name__ == "tensor_tensor":
        # Two tiles from SBUF take two cycles an element; all-bfloat16 ones one, even on v2.
        both = all(side.space == "sbuf" for side in tiles)
        return both and all(side.dtype.itemsize <= 2 for side in tiles) and stream < 1.5 * free
    return stream < 0.75 * free


def array_part(form: Any, chip) -> tuple[int, float]:
    """(cells of the PE array, share of the array's work that the current limiter counts).

    Cells are 4 × 4 blocks of 32 rows and columns.  The limiter's measure is not public; work is
    counted by rows in use: of two published runs of 32-row and 32-column products one was slowed,
    and rows are what moving data enters.
    """
    rows, columns = int(chip.tensor.rows), int(chip.tensor.columns)
    size = tuple(getattr(form, "tile_size", ())) or (rows, columns)
    at = tuple(getattr(form, "tile_position", ())) or (0, 0)
    block = rows // CELLS
    cells = 0
    for r in range(int(at[0]) // block, -(-(int(at[0]) + int(size[0])) // block)):
        for c in range(int(at[1]) // block, -(-(int(at[1]) + int(size[1])) // block)):
            cells |= 1 << (CELLS * r + c)
    used = min(int(getattr(form, "K", rows)), int(size[0])) if hasattr(form, "K") else rows
    return cells, min(1.0, used / rows)
