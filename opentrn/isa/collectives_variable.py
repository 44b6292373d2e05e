"""Collectives of variable length: a metadata tensor tells counts while the program runs.

Limits are those of the `nki.collectives` reference (NKI 0.6).
"""

from typing import Any

from opentrn.base import LimitError, uint32
from opentrn.isa.collective_laws import priced
from opentrn.isa.collectives import Collective, group, inputs, priority_flag
from opentrn.isa.operands import Dim, Flag, InOut, Several


class Variable(Collective, abstract=True):
    """Collectives of flat buffers whose counts a metadata tensor gives while the program runs.

    Rows of the metadata: counts sent, where they begin in `srcs`, counts received (written unless
    `recv_counts_known`), where they go in `dsts` (only with `has_rdispls`).
    """

    example = {"R": 3, "N": 4}
    R = Dim(4, "rows are send counts, send offsets, receive counts, receive offsets", least=3)
    N = Dim(None, "one column for each rank of a list")

    def own_rules(i):
        """Metadata, and flat buffers."""
        rows, columns = i.metadata_tensor.shape[-2:]
        yield (
            columns == i.ranks,
            f"`metadata_tensor` has {columns} columns; a list has {i.ranks} ranks",
            "make it (rows, ranks) in HBM, (1, rows, ranks) in SBUF",
        )
        yield (
            rows == 4 or not i.has_rdispls,
            f"`metadata_tensor` has {rows} rows; with has_rdispls it has 4",
            "add the row of receive offsets",
        )
        for name, tile in (*i.listed("srcs"), *i.listed("dsts")):
            yield (
                tile.run == tile.size,
                f"`{name}` is a flat buffer: its elements lie one after the other",
                "copy it into a dense tensor with nisa.dma_copy first",
            )
        yield (
            i.dsts0.size % i.ranks == 0,
            f"`dsts` has {i.dsts0.size} elements, no equal slots for {i.ranks} ranks",
            "make `dsts` a multiple of the number of ranks",
        )

    def relate(self, operands: tuple) -> None:
        """The metadata lies contiguously in memory; LimitError `<name>.metadata_tensor`."""
        if not operands[self.operand_names.index("metadata_tensor")].is_contiguous():
            self.bad(
                LimitError,
                "`metadata_tensor` has gaps",
                "it lies contiguously in memory, on one partition in SBUF",
                "copy it into a tensor of its own with nisa.dma_copy first",
                "metadata_tensor",
            )

    def parts(self, name: str, view) -> tuple:
        """Of the metadata the rows that are read; of `srcs` what they say, known only then."""
        if name != "metadata_tensor":
            return ()
        rows = view.ndim - 2
        first = view.slice(rows, 0, 2)
        return (first, view.slice(rows, 3, 4)) if self.has_rdispls else (first,)

    def run(i, **given):
        """A rank alone sends its chunk to itself."""
        meta = given["metadata_tensor"].reshape(-1, i.ranks).copy()
        count, start = (int(n) for n in meta[:2, 0])
        found = given["srcs0"].reshape(-1)[start : start + count]
        meta[2] = meta[2] if i.recv_counts_known else count
        return {"dsts0": found, "metadata_tensor": meta.reshape(i.metadata_tensor.shape)}


def _metadata() -> Any:
    def dims(i) -> str:
        tile = getattr(i, "metadata_tensor", None)
        return "1 R N" if getattr(tile, "space", "hbm") == "sbuf" else "R N"

    return InOut("hbm|sbuf", dims, uint32, engine_side=False)


class all_gather_v(Variable):
    """Slot s of `dsts` begins with the chunk that rank s of the group sends to all.

    The chunk is srcs[send_displ : send_displ + send_count], from the first column of the metadata;
    slots are equal parts of `dsts`, what lies behind a chunk stays as it was.
    """

    srcs = inputs("hbm", 1)
    dsts = Several(InOut("hbm", "*", engine_side=False), 1)
    replica_group = group()
    metadata_tensor = _metadata()
    recv_counts_known = Flag(False, "True: row 2 of the metadata is left as it is")
    has_rdispls = Flag(False, "whether row 3 says where chunks go: not supported")
    priority = priority_flag()

    def own_rules(i):
        """Metadata; the limits of the present release."""
        yield from Variable.own_rules(i)
        yield (
            not i.has_rdispls,
            "has_rdispls=True is not supported by all_gather_v",
            "leave has_rdispls out: chunks begin at equal slots",
        )
        yield (
            i.ranks == 4,
            f"a list has exactly 4 ranks, those of one chip, not {i.ranks}",
            "use all_gather, or a group of the four ranks of a chip",
        )

    transfer = priced("all_gather", Collective.lists, Collective.size)


class all_to_all_v(Variable):
    """Rank t receives srcs[displ[t] : displ[t] + count[t]] of rank s into slot s of `dsts`.

    With has_rdispls (trn3) it goes to the offset in row 3; else slots are equal parts of `dsts`,
    and what lies behind a chunk stays as it was.
    """

    srcs = inputs("hbm", 1)
    dsts = Several(InOut("hbm", "*", engine_side=False), 1)
    replica_group = group()
    metadata_tensor = _metadata()
    recv_counts_known = Flag(False, "True: row 2 of the metadata is left as it is")
    has_rdispls = Flag(False, "whether row 3 says where chunks go (trn3)")
    priority = priority_flag()

    def own_rules(i):
        """Metadata; receive offsets on NeuronSwitch instances only."""
        yield from Variable.own_rules(i)
        yield (
            not i.has_rdispls or i.chip.generation >= 4,
            "has_rdispls=True needs an instance with NeuronSwitch (trn3)",
            "leave has_rdispls out: chunks begin at equal slots",
        )

    transfer = priced("all_to_all", Collective.lists, Collective.size)


__all__ = ["all_gather_v", "all_to_all_v"]
