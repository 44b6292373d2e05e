"""CHLO's functions (erf_inv, lgamma, bessel_i1e, …) in StableHLO ops, as StableHLO's own pass says.

Only ops without a rule are taken apart, one at a time, and each kind once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentrn.graph.importers.stablehlo_guard import PIPELINE

if TYPE_CHECKING:
    from opentrn.graph.importers.stablehlo_call import Call


class Expansions:
    """The expansions one module needs, by op, attributes and operand types."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.modules: dict[str, Any] = {}

    def can(self, op: Any) -> bool:
        """Whether StableHLO says what an op stands for.  Its pass does not take ops with regions
        out of their place."""
        if not op.name.startswith("chlo.") or len(op.regions):
            return False
        return self.context.is_registered_operation(op.name)

    def block(self, call: Call) -> Any:
        """The block whose arguments are the op's operands and that returns its results.

        Raises UnsupportedError `graph.stablehlo_op` if the pass leaves the op as it is."""
        op = call.op
        types = [v.type for v in op.operands], [v.type for v in op.results]
        names = [a if isinstance(a, str) else a.name for a in op.attributes]
        attributes = {name: op.attributes[name] for name in names}
        key = f"{op.name} {attributes} {types}"
        if key not in self.modules:
            made = self.modules[key] = expanded(self.context, op.name, types, attributes)
            if made is None:
                raise call.refuse("it cannot be taken apart for these types")
        return self.modules[key].body.operations[0].operation.regions[0].blocks[0]


def expanded(context: Any, name: str, types: tuple[list[Any], list[Any]],
             attributes: dict[str, Any]) -> Any:
    """A module of one function that computes the op in StableHLO; None if the pass fails."""
    from jaxlib.mlir import ir, passmanager
    from jaxlib.mlir.dialects import func, stablehlo

    with context, ir.Location.unknown(context):
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("main", ir.FunctionType.get(*types))
        with ir.InsertionPoint(function.add_entry_block()):
            made = ir.Operation.create(name, results=types[1], operands=list(function.arguments),
                                       attributes=attributes)
            func.ReturnOp(list(made.results))
        stablehlo.register_stablehlo_passes()
        try:
            passmanager.PassManager.parse(PIPELINE).run(module.operation)
        except ir.MLIRError:
            return None
        return module
