"""A JAX function, traced by JAX and lowered to StableHLO, as a graph with its tree of arguments."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import opentrn
from opentrn.base import NotBuiltError, UnsupportedError, Where, declare
from opentrn.frameworks.jax.kernels import kernels_of
from opentrn.frameworks.judge import NUMBERS
from opentrn.graph import Graph, from_stablehlo
from opentrn.nki import TracedKernel

OWN = os.path.dirname(opentrn.__file__)
# JAX knows no special rules for this platform: ops lower to plain StableHLO.
PLATFORM = TracedKernel.PLATFORM
KEYS = {"fry": "threefry2x32", "rbg": "rbg", "urbg": "unsafe_rbg"}

SHARDED = declare(
    "frameworks.jax_sharded",
    "An array that lies on several devices was given to a jitted function.",
    rule="a jitted function runs on one NeuronCore",
    fix="bring it to one device: jax.device_put(x, jax.devices()[0])",
)
FLOAT64 = declare(
    "frameworks.jax_float64",
    "A jitted function takes or gives 64-bit floats.",
    rule="NeuronCores have no 64-bit floats",
    fix="leave jax_enable_x64 off, or convert to float32 first",
    neuron="NCC_ESPP004",
)
CALLBACK = declare(
    "frameworks.jax_callback",
    "A jitted function calls back into Python while it runs.",
    rule="a program of a NeuronCore runs without the host; jax.debug.print is such a call",
    fix="leave the call out, or jit the function with jax.jit",
)

PRIMITIVE = declare(
    "frameworks.jax_primitive",
    "A jitted function uses ops for which JAX has no StableHLO, but a library of the host's.",
    rule="a program of a NeuronCore is made of StableHLO ops and NKI kernels",
    fix="do that part outside of the jitted function, with jax.jit",
)


@dataclass(frozen=True)
class Lowered:
    """What JAX made of a function for some arguments.

    `inputs` and `outputs` are the trees of shapes and dtypes, as JAX nests them (inputs are
    `(args, kwargs)`); the graph has one input and one output for each leaf, in order.
    """

    graph: Graph
    inputs: Any
    outputs: Any


def own_jit() -> Callable:
    """JAX's own `jit`, also where the name `jax.jit` stands for the device."""
    from jax._src.api import jit

    return jit


def lower(function: Callable, args: Sequence[Any] = (), kwargs: dict | None = None) -> Lowered:
    """Trace a function for arguments like these: arrays, or `jax.ShapeDtypeStruct`.

    Raises what JAX raises while it traces, and what `graph.from_stablehlo` raises.
    """
    traced = own_jit()(function, keep_unused=True).trace(*args, **(kwargs or {}))
    return lower_traced(traced, getattr(function, "__name__", "function"))


def lower_traced(traced: Any, name: str, absent: bool = False) -> Lowered:
    """The graph of `jax.jit(…, keep_unused=True).trace(…)`; `absent` as in `from_stablehlo`.

    Raises as `refuse_primitives` and `from_stablehlo` do."""
    refuse_primitives(traced.jaxpr.jaxpr)
    calls = kernels_of(traced.jaxpr.jaxpr)
    try:
        module = traced.lower(lowering_platforms=(PLATFORM,)).compiler_ir("stablehlo")
    except NotBuiltError:  # our own, with a code and a line
        raise
    except NotImplementedError as problem:  # an op that JAX spells out in one it has only elsewhere
        told = next(iter(str(problem).splitlines()), "") or "JAX cannot lower an op for the chip"
        raise UnsupportedError(told, code=PRIMITIVE) from problem
    graph = from_stablehlo(module, custom_calls=calls, absent=absent)
    graph = Graph(graph.inputs, graph.outputs, graph.constants, name=_plain(name),
                  output_names=graph.output_names)  # fmt: skip
    return Lowered(graph, traced.in_avals, traced.out_info)


def _plain(name: str) -> str:
    """A name without what files and programs do not like in names."""
    kept = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return kept.strip("_") or "function"


def from_jax(function: Callable, *args: Any, **kwargs: Any) -> Graph:
    """The graph of a function called with arguments like these; see `lower`."""
    return lower(function, args, kwargs).graph


@contextlib.contextmanager
def as_on_neuron() -> Iterator[None]:
    """JAX's defaults as its plugin for Trainium sets them: random keys are of the kind "rbg".

    Keys made inside, and functions traced inside, use it; outside, JAX is as it was.
    """
    import jax

    with jax.default_prng_impl("rbg"):
        yield


# ------------------------------------------------------------------------------- arrays and keys


def refuse_primitives(program: Any) -> None:
    """Raise UnsupportedError for what JAX cannot lower for the chip, all of it with its lines:
    `frameworks.jax_callback` for calls into Python alone, else `frameworks.jax_primitive`."""
    found: dict[Any, list[Where | None]] = {}
    for equation, place in _placed(program, None):
        if _calls_back(equation.primitive) or not _lowers(equation.primitive):
            found.setdefault(equation.primitive, []).append(place)
    if not found:
        return
    rows = [f"{len(found)} kind{'s' * (len(found) > 1)} of op cannot be lowered for the chip"]
    for primitive, places in found.items():
        calls = _calls_back(primitive)
        why = "it calls back into Python" if calls else "JAX has no StableHLO for it"
        rows.append(f"  {len(places):4d} × {primitive}: {why}")
        rows += [f"         {place}" for place in dict.fromkeys(places) if place is not None]
    raise UnsupportedError(
        "\n".join(rows), code=CALLBACK if all(map(_calls_back, found)) else PRIMITIVE,
        at=next(iter(found.values()))[0],
    )  # fmt: skip


def _placed(program: Any, outer: Where | None) -> Iterator[tuple[Any, Where | None]]:
    """Every equation of a jaxpr with the user's line: that of the call, inside JAX's own."""
    from jax.extend.core import jaxprs_in_params

    for equation in program.eqns:
        place = _place(equation) or outer
        yield equation, place
        for inner in jaxprs_in_params(equation.params):
            yield from _placed(inner, place)


def _calls_back(primitive: Any) -> bool:
    return str(primitive).endswith("_callback") or str(primitive) == "debug_print"


def _lowers(primitive: Any) -> bool:
    """Whether JAX has a rule for a primitive on any platform, or on the chip's."""
    from jax._src.interpreters import mlir

    return primitive in mlir._lowerings or primitive in mlir._platform_specific_lowerings[PLATFORM]


def _place(equation: Any) -> Where | None:
    """The user's line of an equation."""
    from jax._src.source_info_util import user_frames

    frames = user_frames(equation.source_info.traceback)
    frame = next((f for f in frames if not f.file_name.startswith(OWN)), None)
    return Where(frame.file_name, frame.start_line, frame.function_name) if frame else None


def is_traced(leaf: Any) -> bool:
    """Whether an argument stands for an array of an outer transformation."""
    import jax

    return isinstance(leaf, jax.core.Tracer)


def refuse_leaf(leaf: Any, name: str) -> None:
    """Raise NotBuiltError `frameworks.jax_sharded`, UnsupportedError `frameworks.jax_float64` or
    `frameworks.numbers`."""
    sharding = getattr(leaf, "sharding", None)
    if sharding is not None and len(getattr(sharding, "device_set", ())) > 1:
        raise NotBuiltError(f"{name} lies on {len(sharding.device_set)} devices", code=SHARDED)
    kind = str(canonical(leaf))
    if kind == "float64":
        raise UnsupportedError(f"{name} is {kind}", code=FLOAT64)
    if kind.startswith("complex"):
        raise UnsupportedError(f"{name} is {kind}", code=NUMBERS)


def to_host(leaf: Any) -> Any:
    """An argument as a NumPy array; a key as its words."""
    import jax
    import numpy as np

    if hasattr(leaf, "dtype") and str(leaf.dtype).startswith("key<"):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf, canonical(leaf))


def canonical(leaf: Any) -> Any:
    """The dtype JAX gives an argument: 64 bits become 32 unless jax_enable_x64 says otherwise."""
    import jax

    plain = isinstance(leaf, (bool, int, float, complex))
    kind = type(leaf) if plain else getattr(leaf, "dtype", None)
    if kind is None or str(kind).startswith("key<"):
        return kind
    return jax.dtypes.canonicalize_dtype(kind)


def to_jax(array: Any, like: Any) -> Any:
    """A result of the device as a JAX array of the shape and dtype JAX expects."""
    import jax

    kind = str(like.dtype)
    if not kind.startswith("key<"):
        made = jax.numpy.asarray(array.reshape(like.shape).astype(like.dtype))
        return as_weak(made) if like.weak_type else made
    words = jax.numpy.asarray(array.reshape(*like.shape, -1))
    return jax.random.wrap_key_data(words, impl=KEYS[kind[len("key<"):-1]])


def as_weak(array: Any) -> Any:
    """The array as one whose dtype gives way to others, as that of a Python number does."""
    from jax._src.lax.lax import _convert_element_type

    return _convert_element_type(array, weak_type=True)


__all__ = [
    "Lowered", "as_on_neuron", "from_jax", "is_traced", "lower", "lower_traced",
    "own_jit", "refuse_leaf", "to_host", "to_jax",
]  # fmt: skip
