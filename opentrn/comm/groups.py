"""Replica groups: which ranks take part in a collective together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from opentrn.base import UsageError, declare

declare(
    "comm.group",
    "A replica group is not one.",
    rule="groups are lists of distinct ranks ≥ 0, equally long, and no rank is in two of them",
    fix="write for example [[0, 1], [2, 3]]",
)


@dataclass(frozen=True)
class Group:
    """Disjoint lists of ranks, equally long; a collective runs in each list by itself."""

    lists: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(lists: Iterable[Sequence[int]]) -> "Group":
        """Check and freeze; UsageError `comm.group`."""
        found = tuple(tuple(int(rank) for rank in one) for one in lists)
        every = [rank for one in found for rank in one]
        if not found or any(not one for one in found):
            raise UsageError(f"replica groups {list(map(list, found))}: empty", code="comm.group")
        if len(set(every)) != len(every) or min(every) < 0:
            raise UsageError(
                f"replica groups {list(map(list, found))}: a rank twice or negative",
                code="comm.group",
            )
        if len({len(one) for one in found}) != 1:
            raise UsageError(
                f"replica groups {list(map(list, found))}: of different lengths", code="comm.group"
            )
        return Group(found)

    @property
    def size(self) -> int:
        """Ranks of one list."""
        return len(self.lists[0])

    def of_rank(self, rank: int) -> tuple[int, ...]:
        """The list a rank belongs to; UsageError when it is in none."""
        for one in self.lists:
            if rank in one:
                return one
        raise UsageError(
            f"rank {rank} is in no list of {list(map(list, self.lists))}", code="comm.group"
        )
