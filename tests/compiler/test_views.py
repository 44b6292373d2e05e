"""Layout ops as views of memory: the same elements as NumPy takes, or a copy when none exists."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.compiler.views import is_view, view_of
from opentrn.graph import evaluate, g
from opentrn.isa import Builder
from opentrn.isa import view_of as whole
from tests.compiler.running import graph_of, on_chip


def seen(view) -> np.ndarray:
    """The positions in memory that a view shows, by its offset and steps alone."""
    places = np.full([n for _, n in view.steps], view.offset)
    for axis, (stride, count) in enumerate(view.steps):
        shape = [1] * len(view.steps)
        shape[axis] = count
        places = places + (stride * np.arange(count)).reshape(shape)
    return places


@st.composite
def layouts(draw, value):
    """A few reshapes, transposes, slices and broadcasts of `value`, in any order."""
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["reshape", "transpose", "slice", "broadcast"]))
        if kind == "reshape":
            value = g.reshape(value, draw(shapes_of(value.size)))
        elif kind == "transpose":
            value = g.transpose(value, draw(st.permutations(range(value.rank))))
        elif kind == "slice":
            starts = [draw(st.integers(0, n - 1)) for n in value.shape]
            limits = [draw(st.integers(a + 1, n)) for a, n in zip(starts, value.shape, strict=True)]
            value = g.slice(value, starts, limits, [draw(st.integers(1, 2)) for _ in starts])
        elif value.rank < 5 and value.size < 200:
            place = draw(st.integers(0, value.rank))
            shape = (*value.shape[:place], draw(st.integers(1, 3)), *value.shape[place:])
            axes = [a for a in range(value.rank + 1) if a != place]
            value = g.broadcast_in_dim(value, shape, axes)
    return value


@st.composite
def shapes_of(draw, size):
    """Some shape with `size` elements."""
    shape = []
    while size > 1 and len(shape) < 4:
        divisors = [n for n in range(1, size + 1) if size % n == 0]
        shape.append(draw(st.sampled_from(divisors)))
        size //= shape[-1]
    return (*shape, size)


@settings(max_examples=150, deadline=None)
@given(layouts(g.input("x", (4, 6, 5), "int32")))
def test_a_view_shows_what_numpy_takes(value):
    line = []
    while value.args:
        line.append(value)
        value = value.args[0]
    buffer = Builder("p", "trn2").buffer("hbm", (4, 6, 5), value.dtype)
    view = whole(buffer)
    array = np.arange(120, dtype=np.int32).reshape(4, 6, 5)
    for one in reversed(line):
        assert is_view(one)
        made = view_of(one, view)
        if made is None:
            assert one.op == "reshape", "only a reshape may need a copy"
            return
        view = made
        wanted = evaluate(graph_of(one), [array])[0]
        np.testing.assert_array_equal(seen(view), wanted)


@settings(max_examples=25, deadline=None)
@given(layouts(g.input("x", (4, 6, 5), "int32")))
def test_any_layout_reaches_the_output(value):
    array = np.arange(120, dtype=np.int32).reshape(4, 6, 5)
    wanted = evaluate(graph_of(value), [array])[0]

    def build(x):
        return value if value.op == "input" else _on(value, x)

    (found,), _ = on_chip(build, array)
    np.testing.assert_array_equal(found, wanted)


def _on(value, x):
    """The same layout ops on another input."""
    if value.op == "input":
        return x
    return g.apply(type(value.attrs), _on(value.args[0], x), **value.attrs.attributes)
