"""ONNX rules: shapes, joining and cutting, arrays made from nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from opentrn.graph.importers.onnx_call import Node, onnx_op
from opentrn.graph.importers.torch_types import broadcast_shape
from opentrn.graph.ir import Value

LONGEST = 1 << 40  # elements of an array made from nothing


@onnx_op("Constant")
def constant(n: Node) -> Value:
    """The numbers of whichever attribute is given."""
    for name, kind in (("value_float", "float32"), ("value_floats", "float32"),
                       ("value_int", "int64"), ("value_ints", "int64")):
        found = n.attr(name)
        if found is not None:
            return n.g.constant(np.asarray(found, dtype=kind))
    tensor = n.attr("value")
    if tensor is None:
        raise n.refuse("it has no numbers (text and sparse tensors are not read)")
    return n.constant(tensor)


@onnx_op("ConstantOfShape")
def constant_of_shape(n: Node) -> Value:
    """One number everywhere."""
    shape = _sizes(n, n.ints(0, "input"))
    tensor = n.attr("value")
    if tensor is None or not tensor.data_type:
        return n.g.full(shape, 0.0, "float32")
    return n.g.broadcast_in_dim(n.g.reshape(n.constant(tensor), ()), shape=shape, dimensions=())


def _sizes(n: Node, given: Sequence[int]) -> tuple[int, ...]:
    if min(given, default=0) < 0 or math.prod(given) > LONGEST:
        raise n.refuse(f"the shape is {list(given)}")
    return tuple(given)


@onnx_op("Shape")
def shape(n: Node) -> Value:
    """The sizes of the axes from `start` to `end`."""
    start, end = n.attr("start", 0), n.attr("end")
    return n.g.constant(np.asarray(n.x.shape[start:end], np.int64))


@onnx_op("Size")
def size(n: Node) -> Value:
    """The number of elements."""
    return n.g.constant(np.asarray(n.x.size, np.int64))


@onnx_op("Reshape")
def reshape(n: Node) -> Value:
    """Another shape; 0 keeps a size (unless `allowzero`), -1 is what is left."""
    wanted = n.ints_of("shape", 1)
    keep = not n.attr("allowzero", 0)
    sizes = [n.x.shape[i] if s == 0 and keep else s for i, s in enumerate(wanted)]
    if -1 in sizes:
        rest = math.prod(s for s in sizes if s != -1)
        if sizes.count(-1) > 1 or not rest or n.x.size % rest:
            raise n.refuse(f"{list(n.x.shape)} has no shape {wanted}")
        sizes[sizes.index(-1)] = n.x.size // rest
    return n.g.reshape(n.x, tuple(sizes))


@onnx_op("Flatten")
def flatten(n: Node) -> Value:
    """A matrix: the axes before `axis`, and the others."""
    axis = n.attr("axis")
    axis = axis + n.x.rank if axis < 0 else axis
    return n.g.reshape(n.x, (math.prod(n.x.shape[:axis]), math.prod(n.x.shape[axis:])))


@onnx_op("Squeeze")
def squeeze(n: Node) -> Value:
    """Axes of size 1 dropped; all of them, where none are named."""
    named = n.ints_of("axes", 1)
    gone = {i for i, s in enumerate(n.x.shape) if s == 1} if named is None else set(
        n.axes(named, n.x.rank))
    if any(n.x.shape[a] != 1 for a in gone):
        raise n.refuse(f"axes {sorted(gone)} of {list(n.x.shape)} are not all 1")
    return n.g.reshape(n.x, tuple(s for i, s in enumerate(n.x.shape) if i not in gone))


@onnx_op("Unsqueeze")
def unsqueeze(n: Node) -> Value:
    """New axes of size 1, placed in the result."""
    named = n.ints_of("axes", 1)
    rank = n.x.rank + len(named)
    places = set(n.axes(named, rank))
    rest = iter(n.x.shape)
    return n.g.reshape(n.x, tuple(1 if i in places else next(rest) for i in range(rank)))


@onnx_op("Transpose")
def transpose(n: Node) -> Value:
    """Axis i of the result is axis perm[i]; without perm, all turned round."""
    return n.g.transpose(n.x, tuple(n.attr("perm", range(n.x.rank)[::-1])))


@onnx_op("Concat")
def concat(n: Node) -> Value:
    """The inputs one after another along an axis."""
    values = n.values
    return n.g.concatenate(*values, dimension=n.axis(rank=values[0].rank))


@onnx_op("Expand")
def expand(n: Node) -> Value:
    """Repeated to a shape, as NumPy broadcasts."""
    return n.g.broadcast(n.x, broadcast_shape(n.x.shape, _sizes(n, n.ints(1, "shape"))))


@onnx_op("Tile")
def tile(n: Node) -> Value:
    """The whole array repeated along each axis."""
    x = n.x
    for axis, times in enumerate(n.ints(1, "repeats")):
        if times < 0 or times * x.size > LONGEST:
            raise n.refuse(f"it repeats axis {axis} {times} times")
        wide = (*x.shape[:axis], times, *x.shape[axis:])
        spread = n.g.broadcast_in_dim(x, shape=wide, dimensions=tuple(
            i if i < axis else i + 1 for i in range(x.rank)))
        x = n.g.reshape(spread, (*x.shape[:axis], times * x.shape[axis], *x.shape[axis + 1:]))
    return x


def parts(n: Node, axis: int, count: int) -> list[int]:
    """How long each part of a split is."""
    length = n.x.shape[axis]
    named = n.ints_of("split", 1)
    if named is None:
        count = n.attr("num_outputs", count)
        if not 0 < count <= max(length, 1):
            raise n.refuse(f"axis {axis} of {list(n.x.shape)} has no {count} parts")
        step = -(-length // count)
        named = [step] * (count - 1) + [length - step * (count - 1)]
    if sum(named) != length or min(named, default=0) < 0:
        raise n.refuse(f"the parts {named} are not axis {axis} of {list(n.x.shape)}")
    return named


def cut(n: Node, x: Value, axis: int, start: int, stop: int) -> Value:
    """x[start:stop] along an axis."""
    lows, highs = [0] * x.rank, list(x.shape)
    lows[axis], highs[axis] = start, stop
    return n.g.slice(x, lows, highs, [1] * x.rank)


@onnx_op("Split")
def split(n: Node) -> tuple[Value, ...]:
    """Parts along an axis."""
    axis, made, at = n.axis(), [], 0
    for length in parts(n, axis, n.results):
        made.append(cut(n, n.x, axis, at, at + length))
        at += length
    return tuple(made)


@onnx_op("Slice")
def slice_(n: Node) -> Value:
    """x[starts:ends:steps] along axes; ends that lie outside stop at the edge."""
    starts, ends = n.ints_of("starts", 1), n.ints_of("ends", 2)
    axes = n.ints_of("axes", 3)
    axes = n.axes(range(len(starts)) if axes is None else axes, n.x.rank)
    steps = n.ints(4, "steps") if n.has(4) else [1] * len(axes)
    every = [range(s) for s in n.x.shape]
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        every[axis] = every[axis][start:end:step]
    turned = tuple(a for a, r in enumerate(every) if r.step < 0)
    plain = [r[::-1] if r.step < 0 else r for r in every]
    lows = [r.start if len(r) else 0 for r in plain]
    highs = [r[-1] + 1 if len(r) else 0 for r in plain]
    x = n.g.slice(n.x, lows, highs, [r.step for r in plain])
    return n.g.reverse(x, turned) if turned else x


@onnx_op("Pad")
def pad(n: Node) -> Value:
    """More elements at the edges: one number, or those inside by `mode`."""
    pads = n.ints_of("pads", 1)
    axes = n.axes(n.ints(3, "axes") if n.has(3) else None, n.x.rank)
    if len(pads) != 2 * len(axes):
        raise n.refuse(f"{len(pads)} pads for {len(axes)} axes")
    low, high = [0] * n.x.rank, [0] * n.x.rank
    for i, axis in enumerate(axes):
        low[axis], high[axis] = pads[i], pads[i + len(axes)]
    mode = n.attr("mode")
    if mode == "constant":
        value = n.arg(2) if n.has(2) else n.attr("value", 0) if n.opset < 11 else 0
        value = n.g.reshape(value, ()) if isinstance(value, Value) else n.g.full(
            (), value, n.x.dtype)
        return n.g.pad(n.x, value, low=low, high=high)
    return _mirrored(n, mode, low, high)


MIRRORS = {
    "reflect": "reflect", "edge": "edge", "wrap": "wrap",
}


def _mirrored(n: Node, mode: str, low: list[int], high: list[int]) -> Value:
    """Each axis indexed by the places NumPy's padding takes its elements from."""
    if mode not in MIRRORS:
        raise n.refuse(f"`mode` is {mode!r}")
    x = n.x
    for axis, (before, after) in enumerate(zip(low, high, strict=True)):
        if before == 0 == after:
            continue
        if max(before, after, x.shape[axis]) > 1 << 24:
            raise n.refuse(f"{before} and {after} elements more on axis {axis}")
        inside = np.arange(max(-before, 0), x.shape[axis] - max(-after, 0))
        places = np.pad(inside, (max(before, 0), max(after, 0)), mode=MIRRORS[mode])
        x = n.g.take(x, n.g.constant(places.astype(np.int32)), axis)
    return x


@onnx_op("Range")
def range_(n: Node) -> Value:
    """start, start + delta, … before limit."""
    start, limit, delta = (n.known(i, w).item() for i, w in enumerate(("start", "limit", "delta")))
    kind = n.x.dtype
    if not delta or not all(map(math.isfinite, (start, limit, delta))):
        raise n.refuse(f"it goes from {start} to {limit} by {delta}")
    count = max(math.ceil((limit - start) / delta), 0)
    if count > LONGEST:
        raise n.refuse(f"it has {count} elements")
    steps = n.g.iota((count,), 0, kind)
    return steps * delta + start


@onnx_op("EyeLike")
def eye_like(n: Node) -> Value:
    """1 on a diagonal, 0 elsewhere."""
    kind = n.kind(n.attr("dtype")) if n.attr("dtype") else n.x.dtype
    rows = n.g.iota(n.x.shape, 0, "int32") + n.attr("k")
    return n.g.cast(n.g.compare(rows, n.g.iota(n.x.shape, 1, "int32"), direction="EQ"), kind)


@onnx_op("Trilu")
def trilu(n: Node) -> Value:
    """The last two axes above (or below) a diagonal, 0 elsewhere."""
    k = int(n.known(1, "k").item()) if n.has(1) else 0
    k = max(-n.x.size - 1, min(k, n.x.size + 1))
    rows = n.g.iota(n.x.shape, n.x.rank - 2, "int32") + k
    columns = n.g.iota(n.x.shape, n.x.rank - 1, "int32")
    keep = n.g.compare(columns, rows, direction="GE" if n.attr("upper") else "LE")
    return n.g.select(keep, n.x, n.g.like(n.x, 0))


@onnx_op("DepthToSpace")
def depth_to_space(n: Node) -> Value:
    """Channels laid out as blocks of the image."""
    b, c, h, w = n.x.shape
    s = n.attr("blocksize")
    if n.attr("mode", "DCR") == "DCR":
        x = n.g.transpose(n.g.reshape(n.x, (b, s, s, c // s**2, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        x = n.g.transpose(n.g.reshape(n.x, (b, c // s**2, s, s, h, w)), (0, 1, 4, 2, 5, 3))
    return n.g.reshape(x, (b, c // s**2, h * s, w * s))


@onnx_op("SpaceToDepth")
def space_to_depth(n: Node) -> Value:
    """Blocks of the image laid out as channels."""
    b, c, h, w = n.x.shape
    s = n.attr("blocksize")
    order = (0, 3, 5, 1, 2, 4) if n.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    x = n.g.transpose(n.g.reshape(n.x, (b, c, h // s, s, w // s, s)), order)
    return n.g.reshape(x, (b, c * s * s, h // s, w // s))


# ---------------------------------------------------------------------------------------- sequences


@onnx_op("SequenceConstruct")
def sequence_construct(n: Node) -> Any:
    """The inputs as a sequence."""
    return n.values


@onnx_op("SequenceEmpty")
def sequence_empty(n: Node) -> Any:
    """A sequence of nothing."""
    return []


def _sequence(n: Node) -> list[Value]:
    found = n.given(0)
    if not isinstance(found, list):
        raise n.refuse("its first input is no sequence")
    return found


@onnx_op("SequenceInsert")
def sequence_insert(n: Node) -> Any:
    """The sequence with one more member, at the end or before a place."""
    made = list(_sequence(n))
    place = int(n.known(2, "position").item()) if n.has(2) else len(made)
    made.insert(place, n.arg(1))
    return made


@onnx_op("SequenceErase")
def sequence_erase(n: Node) -> Any:
    """The sequence without one member."""
    made = list(_sequence(n))
    made.pop(int(n.known(1, "position").item()) if n.has(1) else -1)
    return made


@onnx_op("SequenceAt")
def sequence_at(n: Node) -> Value:
    """One member."""
    return _sequence(n)[int(n.known(1, "position").item())]


@onnx_op("SequenceLength")
def sequence_length(n: Node) -> Value:
    """How many members there are."""
    return n.g.constant(np.asarray(len(_sequence(n)), np.int64))


@onnx_op("SplitToSequence")
def split_to_sequence(n: Node) -> Any:
    """Parts along an axis as a sequence; without `split`, one for each place."""
    axis = n.axis()
    length = n.x.shape[axis]
    given = n.known(1, "split") if n.has(1) else None
    if given is None or not given.ndim:
        step = 1 if given is None else int(given)
        if step < 1 or length // step > 1 << 14:
            raise n.refuse(f"parts of {step} of {length}")
        sizes = [min(step, length - at) for at in range(0, length, step)]
    else:
        sizes = parts(n, axis, 0)
    made, at = [], 0
    for each in sizes:
        part = cut(n, n.x, axis, at, at + each)
        if given is None and not n.attr("keepdims"):
            part = n.g.reshape(part, (*part.shape[:axis], *part.shape[axis + 1:]))
        made.append(part)
        at += each
    return made


@onnx_op("ConcatFromSequence")
def concat_from_sequence(n: Node) -> Value:
    """The members one after another along an axis, or along a new one."""
    members = _sequence(n)
    if not members:
        raise n.refuse("the sequence is empty")
    new = n.attr("new_axis")
    axis = n.axis(rank=members[0].rank + bool(new))
    if new:
        members = [n.g.reshape(m, (*m.shape[:axis], 1, *m.shape[axis:])) for m in members]
    return n.g.concatenate(*members, dimension=axis)


# ----------------------------------------------------------------------------------------- optional


@onnx_op("Optional")
def optional(n: Node) -> Any:
    """The input, if there is one."""
    return n.given(0)


@onnx_op("OptionalHasElement")
def optional_has_element(n: Node) -> Value:
    """Whether there is an input."""
    return n.g.constant(np.asarray(n.given(0) is not None))


@onnx_op("OptionalGetElement")
def optional_get_element(n: Node) -> Any:
    """The input, which has to be there."""
    if n.given(0) is None:
        raise n.refuse("the optional is empty")
    return n.given(0)
