"""Would the chip take this kernel?  Answered from shapes, without computing anything.

The kernel's Python runs once with tensors that hold no values.  Every instruction is checked as
it is recorded; one that is refused is noted and left out, and the kernel goes on, so one check
shows many refusals.  What has no result to go on with (a tile that cannot exist, a view outside
its tensor, an error of the kernel itself) ends the recording.  Then the tiles are placed in SBUF
and PSUM, the memory each instruction touches is followed, and the Python is compared with what
the NKI compiler accepts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from opentrn.base import TrnError, UsageError, Where, declare, explanation
from opentrn.hw import target as find_target
from opentrn.isa import Builder, View, view_of
from opentrn.nki.arrays import whole
from opentrn.nki.check_arguments import MISSING, SYNTAX, Shaped, fill, shaped
from opentrn.nki.jit import jit
from opentrn.nki.session import Session, entered, new_machine, use_target
from opentrn.nki.subset import examine as examine_python
from opentrn.nki.tensor import MemoryRegion, NkiTensor
from opentrn.sim import Finding, examine, place

SCHEMA = "opentrn.check/1"

VALUES = declare(
    "nki.check_values",
    "The rest of the kernel depends on values, which a check does not have.",
    rule="a check knows shapes only; `while reg:` and reads of registers need a run",
    fix="run the kernel on example inputs for the rest",
)
RAISED = declare(
    "nki.check_raised",
    "The kernel's own Python raised an error for these arguments.",
    rule="a kernel must build for the shapes it is given",
    fix="pass arguments the kernel is written for, or correct it",
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
    instances: int = 1,
) -> Checked:
    """Check one kernel for one chip: refusals, findings and the memory it needs.

    `arguments` are values by name, tensors as Shaped (or arrays, of which only the shape counts);
    `names` the globals of its file, which may hold example inputs.  With `instances` > 1 the first
    program instance of such a launch is checked.  Never raises for what the kernel does.
    Raises UnknownNameError for an unknown target.
    """
    made, chip = jit(kernel), find_target(target)
    code = getattr(made.func, "__code__", None)
    where = code and Where(code.co_filename, code.co_firstlineno, made.__name__)
    report = Checked(made.__name__, chip.name, where)
    try:
        bound, report.assumed = fill(made.func, shaped(dict(arguments or {})), dict(names or {}))
    except UsageError as error:
        error.at = where
        report.refusals.append(error)
        report.findings = examine_python(made)
        return report
    report.arguments = {name: _shown(value) for name, value in bound.arguments.items()}
    with use_target(chip.name):
        _record(report, made, chip, bound, instances)
    report.findings += examine_python(made, bound.arguments.values())
    return report


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, Shaped) else repr(value)


def _record(report: Checked, made, chip, bound, instances: int) -> None:
    """Run the kernel's Python, collecting refusals; then place and follow what it recorded."""
    session = Session(made.__name__, chip, new_machine(chip), Builder(made.__name__, chip.name))
    session.recording_only, session.refused = 1, []
    session.grid = (instances,)
    results: list[View] = []
    with entered(session):
        try:
            own = {name: _open(session, name, value) for name, value in bound.arguments.items()}
            bound.arguments.update(own)
            results = _returned(made.func(*bound.args, **bound.kwargs), report)
            report.complete = True
        except TrnError as error:
            _stopped(report, error)
        except Exception as error:
            report.refusals.append(_raised(error))
    report.findings += session.noticed()
    refused = session.refused
    report.refusals[:0] = [error for error, _ in refused]
    touched = {v.buffer for _, operands in refused for v in operands if isinstance(v, View)}
    session.builder.outputs += list(dict.fromkeys(view.buffer for view in results))
    if report.complete:
        _follow(report, session, chip, results, touched, shared=instances > 1)


def _stopped(report: Checked, error: TrnError) -> None:
    """An error that ended the recording: the kernel's, or only ours for want of values."""
    if error.code in ("sim.register", "nki.counter"):
        known = explanation(VALUES)
        report.findings.append(Finding(VALUES, known.meaning, error.at, known.rule, known.fix))
    else:
        report.refusals.append(error)


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


def _open(session: Session, name: str, value: Any) -> Any:
    """Shaped values become input tensors; containers are walked."""
    if isinstance(value, Shaped):
        made = session.buffer("hbm", value.shape, value.dtype, name=name, kind="input")
        session.builder.inputs.append(made)
        return whole(session, made, MemoryRegion.shared_hbm)
    if type(value) in (list, tuple):
        return type(value)(_open(session, f"{name}_{n}", v) for n, v in enumerate(value))
    if type(value) is dict:
        return {key: _open(session, f"{name}_{key}", v) for key, v in value.items()}
    return value


def _returned(result: Any, report: Checked) -> list[View]:
    """The views a kernel returned; tensors elsewhere than in shared HBM are refused."""
    if isinstance(result, list | tuple):
        return [view for part in result for view in _returned(part, report)]
    if result is None:
        return []
    code = "nki.return"
    what = f"the kernel returned a {type(result).__name__}"
    if isinstance(result, NkiTensor):
        if result.buffer is MemoryRegion.shared_hbm:
            return [result._view]
        code, what = "nki.output_space", f"the kernel returned a tensor in {result.buffer.value}"
    report.refusals.append(UsageError(what, code=code, at=report.where))
    return []


def _follow(
    report: Checked, session: Session, chip, results: list[View], touched: set, shared: bool
) -> None:
    """Where the tiles lie, and what each instruction finds in memory.

    What a refused instruction touches counts as written: it would have been.  With several
    instances, `shared` outputs may be written by the others.
    """
    try:
        program = session.builder.program()
    except TrnError as error:
        report.refusals.append(error)
        return
    report.instructions = len(program) + len(session.refused)
    try:
        placed = place(program, chip)
        report.peak_bytes = dict(placed.peak_bytes)
        report.findings += placed.findings
    except TrnError as error:
        report.refusals.append(error)
    whole_results = [view_of(v.buffer) if v.index is not None else v for v in results]
    for found in examine(program, chip, whole_results, written=touched):
        if not (shared and found.code in ("sim.unwritten_output", "sim.partial_output")):
            _add(report, found)


def _add(report: Checked, found: Finding) -> None:
    """A finding, or a refusal where a run would refuse it."""
    if found.code not in ("sim.unwritten_output", "sim.accumulate_unset"):
        report.findings.append(found)
        return
    from opentrn.base import UnwrittenError

    report.refusals.append(UnwrittenError(found.what, code=found.code, at=found.where))


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
