"""Names for the axes of a tile, so that a contraction over the wrong axis is refused.

`nc_matmul` sums over the partition axis of both operands: stationaryᵀ · moving.  A weight loaded
with its output axis on the partitions gives a product of the right shape and the wrong values when
it is square.  Named axes tell: `nki.name_axes(w, "out", "in")`.  An extension of OpenTrn: leave it
out on the chip.
"""

from typing import Any

from opentrn.base import ShapeError, UsageError, declare
from opentrn.isa import Instruction
from opentrn.nki.session import Session, current

declare(
    "nki.axis_names",
    "A matmul would sum over two axes of different names.",
    rule="nc_matmul contracts the partition axis of `stationary` with that of `moving`",
    fix="load the operand the other way round, or turn it with nisa.nc_transpose",
)

CONTRACTIONS = ("nc_matmul", "nc_matmul_mx")


def name_axes(tensor: Any, *names: str) -> Any:
    """Name the axes of an on-chip tensor, one name each; gives the tensor back.

    Its views keep the name of the partition axis, which never moves.  Raises UsageError for a
    number of names that is not that of the axes.
    """
    if len(names) != tensor.ndim or not all(isinstance(name, str) for name in names):
        raise UsageError(
            f"{len(names)} names for {tensor.ndim} axes",
            code="nki.axis_names",
            rule="each axis has one name, a string",
            fix="pass as many names as the tensor has dimensions",
        )
    current().axes[tensor._view.buffer] = names[0]
    return tensor


def check_axes(session: Session, instruction: Instruction) -> None:
    """ShapeError `nki.axis_names` when a matmul's operands name different partition axes."""
    if instruction.opcode not in CONTRACTIONS:
        return
    operands = dict(zip(instruction.form.operand_names, instruction.operands, strict=True))
    left, right = (session.axes.get(operands[n].buffer) for n in ("stationary", "moving"))
    if left is not None and right is not None and left != right:
        raise ShapeError(
            f"{instruction.opcode}: stationary partition axis {left!r} != moving partition axis "
            f"{right!r}",
            code="nki.axis_names",
            at=instruction.where,
        )
