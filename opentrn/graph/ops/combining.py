"""Reductions, windows, scatters and sorts whose combining function or order is a region.

The frequent ones (sum, largest, smallest, …) are ops of their own in `reduction`, `indexing` and
`ordering`; these are for any other region.  Inputs come first, then what begins each result, then
what the region reads besides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from opentrn.graph.ops.define import (
    BOOL,
    Ints,
    Op,
    Pairs,
    Traffic,
    TupleType,
    Type,
    Wrong,
    axes_of,
    axis_of,
    count,
    stream,
    whole,
)
from opentrn.graph.ops.indexing import Scatter
from opentrn.graph.ops.movement import Pad
from opentrn.graph.ops.reduction import windows

if TYPE_CHECKING:
    from opentrn.graph.ir import Region

Arrays = list[np.ndarray]
LONGEST = 1024  # rows combined one after the other


def fold(region: Region, begin: Arrays, rows: Arrays, fixed: tuple[np.ndarray, ...]) -> Arrays:
    """`begin` combined with all rows (first axis) of each array, one after the other.

    StableHLO leaves the order to the implementation.  Neighbours of more than LONGEST rows are
    combined first, which takes fewer and larger steps."""
    while len(rows[0]) > LONGEST:
        size = len(rows[0])
        left, right = ([r[start:size - size % 2:2] for r in rows] for start in (0, 1))
        made = region.each([*left, *right], fixed)
        rows = [np.concatenate([m, r[size - size % 2:]]) for m, r in zip(made, rows, strict=True)]
    for row in zip(*rows, strict=True):
        begin = region.each([*begin, *row], fixed)
    return begin


def _scalars(kinds: tuple[Type, ...]) -> tuple[Type, ...]:
    return tuple(Type((), kind.dtype) for kind in kinds)


def _combines(region: Region, args: tuple[Type, ...], results: int) -> None:
    """Refuse a body that does not take two scalars of each input, and what follows `2·results`."""
    given = (*_scalars(args[:results]) * 2, *args[2 * results:])
    if region.takes != given or region.gives != given[:results]:
        raise Wrong(f"body takes ({', '.join(map(str, region.takes))}) and gives "
                    f"({', '.join(map(str, region.gives))}); it is given "
                    f"({', '.join(map(str, given))})")


def _inputs(args: tuple[Type, ...], results: int) -> tuple[Type, ...]:
    """The inputs, of one shape, each with the scalar that begins its result."""
    if len(args) < 2 * results or not results:
        raise Wrong(f"{len(args)} operands for {results} results", kind="attribute")
    inputs, begin = args[:results], args[results:2 * results]
    if any(kind.shape != inputs[0].shape for kind in inputs):
        raise Wrong("the inputs have different shapes")
    if begin != _scalars(inputs):
        raise Wrong("each input needs a scalar of its dtype to begin with")
    return inputs


class ReduceWith(Op):
    """Combine all elements along `dimensions` with `body`, beginning with one scalar per input.

    A tuple, one result for each input; body takes a scalar of each result so far and one of each
    input."""

    operands = ("*operands",)
    law = ("inputs of one shape, then a scalar of each dtype; body takes two scalars of each input "
           "and gives one; dimensions are distinct axes")
    dimensions: Ints
    body: Region

    def settle(self, *args: Type) -> ReduceWith:
        axes = axes_of(self.dimensions, len(args[0].shape) if args else 0, "dimensions")
        return ReduceWith(tuple(sorted(axes)), self.body)

    def result(self, *args: Type) -> TupleType:
        results = len(self.body.outputs)
        inputs = _inputs(args, results)
        _combines(self.body, args, results)
        kept = tuple(n for i, n in enumerate(inputs[0].shape) if i not in self.dimensions)
        return TupleType(tuple(Type(kept, kind.dtype) for kind in inputs))

    def evaluate(self, out: TupleType, *args: np.ndarray) -> tuple[np.ndarray, ...]:
        n = len(out.parts)
        kept = tuple(i for i in range(args[0].ndim) if i not in self.dimensions)
        length = count(tuple(args[0].shape[i] for i in self.dimensions))
        rows = [a.transpose(self.dimensions + kept).reshape(length, *out.parts[0].shape)
                for a in args[:n]]
        begin = [np.broadcast_to(b, out.parts[0].shape) for b in args[n:2 * n]]
        return tuple(fold(self.body, begin, rows, args[2 * n:]))

    def flops(self, out: TupleType, *args: Type) -> int:
        return args[0].size * self.body.flops

    def traffic(self, out: TupleType, *args: Type) -> Traffic:
        return stream(out, *args)


class ReduceWindowWith(Op):
    """Combine the elements under a window that slides over every axis with `body`.

    The padding is filled with the scalar each input begins with, and so are the places between
    elements (`base_dilation`).  A tuple, one result for each input."""

    operands = ("*operands",)
    law = ("inputs of one shape, then a scalar of each dtype; body takes two scalars of each input "
           "and gives one; one window size, stride, dilation and padding for each axis")
    window: Ints
    strides: Ints
    base_dilation: Ints
    dilation: Ints
    padding: Pairs
    body: Region

    def result(self, *args: Type) -> TupleType:
        results = len(self.body.outputs)
        inputs = _inputs(args, results)
        _combines(self.body, args, results)
        rank = len(inputs[0].shape)
        steps = (self.window, self.strides, self.base_dilation, self.dilation)
        if any(len(given) != rank for given in (*steps, self.padding)):
            raise Wrong(f"give one of each for {rank} axes", kind="attribute")
        if min((n for given in steps for n in given), default=1) < 1:
            raise Wrong("window, strides and dilations are at least 1", kind="attribute")
        sizes = []
        for i, n in enumerate(inputs[0].shape):
            grown = (n - 1) * self.base_dilation[i] + 1 if n else 0
            room = grown + sum(self.padding[i]) - ((self.window[i] - 1) * self.dilation[i] + 1)
            sizes.append(room // self.strides[i] + 1 if room >= 0 else 0)
        return TupleType(tuple(Type(tuple(sizes), kind.dtype) for kind in inputs))

    def evaluate(self, out: TupleType, *args: np.ndarray) -> tuple[np.ndarray, ...]:
        n, shape = len(out.parts), out.parts[0].shape
        begin = [np.broadcast_to(b, shape) for b in args[n:2 * n]]
        if not count(shape):
            return tuple(begin)
        rows = [self._windows(a, b) for a, b in zip(args[:n], args[n:2 * n], strict=True)]
        return tuple(fold(self.body, begin, rows, args[2 * n:]))

    def _windows(self, operand: np.ndarray, filling: np.ndarray) -> np.ndarray:
        """The elements under each window, as (place in the window, *result)."""
        gaps = tuple(d - 1 for d in self.base_dilation)
        low, high = (tuple(p[i] for p in self.padding) for i in (0, 1))
        grown = Pad(low, high, gaps).evaluate(None, operand, filling)  # type: ignore[arg-type]
        return windows(grown, self.window, self.strides, self.dilation)

    def flops(self, out: TupleType, *args: Type) -> int:
        return out.parts[0].size * count(self.window) * self.body.flops

    def traffic(self, out: TupleType, *args: Type) -> Traffic:
        return stream(out, *args)


class SelectAndScatter(Op):
    """Give each element of `source` to the element of its window of `operand` that `select`
    prefers, and combine with `scatter`, beginning with `init`.

    The gradient of max pooling.  `select` takes the preferred element so far and another one, and
    says whether to stay; padding is never preferred."""

    operands = ("operand", "source", "init")
    law = ("source has one element for each window; init is a scalar of its dtype; select takes "
           "two scalars of the operand and gives bool, scatter two and gives one")
    window: Ints
    strides: Ints
    padding: Pairs
    select: Region
    scatter: Region

    def result(self, operand: Type, source: Type, init: Type) -> Type:
        rank = len(operand.shape)
        scalar = Type((), operand.dtype)
        if source.dtype != operand.dtype or init != scalar:
            raise Wrong("source and init do not have the operand's dtype")
        if any(len(given) != rank for given in (self.window, self.strides, self.padding)):
            raise Wrong(f"give one of each for {rank} axes", kind="attribute")
        if min((*self.window, *self.strides), default=1) < 1:
            raise Wrong("window and strides are at least 1", kind="attribute")
        for region, gives in ((self.select, Type((), BOOL)), (self.scatter, scalar)):
            if region.takes != (scalar, scalar) or region.gives != (gives,):
                raise Wrong(f"a region is {region!r}")
        sizes = []
        for n, w, s, pads in zip(operand.shape, self.window, self.strides, self.padding,
                                 strict=True):
            room = n + sum(pads) - w
            sizes.append(room // s + 1 if room >= 0 else 0)
        if source.shape != tuple(sizes):
            raise Wrong(f"source is {list(source.shape)}; there are {sizes} windows")
        return operand

    def evaluate(self, out: Type, operand: np.ndarray, source: np.ndarray,
                 init: np.ndarray) -> np.ndarray:
        result = np.full(operand.size, init, operand.dtype)
        if not source.size or not operand.size:
            return result.reshape(operand.shape)
        low, high = (tuple(p[i] for p in self.padding) for i in (0, 1))
        pad, ones = Pad(low, high, (0,) * operand.ndim), (1,) * operand.ndim
        places = np.arange(operand.size, dtype=np.int64).reshape(operand.shape)
        values, places = (
            windows(pad.evaluate(out, a, fill), self.window, self.strides, ones)
            for a, fill in ((operand, operand.dtype.type(0)), (places, np.int64(-1))))
        best, where = values[0], places[0]
        for value, place in zip(values[1:], places[1:], strict=True):
            stay = self.select.each([best, value], ())[0] & (where >= 0) | (place < 0)
            best, where = np.where(stay, best, value), np.where(stay, where, place)
        inside = where.reshape(-1) >= 0
        combine([result], where.reshape(-1)[inside], [source.reshape(-1)[inside]], self.scatter, ())
        return result.reshape(operand.shape)

    def flops(self, out: Type, operand: Type, source: Type, init: Type) -> int:
        return source.size * (count(self.window) * self.select.flops + self.scatter.flops)

    def traffic(self, out: Type, operand: Type, source: Type, init: Type) -> Traffic:
        return stream(out, operand, source, init)


def combine(results: Arrays, places: np.ndarray, updates: Arrays, body: Region,
            fixed: tuple[np.ndarray, ...]) -> None:
    """results[place] = body(results[place], update), in order, in place.

    Updates of one place follow one another; those of different places go together."""
    if not places.size:
        return
    order = np.argsort(places, kind="stable")
    sorted_places = places[order]
    new = np.r_[True, sorted_places[1:] != sorted_places[:-1]]
    starts = np.flatnonzero(new)
    turn = np.arange(places.size) - np.repeat(starts, np.diff(np.r_[starts, places.size]))
    for number in range(int(turn.max()) + 1):
        these = order[turn == number]
        at = places[these]
        made = body.each([*(r[at] for r in results), *(u[these] for u in updates)], fixed)
        for result, value in zip(results, made, strict=True):
            result[at] = value


class ScatterWith(Op):
    """Combine windows of updates into the inputs with `body` at the places of index vectors.

    Attributes as of `scatter`; an element whose place is outside is left out.  Operands are the
    inputs, the indices, and the updates of each input; a tuple, one result for each input.  Updates
    of one place are combined in row-major order."""

    operands = ("*operands",)
    law = ("inputs of one shape, integer indices, updates of one shape with the inputs' dtypes; "
           "body takes two scalars of each input and gives one")
    update_window_dims: Ints
    inserted_window_dims: Ints
    scatter_dims: Ints
    index_vector_dim: int
    body: Region
    operand_batching_dims: Ints = ()
    indices_batching_dims: Ints = ()

    @property
    def plain(self) -> Scatter:
        """The scatter of one input with these dimensions."""
        return Scatter("set", self.update_window_dims, self.inserted_window_dims,
                       self.scatter_dims, self.index_vector_dim, self.operand_batching_dims,
                       self.indices_batching_dims)

    def result(self, *args: Type) -> TupleType:
        n = len(self.body.outputs)
        if len(args) < 2 * n + 1 or not n:
            raise Wrong(f"{len(args)} operands for {n} results", kind="attribute")
        inputs, indices, updates = args[:n], args[n], args[n + 1:2 * n + 1]
        whole(indices, "indices")
        _combines(self.body, (*inputs, *updates, *args[2 * n + 1:]), n)
        for one, update in zip(inputs, updates, strict=True):
            if one.shape != inputs[0].shape or update.shape != updates[0].shape:
                raise Wrong("the inputs, or the updates, have different shapes")
            self.plain.result(one, indices, update)
        return TupleType(inputs)

    def evaluate(self, out: TupleType, *args: np.ndarray) -> tuple[np.ndarray, ...]:
        n = len(out.parts)
        places, keep = self.plain.places(args[0].shape, args[n], args[n + 1].shape)
        results = [np.array(a).reshape(-1) for a in args[:n]]
        updates = [self.plain.ordered(u).reshape(-1)[keep] for u in args[n + 1:2 * n + 1]]
        combine(results, places, updates, self.body, args[2 * n + 1:])
        return tuple(r.reshape(args[0].shape) for r in results)

    def flops(self, out: TupleType, *args: Type) -> int:
        return args[len(out.parts) + 1].size * self.body.flops

    def traffic(self, out: TupleType, *args: Type) -> Traffic:
        return stream(out, *args)


class SortWith(Op):
    """The inputs in an order along `dimension` in which no `comparator(later, earlier)` holds.

    The comparator takes two scalars of each input, in turn (a of input 0, b of input 0, a of input
    1, …), and says whether a comes first.  Equal elements keep their order.  A tuple."""

    operands = ("*operands",)
    law = ("inputs of one shape, not scalars; the comparator takes two scalars of each and gives "
           "bool")
    dimension: int
    comparator: Region
    results: int

    def settle(self, *args: Type) -> SortWith:
        axis = axis_of(self.dimension, len(args[0].shape) if args else 0, "dimension")
        return SortWith(axis, self.comparator, self.results)

    def result(self, *args: Type) -> TupleType:
        inputs = args[:self.results]
        if any(kind.shape != inputs[0].shape for kind in inputs):
            raise Wrong("the inputs have different shapes")
        pairs = tuple(kind for one in _scalars(inputs) for kind in (one, one))
        given = (*pairs, *args[self.results:])
        if self.comparator.takes != given or self.comparator.gives != (Type((), BOOL),):
            raise Wrong(f"the comparator is {self.comparator!r}; it is given "
                        f"({', '.join(map(str, given))})")
        return TupleType(inputs)

    def evaluate(self, out: TupleType, *args: np.ndarray) -> tuple[np.ndarray, ...]:
        inputs, fixed = args[:self.results], args[self.results:]
        lines = [np.moveaxis(a, self.dimension, 0) for a in inputs]
        order = np.moveaxis(self._order(lines, fixed), 0, self.dimension)
        return tuple(np.take_along_axis(a, order, self.dimension) for a in inputs)

    def _order(self, lines: Arrays, fixed: tuple[np.ndarray, ...]) -> np.ndarray:
        """Where the element of each place comes from, by merge exchange (Batcher; Knuth, TAOCP 3,
        algorithm 5.2.2M), all lines at once; the first place breaks ties, so it is stable."""
        length = len(lines[0])
        order = np.empty(lines[0].shape, np.int64)
        order[...] = np.arange(length).reshape(-1, *(1,) * (lines[0].ndim - 1))
        for left, right in exchanges(length):
            a, b = order[left], order[right]
            first = [np.take_along_axis(x, a, 0) for x in lines]
            second = [np.take_along_axis(x, b, 0) for x in lines]
            ahead = self._before(second, first, fixed)
            behind = self._before(first, second, fixed)
            swap = ahead | ~behind & (b < a)
            order[left], order[right] = np.where(swap, b, a), np.where(swap, a, b)
        return order

    def _before(self, a: Arrays, b: Arrays, fixed: tuple[np.ndarray, ...]) -> np.ndarray:
        both = [x for pair in zip(a, b, strict=True) for x in pair]
        return self.comparator.each(both, fixed)[0]

    def flops(self, out: TupleType, *args: Type) -> int:
        length = max(args[0].shape[self.dimension], 1)
        steps = max(length - 1, 0).bit_length()  # n·⌈log₂ n⌉ comparisons
        return args[0].size * steps * max(self.comparator.flops, 1)

    def traffic(self, out: TupleType, *args: Type) -> Traffic:
        return stream(out, *args)


def exchanges(length: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The rounds of Batcher's merge exchange: places compared and exchanged at the same time."""
    rounds = []
    top = 1 << max(length - 1, 0).bit_length() >> 1
    step = top
    while step:
        reach, rest, gap = top, 0, step
        while True:
            left = np.arange(max(length - gap, 0))
            left = left[left & step == rest]
            if left.size:
                rounds.append((left, left + gap))
            if reach == step:
                break
            gap, reach, rest = reach - step, reach >> 1, step
        step >>= 1
    return rounds
