"""Whether two views share a byte is decided exactly: compared with enumerating every byte."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import dtypes
from opentrn.isa.view import Buffer, View, of

F32, BF16, U8 = dtypes.float32, dtypes.bfloat16, dtypes.uint8


def tensor(shape, dtype=F32, space="sbuf", **more) -> View:
    return of(Buffer(0, space, shape, dtype, **more))


def addresses(view: View) -> np.ndarray:
    """The element number of each position, from the definition: offset + Σ stride·i."""
    total = np.full(view.shape, view.offset)
    for axis, (stride, count) in enumerate(view.pattern()):
        steps = stride * np.arange(count)
        total += steps.reshape([-1 if a == axis else 1 for a in range(view.ndim)])
    return total


def touched(view):
    """Every byte of the buffer the view touches, by enumeration."""
    size = view.dtype.itemsize
    starts = addresses(view).ravel() * size
    return {int(s) + b for s in starts for b in range(size)}


@st.composite
def patterns(draw, buffer, dtype):
    """A random access pattern inside the buffer: any strides, also zero and negative."""
    total = buffer.nbytes // dtype.itemsize
    row = buffer.partition_bytes // dtype.itemsize
    base, room, head = 0, total, []
    if buffer.on_chip:
        rows = draw(st.integers(1, buffer.shape[0]))
        base = draw(st.integers(0, buffer.shape[0] - rows)) * row
        head, room = [[row, rows]], row
    steps, low, high = [], 0, 0
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, 5))
        most = (room - 1 - high + low) // max(count - 1, 1)
        near = min(most, 3)  # interleaved patterns are the hard ones
        stride = draw(st.integers(-near, near) | st.integers(-most, most))
        reach = stride * (count - 1)
        low, high = low + min(reach, 0), high + max(reach, 0)
        steps.append([stride, count])
    offset = base - low + draw(st.integers(0, room - 1 - high + low))
    return of(buffer).ap(head + steps, offset * dtype.itemsize // dtype.itemsize, dtype=dtype)


@settings(max_examples=600, deadline=None)
@given(st.data())
def test_overlap_is_exact(data):
    space = data.draw(st.sampled_from(["sbuf", "hbm"]))
    buffer = Buffer(0, space, (4, 48), F32)
    kinds = st.sampled_from([F32, BF16, U8])
    one, other = (data.draw(patterns(buffer, data.draw(kinds))) for _ in range(2))
    shared = touched(one) & touched(other)
    assert one.overlaps(other) == bool(shared)
    assert other.overlaps(one) == bool(shared)


def draw_slices(draw, view):
    """`view` after two slices along each dimension, with steps: partitions may be skipped too."""
    for dim in (0, 1, 1, 0):
        start = draw(st.integers(0, view.shape[dim] - 1))
        end = draw(st.integers(start + 1, view.shape[dim]))
        view = view.slice(dim, start, end, draw(st.integers(1, 3)))
    return view


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_sliced_partitions_overlap_exactly(data):
    view = tensor((8, 12))
    one, other = draw_slices(data.draw, view), draw_slices(data.draw, view)
    shared = np.intersect1d(addresses(one), addresses(other))
    assert one.overlaps(other) == bool(shared.size)


def test_interleaved_bytes_do_not_meet():
    for dtype in (U8, BF16, F32):
        tile = tensor((4, 64), dtype)
        assert not tile[:, ::2].overlaps(tile[:, 1::2])
        assert not tile[:, ::3].overlaps(tile[:, 1::3])
        assert tile[:, ::2].overlaps(tile[:, 1::3])
        assert not tile[0::2].overlaps(tile[1::2])


def test_buffers_meet_only_by_address():
    a = tensor((128, 64), name="a")
    assert not a.overlaps(tensor((128, 64), name="b"))
    here = tensor((32, 64), address=1024, partition=32)
    assert here.overlaps(tensor((64, 4), address=1024 + 255, partition=0))
    assert not here.overlaps(tensor((64, 4), address=1024 + 256, partition=0))
    assert not here.overlaps(tensor((32, 4), address=1024, partition=0))
    assert not here.overlaps(tensor((32, 64), address=1024, partition=32, space="psum"))
    even = tensor((128, 64), address=0)[:, ::2]
    assert not even.overlaps(tensor((128, 64), address=4)[:, ::2])
    assert even.overlaps(tensor((128, 64), address=8)[:, ::2])
