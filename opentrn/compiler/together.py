"""Element-wise calls that read the same tensors, or each other's results, as one call.

An optimizer's update of a weight reads its gradient for both moments and both moments for the
weight: in one call every tensor makes one trip through SBUF, and what nothing else reads stays
there.  A call goes on with what separate calls would have stored, so numbers stay theirs.
"""

from dataclasses import replace

from opentrn.base import dtype as as_dtype
from opentrn.compiler.choose import Repeat, Use
from opentrn.graph import Graph, Value
from opentrn.nki import kernels

FLOAT32 = as_dtype("float32")
# Smaller tensors take little more than the start of their instructions.
LEAST_ELEMENTS = 1 << 17
# Tiles of all inputs and steps share SBUF: more of them make each tile shorter.
MOST_INPUTS, MOST_STEPS, MOST_RESULTS = 8, 24, 4


class Family:
    """Values that are computed together, where the last of them stands in the graph."""

    def __init__(self, value: Value, use: Use):
        self.members, self.steps = [value], len(use.options["steps"])
        self.inputs = dict.fromkeys(use.args[0])

    def takes(self, value: Value, use: Use) -> bool:
        """Whether the value fits in."""
        new = [a for a in use.args[0] if a not in self.inputs and a not in self.members]
        return (
            value.shape == self.members[0].shape
            and len(self.inputs) + len(new) <= MOST_INPUTS
            and self.steps + len(use.options["steps"]) <= MOST_STEPS
            and len(self.members) < MOST_RESULTS
        )

    def add(self, value: Value, use: Use) -> None:
        """Take the value in."""
        self.inputs |= dict.fromkeys(a for a in use.args[0] if a not in self.members)
        self.steps += len(use.options["steps"])
        self.members.append(value)

    def uses(self, given: dict[Value, Use], inner: set[Value]) -> dict[Value, Use]:
        """The one call, as each of its results; `inner` are members that nothing else reads."""
        inputs, steps, results = list(self.inputs), [], {}
        done: dict[Value, int] = {}
        for value in self.members:
            use, base = given[value], len(steps)

            def placed(operand, use=use, base=base):
                if not isinstance(operand, tuple):
                    return operand
                where, n = operand
                if where == "step":
                    return ("step", base + n)
                arg = use.args[0][n]
                return ("step", done[arg]) if arg in done else ("in", inputs.index(arg))

            steps += [(name, *map(placed, operands)) for name, *operands in use.options["steps"]]
            kind = use.options["out_dtype"]
            if value in inner and kind != FLOAT32:  # rounded as if it were stored
                steps.append(("convert", ("step", len(steps) - 1), kind))
            done[value] = len(steps) - 1
            if value not in inner:
                results[value] = (done[value], kind)
        options = {"steps": tuple(steps), "results": tuple(results.values()),
                   "shape": given[self.members[0]].options["shape"]}  # fmt: skip
        last = self.members[-1]
        one = Use(last, kernels.elementwise_together, (tuple(inputs),), options,
                  f"one trip through SBUF for {len(results)} results", after=last)  # fmt: skip
        stored = {v: replace(one, value=v, result=n) for n, v in enumerate(results)}
        return stored | {v: replace(one, value=v, result=None) for v in inner}


def together(graph: Graph, uses: dict[Value, Use | Repeat]) -> dict[Value, Use | Repeat]:
    """The calls, those of a family as one: nothing else reads a member before the last of them."""
    at = {value: n for n, value in enumerate(graph)}
    users, readers, families = graph.users(), {}, []

    def may_wait(family: Family, last: Value) -> bool:
        return all(
            at[reader] > at[last] or reader is last or reader in family.members
            for member in family.members
            for reader in users[member]
        )

    for value in graph:
        use = uses.get(value)
        plain = isinstance(use, Use) and use.kernel is kernels.elementwise
        if not plain or value.size < LEAST_ELEMENTS:
            continue
        wide = [a for a in use.args[0] if a.size == value.size]
        near = dict.fromkeys(f for a in wide for f in reversed(readers.get(a, ())))
        found = next((f for f in near if f.takes(value, use) and may_wait(f, value)), None)
        if found is None:
            found = Family(value, use)
            families.append(found)
        else:
            found.add(value, use)
        for tensor in (*wide, value):
            readers.setdefault(tensor, []).append(found)
    joined, outputs = dict(uses), set(graph.outputs)
    for family in families:
        if len(family.members) > 1:
            inner = {
                value for value in family.members[:-1]
                if value not in outputs and value.dtype.kind == "float"
                and all(reader in family.members for reader in users[value])
            }  # fmt: skip
            joined |= family.uses(uses, inner)
    return joined


__all__ = ["together"]
