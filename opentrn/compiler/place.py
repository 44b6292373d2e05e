"""HBM placement: intermediate tensors share memory when their lives do not meet."""

from opentrn.isa import Buffer, Loop, Program

ALIGNMENT = 64


Lives = tuple[dict[Buffer, int], dict[Buffer, int]]


def place_hbm(program: Program, lives: Lives | None = None) -> dict[str, int]:
    """Give every HBM buffer a byte address; returns bytes by use.

    `lives` are the first and the last place each buffer is used at, where the program's body does
    not tell.

    Inputs, outputs and constants get memory of their own; temporaries are placed first-fit by
    liveness in program order (best lengths first would save little and cost clarity).
    """
    first, last = lives_of(program) if lives is None else lives
    sizes = {"constants": 0, "inputs": 0, "outputs": 0, "scratchpad": 0}
    kept = {"constant": "constants", "input": "inputs", "output": "outputs"}
    address = 0
    temporary = []
    for buffer in program.buffers:
        if buffer.space != "hbm":
            continue
        if buffer.kind in kept:
            buffer.address = address
            address += _aligned(buffer.nbytes)
            sizes[kept[buffer.kind]] += buffer.nbytes
        elif buffer in first:
            temporary.append(buffer)
    sizes["scratchpad"] = _first_fit(temporary, first, last, address)
    return sizes


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def lives_of(program: Program) -> Lives:
    """First and last top-level node that touches each HBM buffer."""
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for number, node in enumerate(program.body):
        for instruction in _inside(node):
            for view in instruction.views():
                if view.buffer.space == "hbm":
                    first.setdefault(view.buffer, number)
                    last[view.buffer] = number
    return first, last


def _inside(node):
    if isinstance(node, Loop):
        for inner in node.body:
            yield from _inside(inner)
    else:
        yield node


def _first_fit(buffers: list[Buffer], first, last, base: int) -> int:
    """Place temporaries from `base` on; returns the bytes they need together."""
    live: list[Buffer] = []
    top = 0
    for buffer in sorted(buffers, key=lambda b: first[b]):
        live = [b for b in live if last[b] >= first[buffer]]
        start = base
        for other in sorted(live, key=lambda b: b.address):
            if start + buffer.nbytes <= other.address:
                break
            start = max(start, other.address + _aligned(other.nbytes))
        buffer.address = start
        live.append(buffer)
        top = max(top, start + _aligned(buffer.nbytes) - base)
    return top
