"""What NKI 0.7 (Neuron SDK 2.33) has that 0.6 has not: variable-length collectives in two steps.

From the API reference of 2.33 (nki.collectives.all_gather_v_prepare and its like).  Kernels of 0.7
are specialised by running their Python (release notes of 2.33), so none of it is refused.  Not
built, and refused by name: the grids of tiles and blocks.
"""

import inspect
from collections.abc import Callable
from typing import Any

from opentrn.base import LimitError, NotBuiltError, OrderError, UsageError, declare
from opentrn.nki import collectives
from opentrn.nki import isa as nisa
from opentrn.nki.issue import NkiInstruction
from opentrn.nki.language.memory import ndarray
from opentrn.nki.session import Session, current

declare(
    "nki.newer",
    "A name that came with NKI 0.7 is not built.",
    rule="of NKI 0.7 the prepare and trigger steps of collectives are built, and any Python in "
    "kernels; grids of tiles and blocks are not",
    fix="slice the tensor, or loop over nl.ds ranges of it",
    fault="unsupported",
)
declare(
    "nki.prepared",
    "The two steps of a variable-length collective do not pair.",
    rule="each prepare is followed by exactly one trigger of its kind, no other prepare in between",
    fix="call ..._v_trigger with what the last ..._v_prepare returned, once",
)
declare(
    "nki.prepare_chip",
    "A variable-length collective in two steps runs on a chip that does not know them.",
    rule="instances with NeuronSwitch (trn3) do not support the split into prepare and trigger",
    fix="call all_to_all_v or all_gather_v itself",
)

FIRST = "0.7"
NOT_BUILT = {
    "nki.language": (
        "NkiBlockGrid", "NkiGrid", "NkiTileGrid", "alloc_blocks", "alloc_tiles", "blocks", "tiles",
    ),
}  # fmt: skip
"""Names of 0.7 that are refused, by module."""


class Prepared(NkiInstruction):
    """The handle of a prepare: what its trigger will call, and with what."""

    __slots__ = ("arguments", "function", "session")

    def __init__(self, function: str, session: Session, arguments: dict[str, Any], first: Any):
        super().__init__(first.instruction)
        self.function, self.session, self.arguments = function, session, arguments


def _steps(name: str) -> tuple[Callable, Callable]:
    """The prepare and the trigger of a collective of variable length."""
    whole = getattr(collectives, name)
    signature = inspect.signature(whole)

    def prepare(*args: Any, **kwargs: Any) -> Prepared:
        session = current()
        given = signature.bind(*args, **kwargs)
        if session.chip.generation >= 4:
            what = f"{name}_prepare on {session.chip.name}"
            raise LimitError(what, code="nki.prepare_chip")
        if session.prepared is not None:
            what = f"{name}_prepare before the trigger of {session.prepared.function}_prepare"
            raise OrderError(what, code="nki.prepared")
        # The counts are those of now: later writes to the metadata do not change them.
        meta = given.arguments["metadata_tensor"]
        kept = ndarray(meta.shape, meta.dtype, meta.buffer)
        first = nisa.dma_copy(kept, meta)
        arguments = {**given.arguments, "metadata_tensor": kept}
        session.prepared = Prepared(name, session, arguments, first)
        return session.prepared

    def trigger(prepare_instr: Prepared, name: str | None = None) -> NkiInstruction:
        session = current()
        mine = isinstance(prepare_instr, Prepared) and prepare_instr is session.prepared
        if not mine or prepare_instr.function != whole.__name__:
            what = f"{whole.__name__}_trigger without the handle of the prepare that waits"
            raise UsageError(what, code="nki.prepared")
        session.prepared = None
        given = dict(prepare_instr.arguments)
        return whole(**{**given, "name": name} if name is not None else given)

    prepare.__name__ = prepare.__qualname__ = f"{name}_prepare"
    trigger.__name__ = trigger.__qualname__ = f"{name}_trigger"
    prepare.__doc__ = f"Begin `{name}`: read the counts; `srcs` may be written until the trigger."
    trigger.__doc__ = f"Carry out the `{name}` that was prepared."
    prepare.__signature__ = signature
    prepare.__module__ = trigger.__module__ = "nki.collectives"
    return prepare, trigger


def functions(module: str) -> dict[str, Any]:
    """What a module of NKI 0.7 has besides that of 0.6."""
    if module != "nki.collectives":
        return {}
    pairs = [_steps(name) for name in ("all_gather_v", "all_to_all_v")]
    return {made.__name__: made for pair in pairs for made in pair}


def refuse(module: str, name: str) -> None:
    """Raise NotBuiltError `nki.newer` for a name of 0.7 that is not built."""
    if name in NOT_BUILT.get(module, ()):
        raise NotBuiltError(f"{module}.{name} of NKI {FIRST} is not built", code="nki.newer")


__all__ = ["FIRST", "NOT_BUILT", "Prepared", "functions", "refuse"]
