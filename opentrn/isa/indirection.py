"""Tensor indirection: where `.indirect()` views may stand, for every instruction.

Source: NKI 0.6 API reference (nki.isa, "Tensor indirection" of each instruction, and
NkiTensor.indirect); the index is read in groups of 32 partitions by the Tensor Engine, of 16 by
the others.
"""

QUADRANT = 32


def group(engine: str) -> int:
    """How many partitions share one list of offsets on this engine."""
    return 32 if engine == "tensor" else 16


def indirection_rules(i):
    """Yield `(holds, rule, fix)` of every tile that is gathered or scattered by an index tile."""
    for name, tile in i.tiles():
        if tile.indirect == "tensor":
            yield from _allowed(i, name)
            if tile.index is not None:
                yield from _shaped(i, name, tile)
                yield from _placed(i, name, tile)


def _allowed(i, name: str):
    yield (
        i.chip.generation >= 4,
        f"`{name}` uses tensor indirection, which begins with NeuronCore-v4 (trn3), not on "
        f"{i.chip.name}: no operand may be indirect there",
        "select columns with static slices, or gather with nisa.local_gather or nisa.dma_copy",
    )
    which = " and ".join(f"`{n}`" for n in i.gathers)
    only = (
        f"here only {which} may be indirect (tensor indirection)"
        if which
        else ("this instruction knows no tensor indirection")
    )
    yield (
        name in i.gathers,
        f"{only}: `{name}` may not",
        "copy the selected columns into a tile with nisa.tensor_copy first",
    )


def _shaped(i, name: str, tile):
    size = group(i.engine_name)
    offsets = size * tile.index.columns
    yield (
        tile.partitions % size == 0,
        f"an indirect `{name}` on the {i.engine_name} engine has a multiple of {size} partitions, "
        f"which share their offsets: it has {tile.partitions}",
        f"use whole groups of {size} partitions",
    )
    yield (
        tile.free <= offsets,
        f"`{name}` takes {tile.free} columns, but {size} partitions of its index hold {offsets} "
        f"offsets ({tile.index.columns} each)",
        f"pass num_elem ≤ {offsets} to .indirect(), or an index tile with more columns",
    )


def _placed(i, name: str, tile):
    """Base partitions; only what the kernel placed itself can be wrong."""
    first = tile.index.partition
    if first < 0:
        return
    yield (
        first % QUADRANT == 0,
        f"the index of `{name}` begins at a multiple of {QUADRANT} partitions: it begins at "
        f"{first}",
        "allocate the index tile on a quadrant boundary",
    )
    if name != "dst":
        yield (
            tile.partition == first,
            f"`{name}` begins at partition {tile.partition}, its index at {first}: they must "
            "begin together",
            "allocate both at the same partition",
        )
        return
    stream = getattr(i, i.gathers[1])
    begins = stream.partition
    if stream.space == "psum":
        if stream.index is None:
            return
        begins = stream.index.partition
    yield (
        first == begins or begins < 0,
        f"the index of `dst` begins at partition {first}, what follows it (`{i.gathers[1]}`) at "
        f"{begins}: they must begin together",
        "allocate both at the same partition",
    )


__all__ = ["QUADRANT", "group", "indirection_rules"]
