"""A JAX function, traced by JAX and lowered to StableHLO, as a graph with its tree of arguments."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import opentrn
from opentrn.base import NotBuiltError, UnsupportedError, Where, declare
from opentrn.frameworks.jax.kernels import equations, kernels_of
from opentrn.frameworks.program import NUMBERS
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


def lower_traced(traced: Any, name: str) -> Lowered:
    """The graph of `jax.jit(…, keep_unused=True).trace(…)`; refuses callbacks."""
    refuse_callbacks(traced.jaxpr.jaxpr)
    calls = kernels_of(traced.jaxpr.jaxpr)
    module = traced.lower(lowering_platforms=(PLATFORM,)).compiler_ir("stablehlo")
    graph = from_stablehlo(module, custom_calls=calls)
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


def refuse_callbacks(program: Any) -> None:
    """Raise UnsupportedError `frameworks.jax_callback` naming the calls into Python, at the user's
    line of the first."""
    from jax._src.source_info_util import user_frames

    found = [e for e in equations(program) if str(e.primitive).endswith("_callback")]
    if found:
        frames = user_frames(found[0].source_info.traceback)
        users = (f for f in frames if not f.file_name.startswith(OWN))
        frame = next(users, None)
        at = Where(frame.file_name, frame.start_line, frame.function_name) if frame else None
        names = ", ".join(sorted({str(equation.primitive) for equation in found}))
        raise UnsupportedError(f"it calls back into Python: {names}", code=CALLBACK, at=at)


def is_traced(leaf: Any) -> bool:
    """Whether an argument stands for an array of an outer transformation."""
    import jax

    return isinstance(leaf, jax.core.Tracer)


def refuse_leaf(leaf: Any, name: str) -> None:
    """Raise NotBuiltError `frameworks.jax_sharded`, UnsupportedError `frameworks.jax_float64` or
    `frameworks.jax_numbers`."""
    sharding = getattr(leaf, "sharding", None)
    if sharding is not None and len(getattr(sharding, "device_set", ())) > 1:
        raise NotBuiltError(f"{name} lies on {len(sharding.device_set)} devices", code=SHARDED)
    kind = str(getattr(leaf, "dtype", ""))
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
    if isinstance(leaf, (bool, int, float)):
        return np.asarray(leaf, jax.dtypes.canonicalize_dtype(type(leaf)))
    return np.asarray(leaf)


def to_jax(array: Any, like: Any) -> Any:
    """A result of the device as a JAX array of the shape and dtype JAX expects."""
    import jax

    kind = str(like.dtype)
    if not kind.startswith("key<"):
        return jax.numpy.asarray(array.reshape(like.shape).astype(like.dtype))
    words = jax.numpy.asarray(array.reshape(*like.shape, -1))
    return jax.random.wrap_key_data(words, impl=KEYS[kind[len("key<"):-1]])


__all__ = [
    "Lowered", "as_on_neuron", "from_jax", "is_traced", "lower", "lower_traced",
    "own_jit", "refuse_leaf", "to_host", "to_jax",
]  # fmt: skip
