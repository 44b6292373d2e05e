"""Where an array lies among several devices: said beside the numbers, which it does not change."""

from __future__ import annotations

import numpy as np

from opentrn.graph.ops.define import Op, Traffic, Type, Wrong


class ShardingConstraint(Op):
    """The operand; on a mesh of devices it is split as `axes` says.

    `mesh` names the mesh's axes and sizes ("x=2 y=4"); `axes` has a word for each axis of the
    array: the mesh axes that split it, joined by "+", outermost first, or "-" ("x - y+z")."""

    exact = True
    operands = ("operand",)
    law = "`axes` has a word for each axis of the operand, of axes that `mesh` names"
    mesh: str
    axes: str

    def result(self, operand: Type) -> Type:
        named = {part.partition("=")[0] for part in self.mesh.split()}
        words = self.axes.split()
        used = [name for word in words if word != "-" for name in word.split("+")]
        if len(words) != len(operand.shape) or not set(used) <= named:
            raise Wrong(f"`axes` is {self.axes!r} on the mesh {self.mesh!r}", kind="attribute")
        return operand

    def evaluate(self, out: Type, operand: np.ndarray) -> np.ndarray:
        return operand

    def flops(self, out: Type, operand: Type) -> int:
        return 0  # it computes nothing

    def traffic(self, out: Type, operand: Type) -> Traffic:
        return Traffic(0, 0)  # on one device nothing moves
