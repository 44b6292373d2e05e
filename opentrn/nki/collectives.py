"""`nki.collectives`: data exchange between ranks, each function made from its instruction class.

Run kernels that use them with `nki.simulate(kernel, ranks=N)` or `nki.run_ranks`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from opentrn.comm import Group
from opentrn.isa import INSTRUCTIONS
from opentrn.nki.issue import function_of
from opentrn.nki.tensor import NKIObject


@dataclass(frozen=True)
class ReplicaGroup(NKIObject):
    """Which ranks take part in a collective together: lists of ranks, equally long and disjoint.

    A collective runs in each list by itself; ranks in no list take no part.  Raises UsageError
    `comm.group`.
    """

    groups: Iterable[Sequence[int]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", Group.of(self.groups).lists)


_FUNCTIONS = [name for name, cls in INSTRUCTIONS.items() if cls.module == "nki.collectives"]
for _name in _FUNCTIONS:
    globals()[_name] = function_of(INSTRUCTIONS[_name], __name__)

__all__ = ["ReplicaGroup", *_FUNCTIONS]
