"""StableHLO for several devices.  Shardings are kept; what one device of a mesh computes (JAX's
`shard_map`) is built for every device, so that collectives are ops among values of one graph.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from opentrn.base import NotBuiltError, declare
from opentrn.graph.importers.stablehlo_call import Call, Made, rule
from opentrn.graph.importers.stablehlo_rules_region import custom, spread
from opentrn.graph.ir import Value

if TYPE_CHECKING:
    from opentrn.base import Where
    from opentrn.graph.importers.stablehlo import Importer

declare("graph.stablehlo_sharded", "a StableHLO program is written for several devices",
        "one graph holds a program that is the same for all devices of a mesh",
        "jit it without shardings; spread it over cores with opentrn.plan")

Mesh = dict[str, int]
Values = list[Value]  # of all devices, in order

_AXIS = re.compile(r'"([^"]+)"=(\d+)')
_DIMENSION = re.compile(r"\{([^{}]*)\}")
_SHARDING = re.compile(r"<@([\w.]+), \[((?:\{[^{}]*\}(?:p\d+)?(?:, )?)*)\]")
MOST = 1 << 18  # ops of a computation, counted once for each device
RETURNS = ("sdy.return", "func.return", "stablehlo.return")


def sharded(call: Call, why: str) -> NotBuiltError:
    """The error for what needs several devices."""
    return NotBuiltError(f"{call.op.name}: {why}", code="graph.stablehlo_sharded", at=call.where)


# ----------------------------------------------------------------------------------- shardings


def meshes_of(module: Any) -> dict[str, Mesh]:
    """The meshes of a module by name; one of other devices than 0, 1, … is left out."""
    found = {}
    for op in module.body.operations:
        if op.operation.name == "sdy.mesh":
            text = str(op.operation.attributes["mesh"])
            if "device_ids" not in text:
                name = op.operation.attributes["sym_name"].value
                found[name] = {axis: int(size) for axis, size in _AXIS.findall(text)}
    return found


def shardings_of(attribute: Any) -> list[tuple[str, list[list[str]]]]:
    """(mesh, the mesh axes that split each dimension) of each sharding in an attribute; a part of
    an axis has a name with ":"."""
    return [(mesh, [re.findall(r'"[^"]+"(?::\(\d+\)\d+)?', dims) for dims in
                    _DIMENSION.findall(rest)]) for mesh, rest in _SHARDING.findall(str(attribute))]


def constrained(importer: Importer, g: Any, value: Value, attribute: Any) -> Value:
    """A value with its sharding, if that is one over several devices."""
    for sharding in shardings_of(attribute):
        value = with_sharding(importer, g, value, *sharding)
    return value


def with_sharding(importer: Importer, g: Any, value: Value, name: str,
                  dimensions: list[list[str]]) -> Value:
    """A value split over a mesh, itself if the mesh is one device."""
    mesh = importer.meshes.get(name, {})
    words = ["+".join(_axes(axes)) or "-" for axes in dimensions]
    if math.prod(mesh.values()) == 1 or len(words) != value.rank or ":" in "".join(words):
        return value
    told = " ".join(f"{axis}={size}" for axis, size in mesh.items())
    return g.sharding_constraint(value, mesh=told, axes=" ".join(words))


@rule("sdy.sharding_constraint", "sdy.reshard")
def placed(call: Call) -> Made:
    """Where an array should lie."""
    return [constrained(call.importer, call.g, call.args[0], call.raw("sharding"))]


@custom("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement",
        "LayoutConstraint", "xla.sdy.FuncResultSharding")
def annotated(call: Call) -> Made:
    """The older way to say where an array lies: on one core there is one place."""
    if any(r.shape != a.shape for r, a in zip(call.results, call.args, strict=False) if r):
        raise sharded(call, "an array is split over devices")
    return call.args


# ------------------------------------------------------------------------------ alone on a device


@rule("stablehlo.partition_id")
def device_id(call: Call) -> Value:
    """The number of the device a computation is built for."""
    if call.importer.device < 0:
        raise sharded(call, "it is the program of one of several devices")
    return call.g.constant(np.uint32(call.importer.device))


@rule("stablehlo.replica_id")
def replica_id(call: Call) -> Value:
    """The number of the replica: there is one."""
    return call.g.constant(np.uint32(0))


@rule("stablehlo.all_reduce", "stablehlo.all_gather", "stablehlo.reduce_scatter",
      "stablehlo.all_to_all", "stablehlo.collective_permute", "stablehlo.collective_broadcast",
      "stablehlo.cross-replica-sum")
def collective(call: Call) -> Made:
    """A collective of one device is what it begins with."""
    attributes = call.op.attributes
    if "replica_groups" in attributes:
        groups: Any = call.attr("replica_groups")
        if np.size(groups) > 1:
            raise sharded(call, f"it is over {np.size(groups)} devices, inside a loop or branch or "
                          "a program for one of them")
    elif "source_target_pairs" in attributes and call.attr("source_target_pairs") != [[0, 0]]:
        raise sharded(call, "it is over several devices")
    return call.args


# ------------------------------------------------------------------------ every device of a mesh


@rule("sdy.manual_computation")
def manual(call: Call) -> Made:
    """What one device of a mesh computes of its parts (`shard_map`), for all devices."""
    into, out = (shardings_of(call.raw(n)) for n in ("in_shardings", "out_shardings"))
    names = {name for name, _ in (*into, *out)}
    mesh = call.importer.meshes.get(next(iter(names), ""), {})
    own = set(re.findall(r'"([^"]+)"', str(call.raw("manual_axes"))))
    complete = all(axis in own or size == 1 for axis, size in mesh.items())
    if len(names) != 1 or not mesh or not complete or ":" in "".join(map(str, (*into, *out))):
        raise sharded(call, "it names several meshes, parts of axes, other devices than 0, 1, …, "
                      "or leaves axes of its mesh to the compiler")
    if len(into) != len(call.args):
        raise sharded(call, f"{len(into)} shardings for {len(call.args)} operands")
    places = [dict(zip(mesh, at, strict=True))
              for at in itertools.product(*map(range, mesh.values()))]
    together = Together(call.importer, len(places))
    block = call.op.regions[0].blocks[0]
    if len(places) * len(list(block.operations)) > MOST:
        raise sharded(call, f"{len(places)} devices are more than are built side by side")
    whole = [_kept(call, x, each) for x, each in zip(call.args, into, strict=True)]
    given = [[_part(call, x, split, mesh, at) for at in places]
             for x, (_, split) in zip(whole, into, strict=True)]
    _agree(call, [values[0] for values in given], [a.type for a in block.arguments])
    found = together.run(block, given, call.where)
    if len(found) != len(out):
        raise call.refuse(f"{len(out)} shardings for {len(found)} results")
    joined = [_joined(call, values, split, mesh, places)
              for values, (_, split) in zip(found, out, strict=True)]
    _agree(call, joined, [r.type for r in call.op.results])
    return [_kept(call, x, split) for x, split in zip(joined, out, strict=True)]


def _agree(call: Call, values: Sequence[Value], types: Sequence[Any]) -> None:
    """Refuse shardings that do not give what the program says."""
    for value, kind in zip(values, types, strict=True):
        told = call.importer.reader.type_of(kind, call.where)
        if told != value.type:
            raise call.refuse(f"its shardings give {value.type}, the program says {told}")


def _kept(call: Call, value: Value, sharding: tuple[str, list[list[str]]]) -> Value:
    return with_sharding(call.importer, call.g, value, *sharding)


def _axes(split: Sequence[str]) -> list[str]:
    return [axis.strip('"') for axis in split]


def _part(call: Call, x: Value, split: Sequence[Sequence[str]], mesh: Mesh,
          at: dict[str, int]) -> Value:
    """The part of an array that the device at a place of the mesh holds."""
    low, high = [0] * x.rank, list(x.shape)
    for dim, axes in enumerate(map(_axes, split)):
        index, count = 0, 1
        for axis in axes:
            index, count = index * mesh[axis] + at[axis], count * mesh[axis]
        if x.shape[dim] % count:
            raise call.refuse(f"{x.shape[dim]} elements do not divide into {count} parts")
        size = x.shape[dim] // count
        low[dim], high[dim] = index * size, (index + 1) * size
    return call.g.slice(x, low, high, [1] * x.rank)


def _joined(call: Call, values: Values, split: Sequence[Sequence[str]], mesh: Mesh,
            places: list[dict[str, int]]) -> Value:
    """The array whose parts the devices hold; of equal parts that of the first."""

    def build(dim: int, at: dict[str, int]) -> Value:
        if dim == len(split):
            whole = {axis: at.get(axis, 0) for axis in mesh}
            return values[places.index(whole)]
        axes = _axes(split[dim])
        steps = itertools.product(*(range(mesh[axis]) for axis in axes))
        parts = [build(dim + 1, {**at, **dict(zip(axes, step, strict=True))}) for step in steps]
        return parts[0] if len(parts) == 1 else call.g.concatenate(*parts, dimension=dim)

    return build(0, {})


class Together:
    """One walk over a computation of one device that builds it for all."""

    def __init__(self, importer: Importer, devices: int) -> None:
        self.importer, self.devices = importer, devices

    def run(self, block: Any, given: Sequence[Values], where: Where | None) -> list[Values]:
        """The results of a block for these arguments, each a list over the devices."""
        importer, before = self.importer, self.importer.device
        scopes = [importer.scope() for _ in range(self.devices)]
        for argument, values in zip(block.arguments, given, strict=True):
            for scope, value in zip(scopes, values, strict=True):
                scope.values[argument] = value
        for each in block.operations:
            op = each.operation
            args = [[scope.find(v) for scope in scopes] for v in op.operands]
            if op.name in RETURNS:
                importer.device = before
                return args
            at = importer.place(op.location) or where
            results = self._met(op, args, scopes, at)
            if results is None:
                for device, scope in enumerate(scopes):
                    importer.device = device
                    importer.build(op, op.name, [a[device] for a in args], scope, at)
                continue
            _agree(Call(importer, scopes[0], op, [], at), [r[0] for r in results],
                   [r.type for r in op.results])
            for result, values in zip(op.results, results, strict=True):
                for scope, value in zip(scopes, values, strict=True):
                    scope.values[result] = value
        return []

    def _met(self, op: Any, args: list[Values], scopes: list[Any],
             where: Where | None) -> list[Values] | None:
        """The results of an op at which devices meet, or of a call; None for any other op."""
        if op.name == "func.call":
            return self.run(self.importer.function(op.attributes["callee"].value), args, where)
        meet = MEETINGS.get(op.name)
        if meet is None:
            return None
        call = Call(self.importer, scopes[0], op, [a[0] for a in args], where)
        if "channel_handle" not in op.attributes:
            return args  # over replicas, of which there is one
        return meet(call, args)


def _groups(call: Call) -> list[list[int]]:
    """The groups of devices that meet, without places that are filled with -1."""
    groups = np.atleast_2d(np.array(call.attr("replica_groups"))).tolist()
    return [[int(n) for n in group if n >= 0] for group in groups]


def _summed(call: Call, args: list[Values]) -> list[Values]:
    """For each operand, what the region makes of the values of a device's group."""
    (body,), _ = call.regions()
    found = [list(values) for values in args]
    for values, made in zip(args, found, strict=True):
        for group in _groups(call):
            total = values[group[0]]
            for other in group[1:]:
                total = spread(call, body, [total, values[other]])[0]
            for device in group:
                made[device] = total
    return found


def _gathered(call: Call, args: list[Values]) -> list[Values]:
    axis = call.attr("all_gather_dim")
    found = [list(values) for values in args]
    for values, made in zip(args, found, strict=True):
        for group in _groups(call):
            whole = call.g.concatenate(*(values[d] for d in group), dimension=axis)
            for device in group:
                made[device] = whole
    return found


def _cut(call: Call, x: Value, axis: int, index: int, count: int) -> Value:
    """Part number `index` of `count` equal ones along an axis."""
    low, high, size = [0] * x.rank, list(x.shape), x.shape[axis] // count
    low[axis], high[axis] = index * size, (index + 1) * size
    return call.g.slice(x, low, high, [1] * x.rank)


def _scattered(call: Call, args: list[Values]) -> list[Values]:
    axis, (values,) = call.attr("scatter_dimension"), _summed(call, args)
    for group in _groups(call):
        for place, device in enumerate(group):
            values[device] = _cut(call, values[device], axis, place, len(group))
    return [values]


def _exchanged(call: Call, args: list[Values]) -> list[Values]:
    split, join = call.attr("split_dimension"), call.attr("concat_dimension")
    found = [list(values) for values in args]
    for values, made in zip(args, found, strict=True):
        for group in _groups(call):
            for place, device in enumerate(group):
                parts = [_cut(call, values[d], split, place, len(group)) for d in group]
                made[device] = call.g.concatenate(*parts, dimension=join)
    return found


def _moved(call: Call, args: list[Values]) -> list[Values]:
    pairs = np.array(call.attr("source_target_pairs")).reshape(-1, 2).tolist()
    found = [[call.g.like(v, 0) for v in values] for values in args]
    for values, made in zip(args, found, strict=True):
        for source, target in pairs:
            made[target] = values[source]
    return found


def _sent(call: Call, args: list[Values]) -> list[Values]:
    found = [[call.g.like(v, 0) for v in values] for values in args]
    for values, made in zip(args, found, strict=True):
        for group in _groups(call):
            for device in group:
                made[device] = values[group[0]]
    return found


MEETINGS: dict[str, Callable[[Call, list[Values]], list[Values]]] = {
    "stablehlo.all_reduce": _summed, "stablehlo.all_gather": _gathered,
    "stablehlo.reduce_scatter": _scattered, "stablehlo.all_to_all": _exchanged,
    "stablehlo.collective_permute": _moved, "stablehlo.collective_broadcast": _sent,
}  # fmt: skip
