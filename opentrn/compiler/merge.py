"""Linears joined with their neighbours: those that read one tensor, and norms of their results."""

from dataclasses import dataclass

from opentrn.graph import OPS, Builder, Graph, Note, Value, make, remake

# More columns than this keep no weights in SBUF while rows pass by, and gain nothing.
MOST_WEIGHT_BYTES = 8 << 20
# For a row to be one tile all weights lie in SBUF at once, beside the rows being worked on.
LANES = 128
MOST_LANE_BYTES = 64 << 10
MOST_COLUMNS = 2048


@dataclass(frozen=True)
class Merge:
    """Linears of one x in order, and the one that computes them all."""

    parts: tuple[Value, ...]

    def whole(self, g: Builder, x: Value, weights: list[Value], biases: list[Value]) -> Value:
        """The linear with all columns side by side."""
        weight = g.concatenate(*weights, dimension=1)
        if not biases:
            return g.linear(x, weight)
        return g.linear(x, weight, g.concatenate(*biases, dimension=0), bias=True)


def refusal(value: Value) -> str:
    """Why a linear cannot be merged with others, or ""."""
    a = value.attrs
    if a.activation or a.residual or a.kind:
        return "it ends in an activation or a residual of its own"
    if any(operand.op not in ("constant", "transpose") for operand in value.args[1:2]):
        return "its weight is not a constant"
    if value.args[1].op == "transpose" and value.args[1].args[0].op != "constant":
        return "its weight is not a constant"
    if a.bias and value.args[2].op != "constant":
        return "its bias is not a constant"
    return ""


def find(graph: Graph, notes: list[Note] | None = None) -> list[Merge]:
    """Groups of linears with one x, one dtype, and all of them with bias or all without."""
    groups: dict[tuple, list[Value]] = {}
    for value in graph:
        if value.op != "linear":
            continue
        why = refusal(value)
        if not why:
            groups.setdefault((value.args[0], value.attrs.bias), []).append(value)
        elif notes is not None:
            notes.append(Note("merge", repr(value), "refused", why, value.where))
    found = []
    for parts in groups.values():
        nbytes = sum(p.args[1].nbytes for p in parts)
        if len(parts) > 1 and nbytes <= MOST_WEIGHT_BYTES:
            found.append(Merge(tuple(parts)))
    return found


def merge(graph: Graph, notes: list[Note] | None = None) -> Graph:
    """The graph with such linears computed by one, and each of them a slice of its columns."""
    groups = {part: group for group in find(graph, notes) for part in group.parts}
    made: dict[Merge, Value] = {}

    def change(value: Value, args: tuple[Value, ...]) -> Value:
        group = groups.get(value)
        if group is None:
            return remake(value, args)
        g = Builder(value.where)
        if group not in made:
            # Weights and biases are constants, or transposes of them: not changed by this pass.
            weights = [p.args[1] for p in group.parts]
            biases = [p.args[2] for p in group.parts if p.attrs.bias]
            made[group] = group.whole(g, args[0], weights, biases)
            if notes is not None:
                columns = " + ".join(str(w.shape[1]) for w in weights)
                why = f"one product of {columns} columns: x is loaded and transposed once"
                notes.append(Note("merge", repr(value), "rewrote", why, value.where))
        whole, first = made[group], 0
        for part in group.parts:
            if part is value:
                break
            first += part.shape[-1]
        starts = (*(0,) * (whole.rank - 1), first)
        limits = (*whole.shape[:-1], first + value.shape[-1])
        return g.slice(whole, starts, limits, (1,) * whole.rank)

    return graph.rebuild(change)


def norms(graph: Graph, notes: list[Note] | None = None) -> Graph:
    """The graph with each layer_norm that alone reads a linear computed by the linear's kernel.

    The rows of the sum are normalised while they lie in SBUF: a store and a load are saved.
    """
    users, outputs = graph.users(), set(graph.outputs)

    def change(value: Value, args: tuple[Value, ...]) -> Value:
        new = remake(value, args)
        if value.op != "layer_norm" or value.args[0].op != "linear":
            return new
        alone = len(users[value.args[0]]) == 1 and value.args[0] not in outputs
        why = _no_norm(value, args[0]) if alone else "something else reads the sum"
        if notes is not None:
            outcome = "refused" if why else "rewrote"
            reason = why or "rows of the product are normalised before they leave the chip"
            notes.append(Note("norms", repr(value), outcome, reason, value.where))
        if why:
            return new
        total, *own = args
        a = total.attrs
        op = OPS["linear_norm"](a.bias, a.residual, a.activation, len(own), value.attrs.epsilon)
        return make(op, (*total.args, *own), value.where)

    return graph.rebuild(change)


def _no_norm(value: Value, total: Value) -> str:
    """Why a norm cannot be computed by its linear's kernel, or ""."""
    if value.attrs.axis != value.rank - 1 or total.op != "linear" or total.attrs.kind:
        return "it is not over the columns of a linear"
    depth, width = total.args[1].shape
    lane_bytes = -(-depth // LANES) * width * total.dtype.itemsize
    if lane_bytes > MOST_LANE_BYTES:
        return f"the weights take {lane_bytes} bytes of a partition, at most {MOST_LANE_BYTES}"
    return "" if width <= MOST_COLUMNS else f"rows have more than {MOST_COLUMNS} elements"


__all__ = ["Merge", "find", "merge", "norms", "refusal"]
