"""Traced instruction streams of kernels on trn2, replayed by the clock, beside the traced times.

    python -m bench.replay                              every stream of bench/published/traces
    python -m bench.replay --extract TRACE.json OUT.csv a stream from a profile's full JSON

A stream is what one physical core ran between a kernel's first and last instruction, as the
official compiler ordered it: engine, opcode, sizes, and which instructions each one waited for (its
semaphores).  Replaying it leaves the compiler out of the comparison: only durations, waits and
transfers are ours.  Sources: github.com/allenkchau/trainium-kernel-fusion, profiling/ (MIT licence,
neuronx-cc 2.23.6484, 2026-03).  The numbers in hw/chips/trn2.toml come out the same within 2 % from
the six streams other than `s1024` alone, so the four `s1024` streams are a check on them; only
the threshold of the current limiter was narrowed with all ten.
"""

import argparse
import csv
import json
import re
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from opentrn import hw
from opentrn.base import bfloat16, float32
from opentrn.isa import INSTRUCTIONS, Buffer, ImmediateForm, engine, form, operand_form, view_of
from opentrn.sim import timing
from opentrn.sim.rows import row_of, stack_bandwidth
from opentrn.sim.timeline import rates_of

TRACES = Path(__file__).resolve().parent / "published" / "traces"
CHECKS = "s1024"
FIELDS = ("engine", "opcode", "elements", "space", "source", "target", "descriptors", "bytes",
          "after", "start_ns", "duration_ns")  # fmt: skip
# What a profile calls an instruction, what it is here.
OPCODES = {
    "COPY": "tensor_copy",
    "CAST": "tensor_copy",
    "TENSOR_REDUCE": "tensor_reduce",
    "TENSOR_SCALAR": "tensor_scalar",
    "ACTIVATE": "activation",
    "RECIPROCAL": "reciprocal",
}
TYPES = {"fp32": float32, "bfloat16": bfloat16}


class Step(NamedTuple):
    """One instruction of a stream; `after` are the numbers of those it waited for.

    The last one, END, is when the profiler says the kernel's last transfer was over.
    """

    engine: str
    opcode: str
    elements: int
    space: str
    source: str
    target: str
    descriptors: int
    bytes: int
    after: tuple[int, ...]
    start_ns: int
    duration_ns: int


class Replayed(NamedTuple):
    """A stream in our time beside the traced one, in ns from the first instruction's start."""

    name: str
    steps: list[Step]
    start: list[float]
    visible: list[float]
    traced: float

    @property
    def ours(self) -> float:
        """Our time of the stream."""
        return max(self.visible)


def read(path: Path) -> list[Step]:
    """The stream in a file that `extract` wrote."""
    steps = []
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            numbers = {n: int(row[n]) for n in FIELDS if n.endswith("_ns")}
            sizes = {n: int(row[n] or 0) for n in ("elements", "descriptors", "bytes")}
            after = tuple(int(n) for n in row["after"].split())
            steps.append(Step(**{**row, **numbers, **sizes, "after": after}))
    return steps


def replay(path: Path) -> Replayed:
    """Run one stream through the clock."""
    chip, (*told, end) = hw.chip("trn2"), read(path)
    steps, rows = merged(told)
    found: dict[str, list] = {name: [] for name in timing.Columns._fields}
    found["dep_start"].append(0)
    for step in steps:
        row = columns_of(step, chip)
        for name in timing.Columns._fields[:-2]:
            found[name].append(row[name])
        found["dep"] += [4 * rows[other] + timing.SEEN for other in step.after]
        found["dep_start"].append(len(found["dep"]))
    schedule = timing.schedule(timing.Columns(**found), rates_of(chip))
    return Replayed(path.stem, steps, schedule.start, schedule.visible, float(end.start_ns))


def merged(told: list[Step]) -> tuple[list[Step], list[int]]:
    """The steps with each stationary load joined to its multiply, and where each one went."""
    steps: list[Step] = []
    rows, waits = [], ()
    for step in told:
        rows.append(len(steps))
        if step.opcode == "LDWEIGHTS":
            waits += step.after
            continue
        if step.opcode == "MATMUL":
            step, waits = step._replace(after=waits + step.after), ()
        steps.append(step)
    return steps, rows


def columns_of(step: Step, chip: Any) -> dict[str, Any]:
    """The clock's columns for one step; every traced stationary tile has 128 columns."""
    row: dict[str, Any] = dict.fromkeys(timing.Columns._fields[:-2], 0.0)
    row.update(stream=timing.ENGINES.index(step.engine), share=1.0, first=0, count=0, ports=0,
               cells=0)  # fmt: skip
    passes = 2 if step.source == "fp32" else 1  # a float32 product is two such instructions
    column = 1e9 / chip.tensor.clock
    if step.opcode == "MATMUL":
        load = chip.tensor.stationary_free / chip.tensor.load_ratio * column * passes
        row.update(busy=step.elements * column * passes, latency=chip.tensor.latency * 1e9,
                   background=load)  # fmt: skip
    elif step.opcode == "ACT_TABLE_LOAD":
        row["busy"] = chip.scalar.table_load * 1e9
    elif step.opcode == "DMA":
        row.update(transfer(step, chip))
    elif step.opcode in OPCODES:
        known = row_of(form_of(step, chip), chip)
        row.update(busy=known.busy, latency=known.latency)
    return row


def transfer(step: Step, chip: Any) -> dict[str, Any]:
    """A DMA by its descriptors; GpSimd builds them in software, the others in hardware."""
    dma = chip.dma
    issue, start = dma.hwdge_issue, dma.start
    if step.engine == "gpsimd":
        fetch = dma.swdge_fetch if step.target == "sbuf" else 0.0
        issue, start = dma.swdge_issue, dma.swdge_start + fetch
    each = dma.descriptor + step.bytes / dma.engine_rate
    issuer = timing.ENGINES.index(step.engine)
    return {
        "stream": timing.queue_number(issuer, 0 if step.target == "sbuf" else 1),
        "busy": issue * 1e9,
        "lead": (start - issue) * 1e9,
        "move": -(-step.descriptors // int(dma.engines)) * each * 1e9,
        "finish": dma.finish * 1e9,
        "hbm": step.descriptors * step.bytes / stack_bandwidth(chip) * 1e9,
        "count": int(dma.engines),
    }


def form_of(step: Step, chip: Any):
    """The form of an instruction on 128 partitions with what a traced one has."""
    cls, width = INSTRUCTIONS[OPCODES[step.opcode]], step.elements
    data = ("psum" if step.space == "psum" else "sbuf", width, TYPES[step.source])
    out = ("sbuf", 1 if cls.__name__ == "tensor_reduce" else width, TYPES[step.target])
    number = ("sbuf", 1, float32)
    given = {"dst": out, "src": data, "data": data, "bias": number, "operand0": number}
    flags = {"op0": "multiply", "axis": 1, "engine": engine.vector, "op": "maximum"}
    if step.engine == "scalar":
        flags.update(engine=engine.scalar, op="exp")
    forms = []
    for name, declared in cls.operands.items():
        if name in given:
            space, free, dtype = given[name]
            forms.append(operand_form(view_of(Buffer(len(forms), space, (128, free), dtype))))
        else:
            default = getattr(declared, "default", None)
            forms.append(None if default is None else ImmediateForm())
    chosen = tuple(flags.get(name, flag.default) for name, flag in cls.flags.items())
    return form(cls, chip, tuple(forms), chosen)


# ------------------------------------------------------------------------------------- extraction


def extract(trace: Path, out: Path) -> None:
    """Write the stream of a profile's full JSON (neuron-profile 2.28) to a file."""
    page = json.loads(trace.read_text(encoding="utf-8"))
    layer = next(x for x in page["layer_summary"] if x["name"].endswith("/Unknown"))
    told = [i for i in page["instruction"] if i["subgraph"] == "sg00"
            and layer["start"] - 1 <= i["timestamp"] <= layer["end"] and _wanted(i)]  # fmt: skip
    told.sort(key=lambda i: i["timestamp"])
    counted = _counts(told)
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS)
        for i in told:
            after = " ".join(map(str, _waits(i["operands"], counted)))
            sizes = _sizes(i["opcode"], i["operands"])
            name = "DMA" if i["opcode"] == "DMA_DIRECT2D" else i["opcode"]
            writer.writerow([i["subgroup"].lower(), name, *sizes, after,
                             i["timestamp"] - layer["start"], i["duration"]])  # fmt: skip
        end = layer["end"] - layer["start"]
        writer.writerow(["sync", "END", *[""] * (len(FIELDS) - 4), end, 0])


def _wanted(i: dict) -> bool:
    kinds = {*OPCODES, "LDWEIGHTS", "MATMUL", "ACT_TABLE_LOAD", "DMA_DIRECT2D"}
    waits = i["opcode"] == "EVENT_SEMAPHORE" and re.search(r"S\[\d+\] \(", i["operands"])
    return i["opcode"] in kinds or bool(waits)


def _counts(told: list[dict]) -> dict[int, list[int]]:
    """For each semaphore the instructions that count it up, in the order in which they do."""
    found: dict[int, list[tuple[int, int]]] = {}
    for number, i in enumerate(told):
        own = re.search(r"S\[(\d+)\] \(\w+\)\+\+@complete", i["operands"])
        dma = re.search(r"semaphore=(\d+) sem_increment=16", i["operands"])
        if own:
            done = i["timestamp"] + i["duration"]
            found.setdefault(int(own[1]), []).append((done, number))
        if dma:
            found.setdefault(int(dma[1]), []).append((i["timestamp"], number))
    return {semaphore: [n for _, n in sorted(counts)] for semaphore, counts in found.items()}


def _waits(operands: str, counted: dict[int, list[int]]) -> list[int]:
    found = []
    for semaphore, who, value in re.findall(r"S\[(\d+)\] \((\w+)\)>=(\d+)", operands):
        turn = int(value) // 16 - 1 if who.startswith("q") else int(value) - 1
        known = counted.get(int(semaphore), [])
        if 0 <= turn < len(known):
            found.append(known[turn])
    return found


def _sizes(opcode: str, operands: str) -> tuple:
    """(elements, space, source dtype, target dtype or space, descriptors, bytes)."""
    if opcode == "DMA_DIRECT2D":
        counts = re.search(r"src_pattern=\[[\d,]+\]\[([\d,]+)\]", operands)[1]
        sizes = [int(n) for n in re.findall(r"(?:src|dst)_elem_size=(\d+)", operands)]
        target = "hbm" if "src_addr_imm=0x802" in operands else "sbuf"
        return "", "", "", target, _product(counts), max(sizes)
    source = re.search(r"src=(\w+)@0x(\w+)\[[^\]]*\]\[([^\]]*)\]", operands)
    target = re.search(r"dst=(\w+)@", operands)
    if source is None:
        return "", "", "", "", "", ""
    # PSUM begins at 0x2000000 in a profile's addresses.
    space = "psum" if len(source[2]) == 7 and source[2][0] == "2" else "sbuf"
    return _product(source[3]), space, source[1], target[1] if target else "", "", ""


def _product(counts: str) -> int:
    total = 1
    for n in counts.split(","):
        total *= int(n)
    return total


def streams() -> list[Path]:
    """The files of all streams."""
    return sorted(TRACES.glob("*.csv"))


def main() -> None:
    """Print every stream's time, or extract one."""
    parser = argparse.ArgumentParser(description="traced streams replayed")
    parser.add_argument("--extract", nargs=2, type=Path, metavar=("TRACE", "OUT"))
    asked = parser.parse_args()
    if asked.extract:
        extract(*asked.extract)
        return
    chip = hw.chip("trn2")
    around = (chip.launch.begin + chip.launch.end) * 1e9
    print("| stream | instructions | traced | replayed | error | error of the whole run | use |")
    print("|---|---|---|---|---|---|---|")
    errors = []
    for path in streams():
        r = replay(path)
        whole = (r.ours + around) / (r.traced + around) - 1
        errors.append(abs(whole))
        use = "check" if CHECKS in r.name else "looked at"
        print(f"| {r.name} | {len(r.steps)} | {r.traced / 1e3:.1f} us | {r.ours / 1e3:.1f} us | "
              f"{r.ours / r.traced - 1:+.1%} | {whole:+.1%} | {use} |")  # fmt: skip
    print(f"median |error| of whole runs {statistics.median(errors):.1%}, worst {max(errors):.1%}")


if __name__ == "__main__":
    main()
