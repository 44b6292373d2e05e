"""Traced torch code as graphs: an `fx.GraphModule` of ATen ops, without parameters of its own.

Such modules come from torch.compile and make_fx.  Everything the code reads is a placeholder, and
the output is a flat list; numbers and None in it stay outside the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from opentrn.graph.build import Builder
from opentrn.graph.importers.torch import SKIPPED, Importer, op_name, where_of
from opentrn.graph.importers.torch_rules import RULES
from opentrn.graph.importers.torch_types import torch_dtype
from opentrn.graph.ir import Graph, Value

# Ops that draw random numbers -> the function of torch that draws them; the numbers become inputs.
DRAWS = {"aten::rand": "rand", "aten::rand_like": "rand", "aten::randn": "randn",
         "aten::randn_like": "randn"}


@dataclass(frozen=True)
class Draw:
    """An input the caller fills with fresh random numbers: torch's function, shape, torch dtype."""

    function: str
    shape: tuple[int, ...]
    dtype: Any


@dataclass(frozen=True)
class Traced:
    """A graph and how it stands for the traced code.

    `inputs` are the positions of the placeholders the graph takes, in its order; `draws` follow
    them.  `outputs` has one entry for each output of the code: ("value", its place among the
    graph's outputs), ("fixed", what it always is), or ("empty", None): no elements."""

    graph: Graph
    inputs: tuple[int, ...]
    draws: tuple[Draw, ...]
    outputs: tuple[tuple[str, Any], ...]


def from_fx(module: Any, constants: Mapping[int, Any] | None = None, name: str = "main") -> Traced:
    """The graph of a traced module with static shapes.

    `constants` maps positions of placeholders to tensors whose numbers are known for good; they
    share the tensors' memory.  Raises UnsupportedError `graph.unsupported_op` naming every op
    without a rule, NotBuiltError `graph.dynamic_shape`."""
    return FxImporter(module, constants or {}, name).traced()


class FxImporter(Importer):
    """One walk over a traced module."""

    def __init__(self, module: Any, constants: Mapping[int, Any], name: str) -> None:
        super().__init__(module, name)
        self.places: list[int] = []
        self.draws: list[Draw] = []
        self.drawn: list[Value] = []
        found = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.positions = {node: i for i, node in enumerate(found)}
        self.leaves = {found[i].name: (found[i].name, t) for i, t in constants.items()}

    def traced(self) -> Traced:
        """Check that every op has a rule, then build."""
        self.check()
        handlers = {"placeholder": self.placeholder, "get_attr": self.attribute,
                    "call_function": self.call}
        for node in self.program.graph.nodes:
            if node.op in handlers:
                handlers[node.op](node)
        outputs = tuple(self._slots())
        values = [self.values[n] for kind, n in outputs if kind == "node"]
        places = iter(range(len(values)))
        slots = tuple(("value", next(places)) if kind == "node" else (kind, n)
                      for kind, n in outputs)
        graph = Graph([*self.inputs, *self.drawn], values, self.constants, name=self.name)
        return Traced(graph, tuple(self.places), tuple(self.draws), slots)

    def into(self, given: Sequence[Value]) -> list[Any]:
        """What the code returns for values of another graph, of which it becomes a part."""
        import torch

        self.check()
        values = iter(given)
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = next(values)
            elif node.op == "get_attr":
                self.attribute(node)
            elif node.op == "call_function":
                self.call(node)
        output = next(n for n in self.program.graph.nodes if n.op == "output")
        return [self.values.get(leaf) if isinstance(leaf, torch.fx.Node) else leaf
                for leaf in torch.utils._pytree.tree_leaves(output.args[0])]

    @classmethod
    def alone(cls, graph: Any) -> FxImporter:
        """An importer of single nodes of an fx graph, whose operands are put into `values`."""
        return cls(SimpleNamespace(graph=graph), {}, "alone")

    @staticmethod
    def passes(node: Any) -> bool:
        """Whether a node needs no rule: it only checks, or draws random numbers."""
        name = op_name(node.target)
        return name in SKIPPED or name in DRAWS

    def known(self, node: Any) -> bool:
        """Whether a node can become part of a graph."""
        return super().known(node) or op_name(node.target) in DRAWS

    def placeholder(self, node: Any) -> None:
        """An argument of the code: an input, a constant, or nothing, for want of elements."""
        shape = getattr(node.meta.get("val"), "shape", ())
        if any(n == 0 for n in shape if isinstance(n, int)):
            kind = torch_dtype(node.meta["val"].dtype)
            self.values[node] = Builder().full(tuple(int(n) for n in shape), 0, kind)
            return
        before = len(self.inputs)
        super().placeholder(node)
        if len(self.inputs) > before:
            self.places.append(self.positions[node])

    def attribute(self, node: Any) -> None:
        """A tensor the traced code holds."""
        found = self.program
        for part in node.target.split("."):
            found = getattr(found, part)
        self.values[node] = self._constant(node.target, found)

    def call(self, node: Any) -> None:
        """One op by its rule; random numbers are inputs."""
        name = op_name(node.target)
        if name not in DRAWS or name in RULES:
            super().call(node)
            return
        example = node.meta["val"]
        shape = tuple(int(n) for n in example.shape)
        self.draws.append(Draw(DRAWS[name], shape, example.dtype))
        where = where_of(node.meta.get("stack_trace") or "")
        value = Builder(where).input(f"random{len(self.drawn)}", shape, torch_dtype(example.dtype))
        self.drawn.append(value)
        self.values[node] = value

    def _slots(self):
        """Each output of the code: a node with a value in the graph, or something fixed."""
        import torch
        output = next(n for n in self.program.graph.nodes if n.op == "output")
        for leaf in torch.utils._pytree.tree_leaves(output.args[0], is_leaf=lambda x: x is None):
            found = self.values.get(leaf) if isinstance(leaf, torch.fx.Node) else leaf
            if isinstance(found, Value):
                yield ("node", leaf) if found.size else ("empty", None)
            else:
                yield "fixed", found


__all__ = ["DRAWS", "Draw", "FxImporter", "Traced", "from_fx"]
