"""Values of the older API wait for their place: the session that holds the one that waits.

`t[i] = nl.exp(x)` is one instruction that writes into `t`, as on the chip.  So an instruction that
returns a value is held until something else happens: an assignment gives it a place, anything
else gives it a fresh tile.  At most one instruction waits, so that the order never changes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from opentrn.base import TrnError, UsageError, Where, declare
from opentrn.isa import Buffer
from opentrn.nki.session import Session
from opentrn.nki.session import current as any_current

declare(
    "beta1.session",
    "A function of neuronxcc.nki was called in a kernel that it does not belong to.",
    rule="the older and the newer language do not mix in one kernel",
    fix="decorate the kernel with neuronxcc.nki.jit, or use the functions of `nki`",
)


@dataclass(slots=True)
class OlderSession(Session):
    """A running kernel of the older API.

    `waiting` is the tile whose instruction has not been issued, `loops` the loops being run,
    `sums` what `loop_reduce` has gathered, `shared` the outputs all program instances share and
    `made` how many of them this instance has made, `kept` tiles that only an address refers to,
    `left` the iterations in which a loop was left that does not allow it.
    """

    waiting: Any = None
    loops: list = field(default_factory=list)
    sums: dict = field(default_factory=dict)
    shared: list[Buffer] = field(default_factory=list)
    made: int = 0
    kept: list = field(default_factory=list)
    left: list = field(default_factory=list)

    def flush(self) -> None:
        """Issue the instruction that waits, if any, into a fresh tile."""
        if self.waiting is not None:
            self.waiting.settle()


@dataclass(slots=True)
class Waiting:
    """An instruction that has no destination yet.

    `run(tile)` issues it into a tile, `add(tile)` adds its result to one (matmuls in PSUM),
    `space` is where its result may lie, `merge(tile)` writes a result that depends on what the
    destination holds.  `casts`: it rounds to whatever dtype the tile has; `moves`: it converts its
    source once, so that a tile of any dtype gets the same values directly.
    """

    run: Callable[[Any], None]
    space: str
    where: Where | None
    add: Callable[[Any], None] | None = None
    merge: Callable[[Any], None] | None = None
    casts: bool = True
    moves: bool = False

    def issue(self, into: Any, how: str = "run") -> None:
        """Issue it at the line where it was written."""
        session = current()
        outer, session.line = session.line, self.where
        try:
            getattr(self, how)(into)
        except TrnError as error:
            if self.where is not None:
                error.at = self.where
            raise
        finally:
            session.line = outer


def current() -> OlderSession:
    """The running session; UsageError outside kernels and in kernels of the newer API."""
    session = any_current()
    if not isinstance(session, OlderSession):
        raise UsageError("neuronxcc.nki in a kernel of `nki`", code="beta1.session")
    return session
