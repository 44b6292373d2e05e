"""Ops that read or write at places given by an array of indices: gather and scatter."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from opentrn.graph.ops.define import (
    Ints,
    Op,
    Traffic,
    Type,
    Wrong,
    count,
    same_dtype,
    stream,
    whole,
)


def _batch_shape(indices: tuple[int, ...], vector_dim: int) -> tuple[int, ...]:
    return tuple(n for i, n in enumerate(indices) if i != vector_dim)


def _vector_size(indices: tuple[int, ...], vector_dim: int) -> int:
    return indices[vector_dim] if vector_dim < len(indices) else 1


def _check_vector(op: Gather | Scatter, indices: Type, start_map: Ints) -> None:
    """The index vector names one place in each mapped axis."""
    whole(indices, "indices")
    if not 0 <= op.index_vector_dim <= len(indices.shape):
        raise Wrong(f"index_vector_dim {op.index_vector_dim} is outside {list(indices.shape)}",
                    kind="attribute")
    size = _vector_size(indices.shape, op.index_vector_dim)
    if size != len(start_map):
        raise Wrong(f"index vectors have {size} entries for {len(start_map)} mapped axes")


def _vectors(indices: np.ndarray, vector_dim: int) -> np.ndarray:
    """Indices as (batch…, entries), int64."""
    if vector_dim == indices.ndim:
        indices = indices[..., None]
    return np.moveaxis(indices, vector_dim, -1).astype(np.int64)


def _places(starts: list[np.ndarray], sizes: tuple[int, ...],
            batch: tuple[int, ...]) -> list[np.ndarray]:
    """Per operand axis, the index of every element: shape batch + sizes (broadcastable)."""
    found = []
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        window = [1] * (len(batch) + len(sizes))
        window[len(batch) + axis] = size
        corner = start.reshape(start.shape + (1,) * len(sizes))
        found.append(corner + np.arange(size).reshape(window))
    return found


def _corners(vectors: np.ndarray, rank: int, start_map: Ints, batching: Ints,
             index_batching: Ints, vector_dim: int) -> list[np.ndarray]:
    """Per operand axis, the window's corner for each index vector."""
    batch = vectors.shape[:-1]
    zero = np.zeros(batch, dtype=np.int64)
    corners = [zero] * rank
    for entry, axis in enumerate(start_map):
        corners[axis] = vectors[..., entry]
    for axis, source in zip(batching, index_batching, strict=True):
        place = source - (source > vector_dim)
        view = [1] * len(batch)
        view[place] = batch[place]
        corners[axis] = np.broadcast_to(np.arange(batch[place]).reshape(view), batch)
    return corners


class Gather(Op):
    """Cut a window of `slice_sizes` out of the operand at each index vector.

    Attributes as in StableHLO: `start_index_map` says which operand axis each entry of an index
    vector places; window axes of size 1 in `collapsed_slice_dims` (and the batching axes)
    disappear, the others become `offset_dims` of the result.  Windows are pushed inside."""

    exact = True
    operands = ("operand", "indices")
    law = ("0 ≤ slice size ≤ operand size, 1 on collapsed and batching axes; an index vector has "
           "one entry for each axis of start_index_map")
    offset_dims: Ints
    collapsed_slice_dims: Ints
    start_index_map: Ints
    index_vector_dim: int
    slice_sizes: Ints
    operand_batching_dims: Ints = ()
    indices_batching_dims: Ints = ()

    def result(self, operand: Type, indices: Type) -> Type:
        rank = len(operand.shape)
        _check_vector(self, indices, self.start_index_map)
        gone = {*self.collapsed_slice_dims, *self.operand_batching_dims}
        if len(self.slice_sizes) != rank:
            raise Wrong(f"slice_sizes {self.slice_sizes} for {rank} axes")
        for axis, (size, room) in enumerate(zip(self.slice_sizes, operand.shape, strict=True)):
            if not 0 <= size <= room or (axis in gone and size > 1):
                raise Wrong(f"slice size {size} on axis {axis} of size {room}")
        window = [n for a, n in enumerate(self.slice_sizes) if a not in gone]
        batch = list(_batch_shape(indices.shape, self.index_vector_dim))
        if len(window) != len(self.offset_dims):
            raise Wrong(f"{len(window)} window axes for offset_dims {self.offset_dims}")
        total = len(window) + len(batch)
        if any(not 0 <= a < total for a in self.offset_dims):
            raise Wrong(f"offset_dims {self.offset_dims} outside {total} axes", kind="attribute")
        shape = [window.pop(0) if i in self.offset_dims else batch.pop(0) for i in range(total)]
        return Type(tuple(shape), operand.dtype)

    def evaluate(self, out: Type, operand: np.ndarray, indices: np.ndarray) -> np.ndarray:
        vectors = _vectors(indices, self.index_vector_dim)
        corners = _corners(vectors, operand.ndim, self.start_index_map,
                           self.operand_batching_dims, self.indices_batching_dims,
                           self.index_vector_dim)
        inside = [np.clip(c, 0, n - w) for c, n, w in
                  zip(corners, operand.shape, self.slice_sizes, strict=True)]
        batch = vectors.shape[:-1]
        picked = operand[tuple(_places(inside, self.slice_sizes, batch))]
        gone = {*self.collapsed_slice_dims, *self.operand_batching_dims}
        window = [n for a, n in enumerate(self.slice_sizes) if a not in gone]
        picked = picked.reshape((*batch, *window))
        sources = iter(range(len(batch), picked.ndim))
        batches = iter(range(len(batch)))
        order = [next(sources) if i in self.offset_dims else next(batches)
                 for i in range(picked.ndim)]
        return picked.transpose(order)

    def flops(self, out: Type, operand: Type, indices: Type) -> int:
        return 0  # addressing only

    def traffic(self, out: Type, operand: Type, indices: Type) -> Traffic:
        return Traffic(out.nbytes + indices.nbytes, out.nbytes)

    def taken_axis(self, operand: Type, indices: Type) -> int | None:
        """The axis if this is `take` (whole slices along one axis, as an embedding), else None."""
        if len(self.start_index_map) != 1 or self.operand_batching_dims:
            return None
        axis = self.start_index_map[0]
        whole_slices = all(w == (1 if a == axis else n) for a, (w, n) in
                           enumerate(zip(self.slice_sizes, operand.shape, strict=True)))
        lead = len(indices.shape) - (self.index_vector_dim < len(indices.shape))
        kept = (*range(axis), *range(axis + lead, len(operand.shape) - 1 + lead))
        plain = self.collapsed_slice_dims == (axis,) and self.offset_dims == kept
        return axis if whole_slices and plain else None


APPLY: dict[str, Any] = {
    "add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
}


class Scatter(Op):
    """The operand with each window of `updates` written (`kind` "set") or combined in at the
    place its index vector names; an element whose place is outside is left out.

    If windows overlap, "set" keeps the last in row-major order of the indices."""

    operands = ("operand", "indices", "updates")
    law = ("updates have the operand's dtype; batch axes of updates are those of the indices; a "
           "window fits in the operand")
    choices: ClassVar = {"kind": ("set", *APPLY)}
    kind: str
    update_window_dims: Ints
    inserted_window_dims: Ints
    scatter_dims: Ints
    index_vector_dim: int
    operand_batching_dims: Ints = ()
    indices_batching_dims: Ints = ()

    def result(self, operand: Type, indices: Type, updates: Type) -> Type:
        _check_vector(self, indices, self.scatter_dims)
        same_dtype(operand, updates)
        if self.kind not in ("set", "maximum", "minimum") and operand.dtype.kind == "bool":
            raise Wrong(f"cannot {self.kind} bool", kind="dtype")
        batch = tuple(n for i, n in enumerate(updates.shape) if i not in self.update_window_dims)
        if batch != _batch_shape(indices.shape, self.index_vector_dim):
            raise Wrong(f"updates {list(updates.shape)} do not fit indices "
                        f"{list(indices.shape)}")
        sizes = self._window(operand.shape, updates.shape)
        if any(w > n for w, n in zip(sizes, operand.shape, strict=True)):
            raise Wrong(f"window {list(sizes)} is larger than {list(operand.shape)}")
        return operand

    def _window(self, operand: tuple[int, ...], updates: tuple[int, ...]) -> tuple[int, ...]:
        """The window's size on every operand axis."""
        gone = {*self.inserted_window_dims, *self.operand_batching_dims}
        if len(gone) + len(self.update_window_dims) != len(operand):
            raise Wrong(f"{len(self.update_window_dims)} window axes and {len(gone)} inserted "
                        f"axes for {len(operand)} operand axes")
        rest = iter(updates[a] for a in self.update_window_dims)
        return tuple(1 if axis in gone else next(rest) for axis in range(len(operand)))

    def evaluate(self, out: Type, operand: np.ndarray, indices: np.ndarray,
                 updates: np.ndarray) -> np.ndarray:
        result = np.array(operand).reshape(-1)
        places, keep = self.places(operand.shape, indices, updates.shape)
        values = self.ordered(updates).reshape(-1)[keep]
        if self.kind == "set":
            result[places] = values
        else:
            APPLY[self.kind].at(result, places, values)
        return result.reshape(operand.shape)

    def ordered(self, updates: np.ndarray) -> np.ndarray:
        """Updates with the axes of the indices first, then those of the window."""
        batch = tuple(i for i in range(updates.ndim) if i not in self.update_window_dims)
        return updates.transpose(batch + self.update_window_dims)

    def places(self, operand: tuple[int, ...], indices: np.ndarray,
               updates: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """(row-major place in the operand of each update that is inside, which updates are)."""
        sizes = self._window(operand, updates)
        vectors = _vectors(indices, self.index_vector_dim)
        corners = _corners(vectors, len(operand), self.scatter_dims, self.operand_batching_dims,
                           self.indices_batching_dims, self.index_vector_dim)
        batch = vectors.shape[:-1]
        places = np.zeros((*batch, *sizes), np.int64)
        inside = np.ones(places.shape, np.bool_)
        for place, size in zip(_places(corners, sizes, batch), operand, strict=True):
            places = places * size + place
            inside &= (place >= 0) & (place < size)
        keep = inside.reshape(-1)
        return places.reshape(-1)[keep], keep

    def flops(self, out: Type, operand: Type, indices: Type, updates: Type) -> int:
        return 0 if self.kind == "set" else count(updates.shape)

    def traffic(self, out: Type, operand: Type, indices: Type, updates: Type) -> Traffic:
        return stream(out, operand, indices, updates)
