"""`jit(f)`: like `jax.jit(f)`, on a simulated NeuronCore.

JAX traces the function; each new set of shapes, dtypes and static values is compiled once.  Inside
another transformation of JAX (`grad`, `vmap`, `jax.jit`) the function is a part of it.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from opentrn.base import UnsupportedError, UsageError, declare
from opentrn.frameworks.jax.lower import (
    Lowered,
    is_traced,
    lower_traced,
    own_jit,
    refuse_leaf,
    to_host,
    to_jax,
)
from opentrn.frameworks.judge import PRECISION, PRECISIONS, refusal
from opentrn.frameworks.program import Program as Compiled

OPTION = declare(
    "frameworks.jax_option",
    "`jit` was given a static argument that cannot be one.",
    rule="static arguments are hashable",
    fix="give a tuple for a list, or leave the argument out of static_argnums",
)

class Program(Compiled):
    """One function compiled for one set of arguments; call it with their leaves."""

    lowered: Lowered

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """The function's result for the leaves of its arguments."""
        import jax

        found = self.run([to_host(leaf) for leaf in leaves])
        like, tree = jax.tree.flatten(self.lowered.outputs)
        return tree.unflatten([to_jax(a, one) for a, one in zip(found, like, strict=True)])


@dataclass
class Places:
    """Arguments by position and by name: those that are static, or those that are donated."""

    positions: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, function: Callable, positions: Any, names: Any) -> "Places":
        """From `…_argnums` and `…_argnames`; each position counts by its name too, and vice
        versa, where the function's signature tells."""
        at = {positions} if isinstance(positions, int) else set(positions or ())
        called = {names} if isinstance(names, str) else set(names or ())
        try:
            known = list(inspect.signature(function).parameters)
        except (TypeError, ValueError):
            known = []
        at = {p % len(known) if p < 0 and known else p for p in at}
        called |= {known[p] for p in at if p < len(known)}
        at |= {i for i, name in enumerate(known) if name in called}
        return cls(frozenset(at), frozenset(called))

    def split(self, args: tuple, kwargs: dict) -> tuple[tuple, dict, dict, dict]:
        """(other arguments, other keywords, these by position, these by name)."""
        these = {i: a for i, a in enumerate(args) if i in self.positions}
        named = {k: v for k, v in kwargs.items() if k in self.names}
        rest = tuple(a for i, a in enumerate(args) if i not in self.positions)
        return rest, {k: v for k, v in kwargs.items() if k not in self.names}, these, named


@dataclass(eq=False)
class Jitted:
    """A function that runs on the device; call it like the function.

    `programs` holds what was compiled, in the order of first use.
    """

    function: Callable
    target: str
    precision: str
    static: Places
    donated: Places
    inside: Callable
    shardings: dict[str, Any] = field(default_factory=dict)
    traces: dict[Any, Any] = field(default_factory=dict)
    programs: dict[Any, Program] = field(default_factory=dict)

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result, as JAX arrays.

        Raises what JAX raises while it traces, UnsupportedError `graph.unsupported_op` and
        `compiler.no_kernel` naming all ops at once, and those of `refuse_leaf`.
        """
        import jax

        if any(map(is_traced, jax.tree.leaves((args, kwargs)))):
            return self.inside(*args, **kwargs)
        program, leaves = self._program(args, kwargs)
        result = program(leaves)
        _, _, given, named = self.donated.split(args, kwargs)
        for leaf in jax.tree.leaves((given, named)):
            if isinstance(leaf, jax.Array):
                leaf.delete()
        return result

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: the instance is the first argument."""
        return self if instance is None else functools.partial(self, instance)

    def compile(self, *args: Any, **kwargs: Any) -> Program:
        """The program for arguments like these (arrays or `jax.ShapeDtypeStruct`), not run."""
        return self._program(args, kwargs)[0]

    def _program(self, args: tuple, kwargs: dict) -> tuple[Program, list[Any]]:
        import jax

        args, kwargs, held, named = self.static.split(args, kwargs)
        leaves = jax.tree.leaves((args, kwargs))
        for number, leaf in enumerate(leaves):
            refuse_leaf(leaf, f"argument {number}")
        traced = self._traceable(held, named).trace(*args, **kwargs)
        program = self.programs.get(traced.jaxpr)
        if program is None:
            program = self.programs[traced.jaxpr] = self._compiled(traced)
        return program, leaves

    def _traceable(self, held: dict, named: dict) -> Any:
        """The function with these static arguments, as JAX traces it."""

        key = (tuple(held.items()), tuple(sorted(named.items(), key=lambda item: item[0])))
        try:
            found = self.traces.get(key)
        except TypeError:
            raise UsageError("a static argument is not hashable", code=OPTION) from None
        if found is None:
            found = self.traces[key] = own_jit()(
                _with(self.function, held, named), keep_unused=True, **self.shardings
            )
        return found

    def _compiled(self, traced: Any) -> Program:
        import jax

        for leaf in jax.tree.leaves(traced.out_info):
            refuse_leaf(leaf, "a result")
        name = getattr(self.function, "__name__", "function")
        try:
            lowered = lower_traced(traced, name)
        except UnsupportedError as error:
            if error.code != "graph.unsupported_op":
                raise
            whole = lower_traced(traced, name, absent=True).graph
            raise refusal(whole, error, self.target, self.precision) from None
        return Program.of(lowered, self.target, self.precision)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As of `jax.jit`: the function lowered for JAX's own device."""
        return self.inside.lower(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """As of `jax.jit`."""
        return self.inside.trace(*args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """As of `jax.jit`: shapes and dtypes of the result."""
        return self.inside.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Forget what was compiled."""
        self.traces.clear()
        self.programs.clear()
        self.inside.clear_cache()

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", "function")
        return f"<jitted {name}: {len(self.programs)} programs>"


def _with(function: Callable, held: dict, named: dict) -> Callable:
    """The function of the other arguments."""

    def whole(*args: Any, **kwargs: Any) -> Any:
        rest, every = iter(args), []
        for place in range(len(args) + len(held)):
            every.append(held[place] if place in held else next(rest))
        return function(*every, **kwargs, **named)

    whole.__name__ = getattr(function, "__name__", "function")
    return whole


def jit(
    function: Callable | None = None,
    *,
    target: str = "",
    dtype: str = "keep",
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Sequence[str] = (),
) -> Any:
    """A function that runs on a NeuronCore of `target` (left out: the one in force).

    `dtype` "bfloat16" or "float16" stores what is float32 between ops as that; "keep" leaves it.
    Static and donated arguments are as in `jax.jit`; donated arrays are deleted after the call.
    Also a decorator, with or without options.  Raises UsageError `frameworks.precision`, and what
    `jax.jit` raises for arguments that cannot be static or donated.
    """

    if dtype not in PRECISIONS:
        raise UsageError(f"jit: there is no precision {dtype}", code=PRECISION)
    options = {
        "static_argnums": static_argnums, "static_argnames": static_argnames,
        "donate_argnums": donate_argnums, "donate_argnames": donate_argnames,
    }  # fmt: skip
    if function is None:
        return functools.partial(jit, target=target, dtype=dtype, **options)
    static = Places.of(function, static_argnums, static_argnames)
    donated = Places.of(function, donate_argnums, donate_argnames)
    inside = own_jit()(function, **{k: v for k, v in options.items() if v not in ((), None)})
    return Jitted(function, target, PRECISIONS[dtype], static, donated, inside)


# Options of `jax.jit` that say where or how JAX itself would compile, which is not what runs.
JAXS_OWN = ("keep_unused", "inline", "backend", "device", "abstracted_axes", "compiler_options")
SHARDINGS = ("in_shardings", "out_shardings")


def jit_as_jax(function: Callable | None = None, *, target: str = "", **options: Any) -> Any:
    """`jit` with the options of `jax.jit`: shardings go into the program, which is refused
    (`graph.stablehlo_sharded`) when they name several devices; those for JAX's compiler mean
    nothing here.  Raises TypeError for an option `jax.jit` has not.
    """
    if function is None:
        return functools.partial(jit_as_jax, target=target, **options)
    kept = {name: value for name, value in options.items() if name not in (*JAXS_OWN, *SHARDINGS)}
    made = jit(function, target=target, **kept)
    made.shardings = {k: options[k] for k in SHARDINGS if options.get(k) is not None}
    return made


__all__ = ["Jitted", "Places", "Program", "jit", "jit_as_jax"]
