"""Views address the elements that an independent NumPy twin, built with NumPy views, addresses."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import DtypeError, ShapeError, UsageError, dtypes
from opentrn.isa.index import Indirect
from opentrn.isa.view import Buffer, View, of

F32, BF16, U8, I32 = dtypes.float32, dtypes.bfloat16, dtypes.uint8, dtypes.int32


def tensor(shape, dtype=F32, space="sbuf", **more) -> View:
    return of(Buffer(0, space, shape, dtype, **more))


TILE = tensor((128, 64))
CUBE = tensor((128, 4, 16))


def addresses(view: View) -> np.ndarray:
    """The element number of each position, from the definition: offset + Σ stride·i."""
    total = np.full(view.shape, view.offset)
    for axis, (stride, count) in enumerate(view.pattern()):
        steps = stride * np.arange(count)
        total += steps.reshape([-1 if a == axis else 1 for a in range(view.ndim)])
    return total


def same(view: View, twin: np.ndarray) -> bool:
    return view.shape == twin.shape and np.array_equal(addresses(view), twin)


class Window:
    """Looks like nl.ds(start, size)."""

    def __init__(self, start, size):
        self.start, self.size = start, size


class Reg:
    is_register = True


# ---------------------------------------------------------------- documented examples

DOCUMENTED = [
    # (shape, space, action, shape afterwards)
    ((64, 64, 64), "sbuf", lambda t: t[0, 0, 10], (1, 1)),
    ((64, 64, 64), "sbuf", lambda t: t[:, 0], (64, 64)),
    ((64, 64, 64), "sbuf", lambda t: t[:, 0, 10], (64, 1)),
    ((64, 64, 64), "sbuf", lambda t: t[0:64, 0, 0:64], (64, 64)),
    ((64, 64, 64), "sbuf", lambda t: t[:, :, ::2], (64, 64, 32)),
    ((64, 64, 64), "sbuf", lambda t: t[...], (64, 64, 64)),
    ((64, 64, 64), "sbuf", lambda t: t[0, ..., :], (1, 64, 64)),
    ((64, 64, 64), "sbuf", lambda t: t[0, ...][:, 0:32, :], (1, 32, 64)),
    ((128, 64, 32), "sbuf", lambda t: t[:, :, 0], (128, 64)),
    ((4, 128, 32), "hbm", lambda t: t[0, :, :], (128, 32)),
    ((2, 128, 1024), "hbm", lambda t: t[1, :, 0:512], (128, 512)),
    ((128, 4, 8), "sbuf", lambda t: t.permute((0, 2, 1)), (128, 8, 4)),
    ((128, 1, 64), "sbuf", lambda t: t.broadcast(1, 8), (128, 8, 64)),
    ((128, 64), "sbuf", lambda t: t.expand_dim(1), (128, 1, 64)),
    ((128, 1, 64), "sbuf", lambda t: t.squeeze_dim(1), (128, 64)),
    ((128, 24), "sbuf", lambda t: t.reshape_dim(1, (4, -1)), (128, 4, 6)),
    ((128, 2, 3, 4), "sbuf", lambda t: t.flatten_dims(1, 2), (128, 6, 4)),
    ((128, 4, 6), "sbuf", lambda t: t.reshape((128, 2, 12)), (128, 2, 12)),
    ((128, 24), "sbuf", lambda t: t.rearrange(("b", ("h", "w")), ("b", "w", "h"), {"h": 4}),
     (128, 6, 4)),
    ((128, 64), "sbuf", lambda t: t.slice(1, 0, 64, 2), (128, 32)),
    ((128, 8, 64), "sbuf", lambda t: t.select(1, 3), (128, 64)),
    ((128, 64), "sbuf", lambda t: t.view(U8), (128, 256)),
    ((128, 4, 16), "sbuf", lambda t: t[0:64, :, :].permute((0, 2, 1))[:, 0, :], (64, 4)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "space", "action", "result"), DOCUMENTED)
def test_documented_shapes(shape, space, action, result):
    assert action(tensor(shape, space=space)).shape == result


def test_documented_patterns():
    t = tensor((128, 64))
    assert (t.strides, t.offset, t.size, t.ndim) == ((64, 1), 0, 8192, 2)
    u = t.slice(1, 8, 24)
    assert u.pattern() == [[64, 128], [1, 16]]
    assert u.offset == 8
    v = t.ap(pattern=[[64, 128], [1, 16]], offset=8)
    assert v == u
    assert hash(v) == hash(u)
    pattern = t.get_pattern()
    pattern[0][1] = 64
    assert t.ap(pattern=pattern).shape == (64, 64)
    half = tensor((128, 1024), dtypes.float16).ap(pattern=[(1024, 128), (2, 512)])
    assert half.shape == (128, 512)
    bits = tensor((128, 256), I32).ap([[512, 128], [1, 512]], 0, dtype=BF16)
    assert (bits.shape, bits.dtype, bits.size) == ((128, 512), BF16, 65536)


def test_ap_offset_adds_to_the_view_and_none_keeps_it():
    part = tensor((128, 64))[:, 8:24]
    pattern = [[64, 128], [1, 4]]
    assert [part.ap(pattern, offset=o).offset for o in (None, 0, 3)] == [8, 8, 11]
    assert part.ap([[128, 128], [1, 4]], dtype=BF16).offset == 16


def test_inner_ap_does_not_matter():
    t = tensor((128, 256))
    assert t.ap([[256, 128], [2, 128]]).ap([[256, 128], [1, 64]]) == t[:, 0:64]


# ---------------------------------------------------------------- chains against NumPy


def draw_key(draw, twin, on_chip):
    """A random key, and the same key for NumPy, which keeps what NKI keeps."""
    key, plain, kept = [], [], 0
    for dim, size in enumerate(twin.shape):
        if draw(st.integers(0, 3)) == 0:
            i = draw(st.integers(-size, size - 1))
            key.append(i)
            keep = on_chip and dim == 0
            plain.append(slice(i % size, i % size + 1) if keep else i)
            kept += keep
        else:
            a = draw(st.integers(0, size - 1))
            b = draw(st.integers(a + 1, size))
            step = draw(st.integers(1, 3))
            form = draw(st.integers(0, 2))
            if form == 0:
                key.append(Window(a, b - a))
                plain.append(slice(a, b))
            elif form == 1:  # counted from the end
                key.append(slice(a - size, b - size if b < size else None, step))
                plain.append(slice(a, b, step))
            else:
                key.append(slice(a, b, step) if step > 1 else slice(a, b))
                plain.append(slice(a, b, step))
            kept += 1
    if kept < min(twin.ndim, 2 if on_chip else 1):
        i = plain[-1] % twin.shape[-1]
        plain[-1] = slice(i, i + 1)
    return tuple(key), tuple(plain)


def factors(draw, size):
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    first = draw(st.sampled_from(divisors))
    return (first, size // first)


def step_at(draw, view, twin, chip):
    key, plain = draw_key(draw, twin, chip)
    return view[key], twin[plain]


def step_newaxis(draw, view, twin, chip):
    return view[0:1, None, ...], twin[0:1, None, ...]


def step_slice(draw, view, twin, chip):
    dim = draw(st.integers(0, twin.ndim - 1))
    a = draw(st.integers(0, twin.shape[dim] - 1))
    b = draw(st.integers(a + 1, twin.shape[dim]))
    step = draw(st.integers(1, 3))
    return view.slice(dim, a, b, step), twin[(slice(None),) * dim + (slice(a, b, step),)]


def step_select(draw, view, twin, chip):
    dim = draw(st.integers(0, twin.ndim - 1))
    i = draw(st.integers(0, twin.shape[dim] - 1))
    keep = (chip and dim == 0) or twin.ndim <= (2 if chip else 1)
    chosen = slice(i, i + 1) if keep else i
    return view.select(dim, i), twin[(slice(None),) * dim + (chosen,)]


def step_permute(draw, view, twin, chip):
    dims = draw(st.permutations(range(1 if chip else 0, twin.ndim)))
    dims = [0, *dims] if chip else dims
    return view.permute(tuple(dims)), twin.transpose(dims)


def step_broadcast(draw, view, twin, chip):
    dim = draw(st.integers(1 if chip else 0, twin.ndim))
    size = draw(st.integers(1, 3))
    wide = np.expand_dims(twin, dim)
    shape = wide.shape[:dim] + (size,) + wide.shape[dim + 1 :]
    return view.expand_dim(dim).broadcast(dim, size), np.broadcast_to(wide, shape)


def step_squeeze(draw, view, twin, chip):
    dims = [d for d in range(1 if chip else 0, twin.ndim) if twin.shape[d] == 1 and twin.ndim > 1]
    if not dims:
        return view, twin
    dim = draw(st.sampled_from(dims))
    return view.squeeze_dim(dim), twin.squeeze(dim)


def step_split(draw, view, twin, chip):
    if chip and twin.ndim == 1:
        return view, twin
    dim = draw(st.integers(1 if chip else 0, twin.ndim - 1))
    sizes = factors(draw, twin.shape[dim])
    shape = twin.shape[:dim] + sizes + twin.shape[dim + 1 :]
    return view.reshape_dim(dim, (sizes[0], -1)), twin.reshape(shape, copy=False)


def merge(action, twin, shape):
    """Both sides merge without a copy, or both refuse."""
    try:
        expected = twin.reshape(shape, copy=False)
    except ValueError:
        with pytest.raises(ShapeError):
            action()
        return None
    return action(), expected


def step_flatten(draw, view, twin, chip):
    first = 1 if chip else 0
    if twin.ndim - first < 2:
        return view, twin
    a = draw(st.integers(first, twin.ndim - 2))
    b = draw(st.integers(a + 1, twin.ndim - 1))
    shape = (*twin.shape[:a], -1, *twin.shape[b + 1 :])
    return merge(lambda: view.flatten_dims(a, b), twin, shape) or (view, twin)


def step_reshape(draw, view, twin, chip):
    head = twin.shape[:1] if chip else ()
    rest = int(np.prod(twin.shape[len(head) :]))
    one, other = factors(draw, rest)
    shape = (*head, *factors(draw, one), other)
    return merge(lambda: view.reshape(shape), twin, shape) or (view, twin)


def step_rearrange(draw, view, twin, chip):
    if twin.ndim < 2:
        return view, twin
    names = [f"d{i}" for i in range(twin.ndim)]
    a, b = factors(draw, twin.shape[-1])
    order = draw(st.permutations(range(1 if chip else 0, twin.ndim + 1)))
    order = [0, *order] if chip else order
    inner = [*names[:-1], "a", "b"]
    shape = (*twin.shape[:-1], a, b)
    expected = twin.reshape(shape, copy=False).transpose(order)
    source = (*names[:-1], ("a", "b"))
    return view.rearrange(source, tuple(inner[i] for i in order), {"a": a}), expected


STEPS = [
    step_at, step_newaxis, step_slice, step_select, step_permute, step_broadcast, step_squeeze,
    step_split, step_flatten, step_reshape, step_rearrange,
]  # fmt: skip

SHAPES = [(8, 24), (4, 6, 4), (6, 2, 3, 4), (12,), (5, 1, 8)]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_chains_address_what_numpy_addresses(data):
    space = data.draw(st.sampled_from(["sbuf", "psum", "hbm"]))
    shape = data.draw(st.sampled_from(SHAPES[: 5 if space == "hbm" else 3]))
    view = tensor(shape, space=space)
    twin = np.arange(view.size).reshape(shape)
    for step in data.draw(st.lists(st.sampled_from(STEPS), max_size=6)):
        if twin.ndim > 6:
            break
        view, twin = step(data.draw, view, twin, space != "hbm")
        assert same(view, twin), step.__name__
    check_facts(view, twin, shape)


def check_facts(view, twin, shape):
    """The derived facts of a view agree with its element numbers."""
    numbers = addresses(view)
    assert view.size == twin.size
    assert view.nbytes == twin.size * 4
    row = view.buffer.free
    if view.on_chip:
        assert view.start_partition == numbers.flat[0] // row
        assert view.free_offset == numbers.flat[0] % row
        parts, free = numbers // row, numbers % row
        p0, p1, low, high = view.box()
        assert (p0, p1) == (parts.min(), parts.max() + 1)
        assert (low, high) == (free.min() * 4, free.max() * 4 + 4)
        inner = numbers[0].ravel()
    else:
        assert view.box() == (0, 1, numbers.min() * 4, numbers.max() * 4 + 4)
        inner = numbers.ravel()
    assert view.is_contiguous() == bool(np.all(np.diff(inner) == 1))
    assert view.whole == (
        np.array_equal(
            numbers.ravel(),
            np.arange(view.buffer.free * (view.buffer.shape[0] if view.on_chip else 1)),
        )
    )
    # through memory: rows padded by 64 bytes on chip, flat in HBM
    rows = view.buffer.shape[0] if view.on_chip else 1
    pitch = row * 8 + 64
    memory = np.full((rows, pitch // 8), -1, np.int64)
    memory[:, :row] = np.arange(rows * row).reshape(rows, row)
    sizes, strides, offset = view.numpy_layout(8, pitch)
    seen = np.ndarray(sizes, np.int64, memory, offset, strides)
    assert np.array_equal(seen, twin)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_reinterpreted_bits(data):
    """View(dtype) reads the bytes numpy.ndarray.view reads, or both refuse."""
    space = data.draw(st.sampled_from(["sbuf", "hbm"]))
    old = data.draw(st.sampled_from([dtypes.uint8, dtypes.uint16, dtypes.uint32]))
    new = data.draw(st.sampled_from([dtypes.uint8, dtypes.uint16, dtypes.uint32]))
    shape = (4, 3, 8)
    view = tensor(shape, old, space)
    raw = np.random.default_rng(0).integers(0, 256, view.nbytes, np.uint8)
    twin = raw.view(old).reshape(shape)
    for _ in range(data.draw(st.integers(0, 2))):
        view, twin = step_slice(data.draw, view, twin, space != "hbm")
    dense = twin.shape[-1] == 1 or twin.strides[-1] == twin.itemsize
    try:
        expected = twin.view(new)
    except ValueError:
        expected = None
    aligned = view.offset * old.itemsize % new.itemsize == 0
    outer = all(s % new.itemsize == 0 for s in twin.strides[:-1])
    if expected is None or not dense or not (aligned and outer):
        with pytest.raises((ShapeError, DtypeError)):
            view.view(new)
        return
    got = view.view(new)
    sizes, strides, offset = got.numpy_layout(new.itemsize, got.pitch * new.itemsize)
    assert np.array_equal(np.ndarray(sizes, new, raw, offset, strides), expected)


# ---------------------------------------------------------------- runtime indices


def resolved(view, values):
    """Element numbers with the runtime index known: static address + stride · value."""
    numbers = addresses(view)
    index = view.index
    if index.kind == "scalar":
        return numbers + index.stride * values
    axis = index.dim
    numbers -= view.strides[axis] * np.arange(view.shape[axis]).reshape(
        [-1 if a == axis else 1 for a in range(view.ndim)]
    )
    shape = [-1 if a == axis else 1 for a in range(view.ndim)]
    return numbers + index.stride * np.reshape(values, shape)


INDEX = tensor((1, 1), I32)
HBM = tensor((4, 6, 8), space="hbm")
NUMBERS = np.arange(4 * 6 * 8).reshape(4, 6, 8)


@pytest.mark.parametrize("index", [INDEX, Reg()])
def test_runtime_select(index):
    for value in range(4):
        assert np.array_equal(resolved(HBM.select(0, index), value), NUMBERS[value])
        assert np.array_equal(resolved(HBM[index], value), NUMBERS[value])
        cut = HBM[:, 1:5, ::2].select(0, index)
        assert np.array_equal(resolved(cut, value), NUMBERS[value, 1:5, ::2])
    assert HBM.select(0, index).index == Indirect("scalar", index, None, 48, 4)
    on_chip = tensor((4, 6, 8)).select(2, index)
    assert np.array_equal(resolved(on_chip, 5), NUMBERS[:, :, 5])
    assert on_chip.is_indirect()


def test_runtime_window_may_start_anywhere_it_fits():
    view = HBM[:, Window(INDEX, 2), 0:4]
    assert view.shape == (4, 2, 4)
    assert view.index == Indirect("scalar", INDEX, 1, 8, 5)
    for value in range(view.index.limit):
        assert np.array_equal(resolved(view, value), NUMBERS[:, value : value + 2, 0:4])
    rows = tensor((4, 6, 8))[Window(Reg(), 1), 2]
    assert np.array_equal(resolved(rows, 3), NUMBERS[3:4, 2])


def test_the_indexed_dimension_is_followed():
    """It cannot be cut, wherever later methods move it; the others can."""
    window = HBM[:, Window(INDEX, 2)]
    moved = {
        "row": (window[1], 0),
        "front": (window[:, None], 2),
        "permute": (window.permute((1, 2, 0)), 0),
        "expand": (window.expand_dim(1), 2),
        "squeeze": (window[0:1].squeeze_dim(0), 0),
        "split": (window.reshape_dim(0, (2, 2)), 2),
        "select": (window.select(0, 3), 0),
        "after": (window.reshape_dim(2, (4, 2)), 1),
        "merge": (window.reshape_dim(0, (2, 2)).flatten_dims(0, 1), 1),
    }
    for name, (view, dim) in moved.items():
        assert view.index.dim == dim, name
        assert view.shape[dim] == 2, name
        with pytest.raises(UsageError):
            view.slice(dim, 0, 1)
        with pytest.raises(UsageError):
            view.select(dim, 0)
        free = next(d for d in range(view.ndim) if d != dim and view.shape[d] > 1)
        assert view.slice(free, 0, 1).index.stride == 8


def test_vector_select_gathers_rows():
    rows = tensor((3, 1), I32)
    view = HBM.vector_select(0, rows)
    assert view.shape == (3, 6, 8)
    assert np.array_equal(resolved(view, [2, 0, 2]), NUMBERS[[2, 0, 2]])
    inner = view[:, 1:3].permute((0, 2, 1)).reshape_dim(1, (2, 4))
    expected = NUMBERS[[2, 0, 2]][:, 1:3].transpose(0, 2, 1).reshape(3, 2, 4, 2)
    assert np.array_equal(resolved(inner, [2, 0, 2]), expected)
    assert inner.numpy_layout(4, 0)[1] == (0, 16, 4, 32)


def test_vector_offset_pattern():
    table = tensor((128, 512), space="hbm")
    rows = tensor((64, 1), I32)
    view = table.ap([[512, 64], [1, 512]], 0, vector_offset=rows, indirect_dim=0)
    picks = np.arange(64) * 2
    assert np.array_equal(resolved(view, picks), np.arange(65536).reshape(128, 512)[picks])
    assert view.index.limit == 128


def test_scalar_offset_pattern():
    table = tensor((512, 512), space="hbm")
    view = table.ap([[512, 128], [1, 256]], 0, scalar_offset=INDEX, indirect_dim=0)
    numbers = np.arange(512 * 512).reshape(512, 512)
    assert np.array_equal(resolved(view, 384), numbers[384:512, :256])
    assert view.index.limit == 385
    column = tensor((1, 9), space="hbm").ap([[1, 1], [1, 1]], scalar_offset=Reg(), indirect_dim=1)
    assert (column.index.stride, column.index.limit) == (1, 9)
    # the stride of the indexed dimension is counted in elements of the new dtype
    bits = tensor((128, 32)).ap([[64, 128], [1, 16]], 0, INDEX, indirect_dim=1, dtype=BF16)
    assert (bits.index.stride, bits.index.limit) == (2, 25)


def test_tensor_indirection():
    tile = tensor((32, 100))[:, 10:90]
    index = tensor((32, 4), I32)
    view = tile.indirect(index, 7)
    assert view.shape == (32, 7)
    assert tile.indirect(index).shape == (32, 128)
    columns = [5, 0, 79, 3, 3, 8, 1]
    expected = np.arange(3200).reshape(32, 100)[:, 10:90][:, columns]
    assert np.array_equal(resolved(view, columns), expected)
    assert view.index.limit == 80


def test_runtime_views_meet_all_they_might_touch():
    base = tensor((4, 6, 8), space="hbm")
    picked = base[:, 0:2].select(0, INDEX)
    assert picked.overlaps(base[3, 1])
    assert not picked.overlaps(base[:, 2:6])
    assert base.vector_select(0, tensor((2, 1), I32))[:, 5].overlaps(base[0, 5])
    tile = tensor((4, 6, 8))
    assert not tile[2:4].select(2, INDEX).overlaps(tile[0:2])
    assert tile[2:4].select(2, INDEX).overlaps(tile[3, :, 7])
    assert tile[Window(Reg(), 1), 0].overlaps(tile[3, 0])
    assert not tile[Window(Reg(), 1), 0].overlaps(tile[3, 1])


# ---------------------------------------------------------------- objects


def test_views_are_frozen_values():
    t = TILE[0:4, 8:16]
    with pytest.raises(AttributeError):
        t.offset = 3
    with pytest.raises(AttributeError):
        _ = t.no_such_fact
    assert copy.copy(t) == t
    assert t == TILE.slice(0, 0, 4).slice(1, 8, 16)
    assert t != TILE[0:4, 8:15]
    assert t != tensor((128, 64))[0:4, 8:16]
    assert len({t, TILE[0:4, 8:16]}) == 1
    twin = pickle.loads(pickle.dumps(View(None, 3, ((1, 2),), F32)))
    assert (twin.offset, twin.steps, twin.dtype) == (3, ((1, 2),), F32)


def test_buffer_facts():
    chip = Buffer(7, "psum", (128, 4, 16), BF16, "acc")
    assert (chip.free, chip.partition_bytes, chip.nbytes, chip.on_chip) == (64, 128, 16384, True)
    hbm = Buffer(8, "hbm", (4, 8), F32)
    assert (hbm.free, hbm.partition_bytes, hbm.nbytes, hbm.on_chip) == (32, 128, 128, False)
    assert chip != Buffer(7, "psum", (128, 4, 16), BF16, "acc")
    bits = of(chip).view(U8)
    assert (bits.pitch, bits.partitions, bits.free_size) == (128, 128, 128)
    assert of(chip)[32:64:2].partition_step == 2


def test_size_one_strides_do_not_matter_for_contiguity():
    assert TILE[:, 0:1].is_contiguous()
    assert TILE[5:9].is_contiguous()
    assert TILE[:, 0:32].is_contiguous()
    assert not CUBE[:, :, 0:8].is_contiguous()
    assert CUBE[:, :, 0:8].contiguous
    assert not tensor((4, 8), space="hbm")[:, 0:4].is_contiguous()


def test_numpy_integers_become_plain_integers():
    n = np.int64(4)
    views = [
        TILE.slice(1, n, 2 * n),
        TILE[n : 2 * n],
        TILE.select(1, n),
        TILE.reshape((128, n, 16)),
    ]
    assert [v.offset for v in views] == [4, 256, 4, 0]
    for v in views:
        assert type(v.offset) is int
        assert all(type(s) is int and type(c) is int for s, c in v.steps)


# ------------------------------------------------------------------ what views alike share


def test_views_alike_of_different_buffers_share_their_form_and_not_their_place():
    one, other = tensor((128, 40)), tensor((128, 40))
    assert one.form is other.form
    assert one[:, 3:9].form is other[:, 3:9].form
    assert one != other
    assert hash(one[:, 3:9]) != hash(other[:, 3:9])
    assert one.at((slice(None), slice(3, 9))).buffer is one.buffer


def test_what_lies_elsewhere_or_is_of_another_type_shares_nothing():
    plain = tensor((64, 40))
    placed = tensor((64, 40), address=256, partition=64)
    assert (plain.form.partition, placed.form.partition) == (0, 64)
    bank = tensor((64, 40), space="psum", address=256)
    assert (tensor((64, 40), space="psum").form.offset, bank.form.offset) == (0, 256)
    narrow, wide = tensor((64, 40), BF16), tensor((64, 40), dtypes.widened(BF16))
    assert narrow.dtype == wide.dtype  # by name
    assert narrow.form is not wide.form
    assert tensor((64, 40), space="psum").form is not plain.form


def test_a_size_that_equals_an_integer_is_still_looked_at():
    tensor((128, 48))
    for sizes in ((128.0, 48), (128, 48.0)):
        with pytest.raises(UsageError):
            tensor(sizes)
    assert tensor((np.int64(128), 48)).shape == (128, 48)
    assert tensor([128, 48]).shape == (128, 48)
    assert type(tensor((np.int64(128), 48)).shape[0]) is int


@pytest.mark.parametrize("count", [1, 4, 5, 40, 3000])
def test_cuts_that_are_taken_again_are_the_same_view_however_many_there_are(count):
    tile = tensor((128, 4096))
    twin = np.arange(128 * 4096).reshape(128, 4096)
    cuts = [tile[:, n : n + 7] for n in range(count)]
    assert all(same(cut, twin[:, n : n + 7]) for n, cut in enumerate(cuts))
    late = range(max(count - 900, 0), count)  # of so many some are forgotten
    assert all(tile[:, n : n + 7] is cuts[n] for n in late)
    assert all(tile[:, n : n + 7] == cuts[n] for n in range(0, count, 50))


def test_tiles_cut_in_one_way_share_what_follows_from_it_and_addresses_are_seen():
    one, other = (tensor((128, 64))[0:128, 8:40] for _ in range(2))
    assert one != other
    assert one.steps is other.steps
    assert one._facts is other._facts
    assert one.form is other.form
    assert one.box() == other.box() == (0, 128, 32, 160)
    low, high = (tensor((128, 64), space="psum", address=at)[:, 8:40] for at in (0, 1024))
    assert low.form != high.form
    assert low.box() == high.box()
    assert low.strides == high.strides == one.strides


def test_a_view_of_a_long_program_is_small():
    tile = tensor((128, 64))
    sizes = [one.__sizeof__() for one in (tile, tile[:, 0:32], tile.buffer)]
    assert max(sizes[:2]) <= 96  # bytes
    assert sizes[2] <= 80
