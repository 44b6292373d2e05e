"""StableHLO programs, as JAX and TensorFlow write them, as graphs: one rule for each op.

jaxlib is imported only inside the functions.  Calls are put in place, loops and branches stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from opentrn.base import Bug, NotBuiltError, UnsupportedError, UsageError, Where, declare
from opentrn.graph.build import Builder
from opentrn.graph.importers import (
    stablehlo_devices,
    stablehlo_rules_linear,
    stablehlo_rules_plain,
    stablehlo_rules_region,
)
from opentrn.graph.importers.missing import unsupported
from opentrn.graph.importers.stablehlo_call import RULES, Call, Rule
from opentrn.graph.importers.stablehlo_chlo import Expansions
from opentrn.graph.importers.stablehlo_devices import constrained, meshes_of
from opentrn.graph.importers.stablehlo_mlir import Places, Reader, constant, parse, where_of
from opentrn.graph.importers.stablehlo_rules_region import CUSTOM
from opentrn.graph.ir import Graph, Region, Value, make, region_input
from opentrn.graph.ops.define import OPS, Type
from opentrn.graph.ops.foreign import Callee

FAMILIES = (stablehlo_devices, stablehlo_rules_linear, stablehlo_rules_plain,
            stablehlo_rules_region)
RETURNS = ("func.return", "stablehlo.return", "sdy.return")
MODULE_LEVEL = ("builtin.module", "func.func", "sdy.mesh")
# A value of outside that a region may make again instead of taking it as an input.
REMADE = ("constant", "iota")

declare("graph.stablehlo_op", "a StableHLO op is used in a way that has no rule",
        "each op has a rule for what frameworks write")
declare("graph.stablehlo_main", "a StableHLO program has no function to begin with",
        "a program begins at the function `main`, or at its only public one",
        "name the function: from_stablehlo(text, function='name')")
declare("graph.stablehlo_recursion", "a function of a StableHLO program calls itself",
        "StableHLO has no recursion", "write a loop")


def from_stablehlo(source: Any, *, function: str = "",
                   custom_calls: Mapping[str, Rule] | None = None, absent: bool = False) -> Graph:
    """The graph of a StableHLO program: MLIR text, generic text, bytecode, a portable artifact, or
    a module as `jax.jit(f).lower(…).compiler_ir()` gives.

    It begins at `function` (left out: `main`, or the only public one); its arguments become inputs
    `arg0`, `arg1`, ….  `custom_calls` gives rules for targets of custom_call.  Each value has the
    source line the program names.  With `absent`, ops without a rule become `foreign` ops without
    code: for those who judge the other ops as well.

    Raises FileFormatError `graph.stablehlo_text` for what is no program, UnsupportedError
    `graph.unsupported_op`, which names all ops without a rule at once, `graph.stablehlo_type` and
    `graph.stablehlo_op`; NotBuiltError `graph.dynamic_shape` and `graph.stablehlo_sharded`."""
    module = parse(source)
    with module.context:
        return Importer(module, function, custom_calls or {}, absent).graph()


class Scope:
    """The values of one function or region by their MLIR names; `outer` is what it may capture."""

    __slots__ = ("captured", "given", "outer", "values")

    def __init__(self, outer: Scope | None = None, given: int = 0,
                 captured: dict[Value, Value] | None = None) -> None:
        self.values: dict[Any, Any] = {}
        self.outer, self.given = outer, given
        self.captured = {} if captured is None else captured

    def find(self, name: Any) -> Any:
        """The value of a name; one of outside becomes a further input of the region."""
        found = self.values.get(name, self)
        if found is not self:
            return found
        if self.outer is None:
            raise Bug(f"the value {name} is used before it is made")
        value = self.outer.find(name)
        if not isinstance(value, Value) or remade(value):
            return value
        inside = self.captured.get(value)
        if inside is None:
            inside = region_input(self.given + len(self.captured), value.type)
            self.captured[value] = inside
        return inside


def remade(value: Value) -> bool:
    """Whether a value costs nothing to make again: a constant, repeated or not."""
    while value.op in ("broadcast_in_dim", "reshape"):
        value = value.args[0]
    return value.op in REMADE


class Importer:
    """One walk over a module."""

    def __init__(self, module: Any, function: str, custom_calls: Mapping[str, Rule],
                 absent: bool = False) -> None:
        self.module = module
        self.reader = Reader()
        self.place = Places()
        self.constants: dict[Any, Value] = {}
        self.custom_calls = {**CUSTOM, **custom_calls}
        self.expansions = Expansions(module.context)
        self.functions = {_symbol(op): op for op in module.body.operations
                          if op.operation.name == "func.func"}
        self.begin = function or self._main()
        self.inputs: list[Value] = []
        self.active: list[str] = []
        self.draws = 0
        self.absent = absent
        # The device of a mesh whose part is being built; a whole program for several has none.
        self.device = -1 if self._count("mhlo.num_partitions") > 1 else 0
        self.meshes = meshes_of(module)

    def _main(self) -> str:
        if "main" in self.functions:
            return "main"
        public = [n for n, f in self.functions.items()
                  if "sym_visibility" not in f.operation.attributes
                  or f.operation.attributes["sym_visibility"].value == "public"]
        if len(public) != 1:
            raise UsageError(f"the program has the functions {', '.join(self.functions) or '—'}",
                             code="graph.stablehlo_main")
        return public[0]

    def graph(self) -> Graph:
        """Check that every op has a rule, then build."""
        self.check()
        block = self.function(self.begin)
        scope = Scope()
        for number, argument in enumerate(block.arguments):
            kind = self.reader.type_of(argument.type)
            if kind is not None:
                value = self._placed("arg_attrs", number, self._input(number, kind))
                scope.values[argument] = value
            else:
                scope.values[argument] = None
        found = self._run(block, scope, None)
        outputs = [self._placed("res_attrs", n, v) for n, v in enumerate(found) if v is not None]
        flat = list(_flat(outputs))
        return Graph(self.inputs, flat, name=self.begin, output_names=self._output_names(flat))

    def _placed(self, word: str, number: int, value: Any) -> Any:
        """An argument or result with the sharding the function gives it."""
        attributes = self.functions[self.begin].operation.attributes
        own = attributes[word][number] if word in attributes else {}
        if "sdy.sharding" not in own or not isinstance(value, Value):
            return value
        return constrained(self, Builder(value.where), value, own["sdy.sharding"])

    def _input(self, number: int, kind: Type) -> Value:
        attrs = OPS["input"](label=f"arg{number}", shape=kind.shape,  # type: ignore[call-arg]
                             dtype=kind.dtype)
        value = make(attrs, ())
        self.inputs.append(value)
        return value

    def _output_names(self, outputs: list[Value]) -> list[str]:
        return [f"output{i}" for i in range(len(outputs))]

    def function(self, name: str) -> Any:
        """The block of a function of the program."""
        if name not in self.functions:
            raise UsageError(f"the program has no function {name}", code="graph.stablehlo_main")
        return self.functions[name].operation.regions[0].blocks[0]

    # ---------------------------------------------------------------------------------- checking

    def check(self) -> None:
        """Raise one error that names every op without a rule, or the first of several devices."""
        self._check_devices()
        missing: dict[str, list[Any]] = {}
        total = 0
        for op in walk(self.module.operation):
            total += 1
            name = self._missing(op)
            if name:
                missing.setdefault(name, []).append(op)
        if missing and not self.absent:
            raise _unsupported(missing, total, [*RULES, *map(_target, self.custom_calls)])

    def _missing(self, op: Any) -> str:
        """The name of what has no rule, "" for an op that has one."""
        name = op.name
        if name == "stablehlo.custom_call":
            target = op.attributes["call_target_name"].value
            return "" if target in self.custom_calls else _target(target)
        known = name in RULES or name in RETURNS or name in MODULE_LEVEL
        return "" if known or self.expansions.can(op) else name

    def _count(self, name: str) -> int:
        """A number the module says, 1 where it says none."""
        attributes = self.module.operation.attributes
        number = getattr(attributes[name], "value", 1) if name in attributes else 1
        return number if isinstance(number, int) else 1

    def _check_devices(self) -> None:
        count = self._count("mhlo.num_replicas")
        if count > 1:
            raise NotBuiltError(f"the program is for one of {count} devices (num_replicas)",
                                code="graph.stablehlo_sharded")

    # ---------------------------------------------------------------------------------- building

    def next_draw(self) -> int:
        """The number of the next op that draws random numbers."""
        self.draws += 1
        return self.draws - 1

    def constant(self, op: Any, kind: Type, g: Builder) -> Value:
        """The value of a constant; equal ones are read once."""
        key = op if kind.dtype.kind == "complex" else op.attributes["value"]
        found = self.constants.get(key)
        if found is None:
            data, splat = constant(key, kind)
            found = g.full(kind.shape, data, kind.dtype) if splat else g.constant(data)
            self.constants[key] = found
        return found

    def _run(self, block: Any, scope: Scope, where: Where | None) -> list[Any]:
        """The results of a block; `where` is the line of ops that name none."""
        for each in block.operations:
            op = each.operation
            name = op.name
            args = [scope.find(v) for v in op.operands]
            if name in RETURNS:
                return args
            self.build(op, name, args, scope, self.place(op.location) or where)
        return []

    def scope(self) -> Scope:
        """A scope that sees nothing of outside."""
        return Scope()

    def build(self, op: Any, name: str, args: list[Any], scope: Scope, where: Where | None) -> None:
        """Enter the results of an op for these operands into a scope."""
        call = Call(self, scope, op, args, where)
        made: Any = self._made(call, name)
        names = op.results
        if type(made) is Value:
            (result,) = names
            scope.values[result] = made
            self._compare(name, result, made)
            return
        results = list(made or ())
        if len(results) != len(names):
            raise Bug(f"the rule for {name} made {len(results)} results of {len(names)}")
        for result, value in zip(names, results, strict=True):
            scope.values[result] = value
            if isinstance(value, Value):
                self._compare(name, result, value)

    def _made(self, call: Call, name: str) -> Any:
        """What the rule of an op makes."""
        missing = self._missing(call.op) if self.absent else ""
        if missing:
            takes = tuple(value.type for value in call.args)
            callee = Callee(missing, takes, tuple(call.results))  # type: ignore[arg-type]
            return call.parts(call.g.foreign(*call.args, callee=callee))
        make_it = RULES.get(name)
        return make_it(call) if make_it is not None else self.expand(call)

    def _compare(self, name: str, result: Any, value: Value) -> None:
        want = self.reader.type_of(result.type)
        if want != value.type:
            raise Bug(f"the rule for {name} made {value.type}; the program says {want}")

    def expand(self, call: Call) -> Any:
        """An op of CHLO in the StableHLO ops it stands for."""
        block = self.expansions.block(call)
        return self._apply(block, call.args, call.where)

    def called(self, name: str, args: list[Any], where: Where | None) -> list[Any]:
        """The results of a function of the program."""
        if name in self.active:
            raise UnsupportedError(f"{name} calls itself", code="graph.stablehlo_recursion",
                                   at=where)
        self.active.append(name)
        found = self._apply(self.function(name), args, where)
        self.active.pop()
        return found

    def _apply(self, block: Any, args: Iterable[Any], where: Where | None) -> list[Any]:
        scope = Scope()
        scope.values = dict(zip(block.arguments, args, strict=True))
        return self._run(block, scope, where)

    def regions(self, op: Any, scope: Scope,
                where: Where | None) -> tuple[list[Region], list[Value]]:
        """The regions of an op and what they capture; all take their own arguments, then that."""
        captured: dict[Value, Value] = {}
        made = []
        for region in op.regions:
            block = region.blocks[0]
            inner = Scope(scope, len(block.arguments), captured)
            own = [region_input(i, self._kind(a.type, where))
                   for i, a in enumerate(block.arguments)]
            inner.values = dict(zip(block.arguments, own, strict=True))
            made.append((own, self._run(block, inner, where)))
        rest = list(captured.values())
        return [Region([*own, *rest], outputs) for own, outputs in made], list(captured)

    def _kind(self, kind: Any, where: Where | None) -> Type:
        found = self.reader.type_of(kind, where)
        if found is None:
            raise UnsupportedError("a region takes a token", code="graph.stablehlo_type", at=where)
        return found


def _symbol(op: Any) -> str:
    return op.operation.attributes["sym_name"].value


def _target(name: str) -> str:
    return f"custom_call @{name}"


def _flat(values: Iterable[Any]) -> Iterable[Value]:
    for value in values:
        if isinstance(value, Value):
            yield value
        else:
            yield from _flat(value)


def walk(op: Any) -> Iterable[Any]:
    """Every op below another, and itself."""
    yield op
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from walk(inner.operation)


def _unsupported(missing: dict[str, list[Any]], total: int, known: list[str]) -> UnsupportedError:
    places = {name: [where_of(op.location) for op in ops] for name, ops in missing.items()}
    return unsupported(
        "program uses {} op", places, total, known,
        "write it with other ops, or compute it outside the program; for a custom call, pass a "
        "rule: from_stablehlo(…, custom_calls={name: rule})",
    )  # fmt: skip
