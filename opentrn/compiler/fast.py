"""Fast numerics: the graph as it is when kernels are chosen, computed by vectorised code.

That graph holds everything the compiler decides about precision: each of its values is one that the
compiled program stores, in the dtype it stores it in.  So rounding where this graph's values are
rounded is rounding where the program rounds; sums in between are float32 in both, in another order.
With PyTorch installed its CPU kernels do the work, op by op (`vectorised`); what they do not have,
and all of it without PyTorch, is done by `graph.run`, the reference meaning in NumPy.
"""

import importlib.util
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from opentrn.base import numerics
from opentrn.compiler.narrow import device_dtype
from opentrn.compiler.vectorised import Vectorised
from opentrn.graph import Graph, Value, carriers, run

LONG = {np.dtype(np.int64): np.dtype(np.int32), np.dtype(np.uint64): np.dtype(np.uint32)}


class Fast:
    """A graph after the choice of kernels as a function of storage arrays.

    It takes the arrays of the program's inputs and returns those of its outputs, in the dtypes the
    program holds them in (64-bit integers as 32-bit ones, scalars with one axis of size 1).
    """

    def __init__(self, graph: Graph, library: bool = True) -> None:
        self.graph = graph
        found = library and importlib.util.find_spec("torch")
        self.library = Vectorised() if found else None
        self.known: dict[Value, Any] = {}
        self.steps: list[tuple[Value, Callable, tuple[Value, ...], list[Value]]] = []
        self._plan()

    def _plan(self) -> None:
        """What is computed once (constants and their views), and what at each call."""
        last = {arg: value for value in self.graph for arg in value.args}
        kept = set(self.graph.outputs)
        for value in self.graph:
            if value.op == "input":
                continue
            function = self._function(value)
            if all(a in self.known for a in value.args) and (not value.args or _moves(value)):
                self.known[value] = function(*(self.known[a] for a in value.args))
                continue
            done = {a for a in value.args if last[a] is value and a not in kept}
            self.steps.append((value, function, value.args, [a for a in done
                                                             if a not in self.known]))  # fmt: skip

    def _function(self, value: Value) -> Callable:
        """How a value is computed from its operands as they are held."""
        if value.op == "constant":
            return lambda: self._held(value, carriers.enter(value.attrs.data.numbers(),
                                                             value.dtype))  # fmt: skip
        found = None if self.library is None else self.library.function(value)
        return found or self._reference(value)

    def _reference(self, value: Value) -> Callable:
        """The meaning of the op in NumPy."""

        def compute(*held: Any) -> Any:
            given = [self._carrier(a, x) for a, x in zip(value.args, held, strict=True)]
            if value.op == "chain":  # whose steps wrap around in the chip's 32 bits
                given = [x.astype(LONG.get(x.dtype, x.dtype), copy=False) for x in given]
            return self._held(value, _saturated(value, run(value, *given)))

        return compute

    def _held(self, value: Value, carrier: Any) -> Any:
        """A carrier as the library holds such values."""
        if self.library is None or isinstance(carrier, tuple):
            return carrier
        return self.library.held(value.dtype, carrier)

    def _carrier(self, value: Value, held: Any) -> Any:
        if self.library is None or isinstance(held, tuple | np.ndarray):
            return held
        return self.library.carrier(value.dtype, held)

    @cached_property
    def plain(self) -> "Fast":
        """The same without PyTorch, rounded by `base.numerics` alone."""
        return Fast(self.graph, library=False)

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs for the arrays of the inputs, in order."""
        if numerics.DRAW.get() is not None and self.library is not None:
            return self.plain(arrays)  # PyTorch's kernels round to nearest only
        held = dict(self.known)
        for value, array in zip(self.graph.inputs, arrays, strict=True):
            held[value] = self._entered(value, array)
        with np.errstate(all="ignore"):
            for value, function, args, done in self.steps:
                held[value] = function(*[held[a] for a in args])
                for arg in done:
                    del held[arg]
        return [self._left(v, held[v]) for v in self.graph.outputs]

    def _entered(self, value: Value, array: np.ndarray) -> Any:
        """An input as it is held: the program's dtype becomes the graph's."""
        array = array.reshape(value.shape)
        kind = device_dtype(value.dtype)
        if self.library is not None and kind == value.dtype:
            shared = self.library.shared(kind, array)
            if shared is not None:
                return shared
        wide = numerics.decode(array, kind).astype(carriers.work(value.dtype), copy=False)
        return self._held(value, wide)

    def _left(self, value: Value, held: Any) -> np.ndarray:
        """An output in the dtype the program holds it in, never an input's memory."""
        kind = device_dtype(value.dtype)
        carrier = self._carrier(value, held)
        stored = carriers.leave(carrier, value.dtype) if kind == value.dtype else carrier
        shape = value.shape or (1,)
        return np.array(stored, kind.storage, order="C", copy=True).reshape(shape)


def _saturated(value: Value, carrier: Any) -> Any:
    """Floats that became 64-bit integers, as the chip makes 32-bit ones of them."""
    narrow = device_dtype(value.dtype) if not isinstance(carrier, tuple) else None
    if narrow is None or narrow == value.dtype or not narrow.is_integer:
        return carrier
    if not all(a.dtype.is_float for a in value.args):
        return carrier
    return np.clip(carrier, narrow.min, narrow.max)


def _moves(value: Value) -> bool:
    """Whether a value is another view of its operand, so worth keeping when that is constant."""
    return value.op in ("constant", "reshape", "transpose", "slice", "broadcast_in_dim",
                        "get_tuple_element")  # fmt: skip


__all__ = ["Fast"]
