"""Looking into a running kernel: where NaN and infinities begin, and tensors by name.

Kernels run as ordinary Python, one instruction after the other, so `print(tile)`, `tile.numpy()`,
`breakpoint()` and a debugger's steps show values as they are at that line.  What is here looks
after every instruction, without a change to the kernel.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase

import numpy as np

from opentrn.base import Where, declare, numerics
from opentrn.isa import Buffer, Instruction, Loop, View, view_of
from opentrn.nki import session as sessions
from opentrn.nki.session import Session
from opentrn.nki.versions import finding
from opentrn.sim import Finding

declare(
    "nki.nonfinite",
    "The first place where a NaN or an infinity appears.",
    rule="everything computed from it may be NaN or infinite too; only origins are told",
    fix="look at the operands of this line: print(tile) before it, or breakpoint()",
)


class NonFinite:
    """Finds origins: instructions that give NaN or infinities of operands that held none.

    What an operand held is known by buffer: one that held some anywhere is no origin's operand.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self._tainted: set[Buffer] = set()

    def begin(self, session: Session) -> None:
        """Look at the arguments."""
        for buffer in session.builder.inputs:
            self._look(session, view_of(buffer), None, f"argument `{buffer.name}` holds", True)

    def after(self, session: Session, instruction: Instruction) -> None:
        """Look at what an instruction wrote."""
        origin = not any(view.buffer in self._tainted for view in instruction.reads())
        told = f"{instruction.opcode} on {instruction.engine} gives"
        for view in instruction.writes():
            self._look(session, view, instruction.where, told, origin)

    def after_loop(self, session: Session, loop: Loop) -> None:
        """Look at what later turns of a device loop wrote, which are not seen one by one."""
        for node in loop.body:
            if isinstance(node, Loop):
                self.after_loop(session, node)
                continue
            told = f"{node.opcode} in a later turn of a device loop gives"
            for view in node.writes():
                if view.index is None:
                    origin = view.buffer not in self._tainted
                    self._look(session, view, node.where, told, origin)

    def _look(
        self, session: Session, view: View, where: Where | None, told: str, origin: bool
    ) -> None:
        if not view.dtype.is_float:
            return
        values = session.machine.value(view)
        wild = ~np.isfinite(values)
        if not wild.any():
            if view.whole:
                self._tainted.discard(view.buffer)
            return
        self._tainted.add(view.buffer)
        if origin:
            self._report(session, view, values, wild, where, told)

    def _report(self, session, view, values, wild, where, told) -> None:
        nan = int(np.isnan(values).sum())
        counts = [f"{nan} NaN" if nan else "", f"{int(wild.sum()) - nan} infinite"]
        counts = [c for c in counts if c and c != "0 infinite"]
        first = [int(n) for n in np.argwhere(wild)[0]]
        what = f"{told} {' and '.join(counts)} of {values.size} elements"
        if where is not None:
            what += f" in `{view.buffer.name or 'a tile'}`"
        made = finding("nki.nonfinite", f"{what}, first at {first}", where)
        if (made.where, told) not in {(f.where, told) for f in self.findings}:
            self.findings.append(made)
            session.findings.append(made)


class Dump:
    """Keeps the last value of every tensor whose name matches: `values` by name.

    On other cores than the first the name ends in @core.  Patterns are those of fnmatch.
    """

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self.patterns = patterns
        self.values: dict[str, np.ndarray] = {}

    def begin(self, session: Session) -> None:
        """Keep the arguments."""
        for buffer in session.builder.inputs:
            self._keep(session, buffer)

    def after(self, session: Session, instruction: Instruction) -> None:
        """Keep what an instruction wrote."""
        for view in instruction.writes():
            self._keep(session, view.buffer)

    def after_loop(self, session: Session, loop: Loop) -> None:
        """Keep what the turns of a device loop wrote."""
        for node in loop.body:
            if isinstance(node, Loop):
                self.after_loop(session, node)
            else:
                self.after(session, node)

    def _keep(self, session: Session, buffer: Buffer) -> None:
        if not any(fnmatchcase(buffer.name, pattern) for pattern in self.patterns):
            return
        core = getattr(session, "core", 0)
        name = f"{buffer.name}@{core}" if core else buffer.name
        held = session.machine.value(view_of(buffer))
        self.values[name] = np.array(numerics.encode(held, buffer.dtype))


@contextmanager
def find_nonfinite() -> Iterator[list[Finding]]:
    """Find where NaN and infinities begin in the kernels called inside the block.

    Gives the findings `nki.nonfinite` in order, which are among those of each run too.  Slow: every
    written tile is looked at.
    """
    look = NonFinite()
    with sessions.looking(look):
        yield look.findings


@contextmanager
def dump(*names: str) -> Iterator[dict[str, np.ndarray]]:
    """Keep the tensors called so (`nl.ndarray(..., name=...)`, arguments) as they were last.

    Names may hold * and ?.  Arrays have the dtype of the tensor; a dictionary by name is given.
    """
    look = Dump(names)
    with sessions.looking(look):
        yield look.values


__all__ = ["Dump", "NonFinite", "dump", "find_nonfinite"]
