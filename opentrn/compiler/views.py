"""Layout ops that move nothing: reshapes, transposes, broadcasts and slices as views of HBM."""

from opentrn.base import DType, ShapeError
from opentrn.graph import Value
from opentrn.isa import View


def view_of(value: Value, view: View) -> View | None:
    """`value` (a layout op) as a view of its operand's memory, or None when it needs a copy."""
    make = _VIEWS.get(value.op)
    if make is None:
        return None
    try:
        return make(value, view)
    except ShapeError:
        return None


def is_view(value: Value) -> bool:
    """Whether the op may be a view."""
    if value.op == "bitcast_convert":
        return all(same_bits(kind) for kind in (value.dtype, value.args[0].dtype))
    return value.op in _VIEWS


def same_bits(kind: DType) -> bool:
    """Whether memory of the chip holds the very bits of a dtype: not of 64-bit ones, nor of one."""
    return kind.kind in ("int", "uint", "float") and kind.bits in (8, 16, 32)


def _ranked(view: View, shape: tuple[int, ...]) -> View:
    """Scalars are held as one element of rank one."""
    return view if view.shape == (shape or (1,)) else view.reshape(shape or (1,))


def _reshape(value: Value, view: View) -> View:
    return _ranked(view, value.shape)


def _transpose(value: Value, view: View) -> View:
    return view.permute(value.attrs.permutation)


def _slice(value: Value, view: View) -> View:
    a = value.attrs
    for dim, (start, end, step) in enumerate(zip(a.starts, a.limits, a.strides, strict=True)):
        view = view.slice(dim, start, end, step)
    return view


def _broadcast(value: Value, view: View) -> View:
    """Strides of the operand where its axes lie, 0 where it is repeated."""
    operand = value.args[0]
    steps = [(0, size) for size in value.shape or (1,)]
    for axis, place in enumerate(value.attrs.dimensions):
        if operand.shape[axis] != 1:
            steps[place] = view.steps[axis]
    return View(view.buffer, view.offset, tuple(steps), view.dtype)


def _bitcast(value: Value, view: View) -> View:
    """The same bytes: of a narrower dtype the parts of an element lie one after the other."""
    if view.dtype.itemsize == value.dtype.itemsize:
        return View(view.buffer, view.offset, view.steps, value.dtype)
    return _ranked(view.view(value.dtype), value.shape)


_VIEWS = {
    "bitcast_convert": _bitcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "broadcast_in_dim": _broadcast,
}
