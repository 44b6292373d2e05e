"""Would the chip take this kernel?  Answered from shapes, without computing anything.

The kernel's Python runs once with tensors that hold no values.  Every instruction is checked as
it is recorded; one that is refused is noted and left out, and the kernel goes on, so one check
shows many refusals.  What has no result to go on with (a tile that cannot exist, a view outside
its tensor, an error of the kernel itself) ends the recording.  Then the tiles are placed in SBUF
and PSUM, the memory each instruction touches is followed, and the Python is compared with what
the NKI compiler accepts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from opentrn.base import (
    CapacityError,
    TrnError,
    UnwrittenError,
    UsageError,
    Where,
    declare,
    explanation,
)
from opentrn.hw import target as find_target
from opentrn.isa import Instruction, Program, View, view_of
from opentrn.nki.check_arguments import MISSING, SYNTAX, Shaped, fill, shaped
from opentrn.nki.check_record import RAISED, Recorded, record_cores, record_older
from opentrn.nki.jit import AnyKernel, Kernel, jit
from opentrn.nki.session import use_target
from opentrn.nki.subset import examine as examine_python
from opentrn.sim import Finding, Placement, examine, noticed, place, races, spilled

SCHEMA = "opentrn.check/1"

VALUES = declare(
    "nki.check_values",
    "The rest of the kernel depends on values, which a check does not have.",
    rule="a check knows shapes only; `while reg:` and reads of registers need a run",
    fix="run the kernel on example inputs for the rest",
)


@dataclass
class Checked:
    """What a check of one kernel for one target found.

    `complete` says whether the whole kernel was recorded; `assumed` lists arguments that were
    guessed; `peak_bytes` are the most bytes per partition in use at a time, by memory.
    """

    kernel: str
    target: str
    where: Where | None
    arguments: dict[str, str] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)
    refusals: list[TrnError] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    complete: bool = False
    instructions: int = 0
    peak_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """refused, unchecked (arguments are not known), findings, or clean."""
        if any(error.code in (MISSING, SYNTAX) for error in self.refusals):
            return "unchecked"
        if self.refusals:
            return "refused"
        return "findings" if self.findings else "clean"

    def json(self) -> dict[str, Any]:
        """Plain data, in the form of the schema `opentrn.check/1`."""
        return {
            "kernel": self.kernel,
            "target": self.target,
            "at": _place(self.where),
            "status": self.status,
            "complete": self.complete,
            "arguments": self.arguments,
            "assumed": self.assumed,
            "instructions": self.instructions,
            "peak_bytes_per_partition": self.peak_bytes,
            "refusals": [_item(e, e.at, e.neuron) for e in self.refusals],
            "findings": [_item(f, f.where, _neuron(f.code)) for f in self.findings],
        }

    def __str__(self) -> str:
        counts = f"{len(self.refusals)} refused, {len(self.findings)} noticed"
        size = ", ".join(f"{k.upper()} {v} B" for k, v in self.peak_bytes.items() if v)
        facts = f"{self.instructions} instructions" + (f"; {size} per partition" if size else "")
        head = f"{self.kernel} on {self.target}: {self.status} ({counts}; {facts})"
        if not self.complete and self.status != "unchecked":
            head += "\n  not recorded to its end"
        notes = [f"  assumed {each}" for each in self.assumed]
        return "\n".join([head, *notes, *map(str, self.refusals), *map(str, self.findings)])


def _place(where: Where | None) -> dict[str, Any] | None:
    return where and {"file": where.file, "line": where.line, "text": where.text}


def _neuron(code: str) -> str:
    known = explanation(code)
    return known.neuron if known else ""


def _item(found: Any, where: Where | None, neuron: str) -> dict[str, Any]:
    return {
        "code": found.code,
        "what": found.what,
        "at": _place(where),
        "rule": found.rule,
        "fix": found.fix,
        "neuron": neuron,
    }


def check(
    kernel: Callable,
    target: str = "trn2",
    arguments: Mapping[str, Any] | None = None,
    names: Mapping[str, Any] | None = None,
    grid: int | tuple[int, ...] = (),
) -> Checked:
    """Check one kernel for one chip: refusals, findings and the memory it needs.

    `arguments` are values by name, tensors as Shaped (or arrays, of which only the shape counts);
    `names` the globals of its file, which may hold example inputs.  Every program instance of the
    launch `grid` is checked (that of the kernel itself without one); kernels of `neuronxcc.nki`
    too.  Never raises for what the kernel does.  Raises UnknownNameError for an unknown target.
    """
    made = kernel if isinstance(kernel, AnyKernel) else jit(kernel)
    chip = find_target(target)
    sizes = ((grid,) if isinstance(grid, int) else tuple(grid)) or made.grid
    code = getattr(made.func, "__code__", None)
    where = code and Where(code.co_filename, code.co_firstlineno, made.__name__)
    report = Checked(made.__name__, chip.name, where)
    try:
        bound, report.assumed = fill(made.func, shaped(dict(arguments or {})), dict(names or {}))
    except UsageError as error:
        error.at = where
        report.refusals.append(error)
        report.findings = examine_python(made) if isinstance(made, Kernel) else []
        return report
    report.arguments = {name: _shown(value) for name, value in bound.arguments.items()}
    with use_target(chip.name):
        _record(report, made, chip, bound, sizes)
    if isinstance(made, Kernel):
        report.findings += examine_python(made, bound.arguments.values())
    return report


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, Shaped) else repr(value)


def _record(report: Checked, made, chip, bound, grid: tuple[int, ...]) -> None:
    """Record every instance of the launch; then place and follow what was recorded."""
    older = not isinstance(made, Kernel)
    try:
        parts = (record_older if older else record_cores)(made, chip, bound, grid)
    except TrnError as error:
        report.refusals.append(error)
        return
    for part in parts:
        for error in part.refused:
            _once(report.refusals, error)
        for found in part.findings:
            _once(report.findings, found)
        if part.stop is not None:
            _stopped(report, part.stop)
    report.complete = all(part.program is not None for part in parts)
    if report.complete:
        for part in parts:
            _follow(report, part, chip, shared=len(parts) > 1, older=older)
        if len(parts) > 1:
            _follow_shared(report, parts, chip)


def _once(known: list, one: Any) -> None:
    """Add a refusal or finding unless the same is known at the same line."""
    place = one.at if isinstance(one, TrnError) else one.where
    for other in known:
        there = other.at if isinstance(other, TrnError) else other.where
        if (other.code, other.what, there) == (one.code, one.what, place):
            return
    known.append(one)


def _stopped(report: Checked, error: Exception) -> None:
    """An error that ended the recording: the kernel's, or only ours for want of values."""
    if not isinstance(error, TrnError):
        _once(report.refusals, _raised(error))
    elif error.code in ("sim.register", "nki.counter"):
        known = explanation(VALUES)
        found = Finding(VALUES, known.meaning, error.at, known.rule, known.fix)
        _once(report.findings, found)
    else:
        _once(report.refusals, error)


def _raised(error: Exception) -> TrnError:
    """An error of the kernel's own Python, at the line that raised it."""
    trace = error.__traceback__
    at = None
    while trace is not None:
        code = trace.tb_frame.f_code
        ours = trace.tb_frame.f_globals.get("__name__", "").startswith("opentrn.")
        at = at if ours else Where(code.co_filename, trace.tb_lineno, code.co_name)
        trace = trace.tb_next
    text = f": {error}" if str(error) else ""
    return UsageError(f"the kernel raised {type(error).__name__}{text}", code=RAISED, at=at)


def _follow(report: Checked, part: Recorded, chip, shared: bool, older: bool) -> None:
    """Where the tiles lie, and what each instruction finds in memory.

    What a refused instruction touches counts as written: it would have been.  `shared` outputs may
    be written by other instances; kernels of the `older` language write their arguments.
    """
    program = part.program
    report.instructions += len(program) + len(part.touched and part.refused)
    try:
        whole, placed = _placed(report, program, chip)
        for space, most in placed.peak_bytes.items():
            report.peak_bytes[space] = max(most, report.peak_bytes.get(space, 0))
        for found in (*placed.findings, *races(whole, chip)):
            _once(report.findings, found)
    except TrnError as error:
        _once(report.refusals, error)
    skipped = (*(OUTPUTS if shared else ()), *(("sim.mutated_input",) if older else ()))
    written = {*part.touched, *(b for b in program.buffers if shared and b.kind == "output")}
    for found in examine(program, chip, _whole(part.results), written=written):
        if found.code not in skipped:
            _add(report, found)


def _placed(report: Checked, program: Program, chip) -> tuple[Program, Placement]:
    """Where the tiles lie; with the spills the compiler puts in, noticed, where they do not fit."""
    try:
        return program, place(program, chip)
    except CapacityError as error:
        made = spilled(program, chip, error)
        _once(report.findings, noticed(made, error))
        return made, place(made, chip)


OUTPUTS = ("sim.unwritten_output", "sim.partial_output")


def _follow_shared(report: Checked, parts: list[Recorded], chip) -> None:
    """What several cores together read and write of shared memory, one phase after the other."""
    phases = zip_longest(*(_phases(part.program) for part in parts), fillvalue=[])
    body = [one for phase in phases for of_core in phase for one in of_core]
    program = replace(parts[0].program, body=body, mutated=[])
    own = {view.buffer for one in body for view in one.views() if view.buffer.kind != "output"}
    touched = own.union(*(part.touched for part in parts))
    for found in examine(program, chip, _whole(parts[0].results), written=touched):
        _add(report, found)


def _phases(program: Program) -> list[list[Instruction]]:
    """The instructions of one core that touch shared memory, cut where the cores meet."""
    found: list[list[Instruction]] = [[]]
    for one in program.instructions():
        if one.form.meets:
            found.append([])
        elif any(view.buffer.kind == "output" for view in one.views()):
            found[-1].append(one)
    return found


def _whole(results: list[View]) -> list[View]:
    return [view_of(v.buffer) if v.index is not None else v for v in results]


def _add(report: Checked, found: Finding) -> None:
    """A finding, or a refusal where a run would refuse it."""
    if found.code not in ("sim.unwritten_output", "sim.accumulate_unset"):
        _once(report.findings, found)
        return
    _once(report.refusals, UnwrittenError(found.what, code=found.code, at=found.where))


def document(file: str, checked: list[Checked]) -> dict[str, Any]:
    """The JSON document of one file: what was checked, and the worst status of all."""
    return {
        "schema": SCHEMA,
        "file": file,
        "status": worst(checked),
        "kernels": [each.json() for each in checked],
    }


def worst(checked: list[Checked]) -> str:
    """The worst of: clean, findings, unchecked, refused."""
    order = ("clean", "findings", "unchecked", "refused")
    return max((each.status for each in checked), key=order.index, default="unchecked")


__all__ = ["SCHEMA", "Checked", "check", "document", "worst"]
