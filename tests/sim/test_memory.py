"""Memory: marks against a set of bytes, windows, uninitialised values, borrowed arrays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import dtypes
from opentrn.hw import chip
from opentrn.isa import Buffer, view_of
from opentrn.sim.functional import Machine
from opentrn.sim.memory import Arena, Marks, Slab, Storage, fresh_bytes, put

SIZES = {dtypes.uint8: 1, dtypes.bfloat16: 2, dtypes.float32: 4}
kinds = st.sampled_from(list(SIZES))


def buffer(space="sbuf", shape=(4, 8), dtype=dtypes.float32, **more):
    return Buffer(0, space, shape, dtype, **more)


@st.composite
def cuts(draw, dtype):
    """A view of a [4, 8] buffer of `dtype`, perhaps as another dtype, and the bytes it covers."""
    view, seen = view_of(buffer(dtype=dtype)), draw(kinds)
    width = 8 * SIZES[dtype] // SIZES[seen]
    view = view.view(seen)
    p, f = draw(st.integers(0, 3)), draw(st.integers(0, width - 1))
    rows, columns = draw(st.integers(1, 4 - p)), draw(st.integers(1, width - f))
    step = draw(st.integers(1, columns))
    view = view[p : p + rows, f : f + columns : step]
    size = SIZES[seen]
    return view, {
        (r, c * size + b)
        for r in range(p, p + rows)
        for c in range(f, f + columns, step)
        for b in range(size)
    }


@settings(deadline=None, max_examples=150)
@given(st.data(), kinds)
def test_marks_are_a_set_of_bytes(data, dtype):
    marks, model = Marks(buffer(dtype=dtype)), set()
    everything = {(r, b) for r in range(4) for b in range(8 * SIZES[dtype])}
    for _ in range(data.draw(st.integers(1, 8))):
        view, covered = data.draw(cuts(dtype))
        verb = data.draw(st.sampled_from(["add", "add", "remove", "clear", "rows"]))
        if verb == "add":
            marks.add(view)
            model |= covered
        elif verb == "remove":
            marks.remove(view)
            model -= covered
        elif verb == "clear":
            marks.clear()
            model.clear()
        else:
            marks.add_rows(view, np.array([0]))
            first = min(r for r, _ in covered)
            model |= {(r, b) for r, b in covered if r == first}
        seen, bytes_ = data.draw(cuts(dtype))
        some = marks.some_of(seen)
        assert marks.all_of(seen) == (bytes_ <= model)
        assert (some is None) == (not bytes_ & model)
        assert (some is True) == (bytes_ <= model)
        assert marks.missing(seen) == pytest.approx(1 - len(bytes_ & model) / len(bytes_))
        assert (marks.cells is True) <= (model == everything)


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float32])
def test_marks_of_columns_tell_elements_marked_in_part(dtype):
    size = SIZES[dtype]
    one, mask = buffer(shape=(4, 12), dtype=dtype), np.zeros((4, 80), bool)
    marks = Marks(one, mask, 16)
    column = view_of(one)[1:, 0:12:3]
    marks.add(column)
    expected = np.zeros((4, 80), bool)
    for row in (1, 2, 3):
        for element in (0, 3, 6, 9):
            expected[row, 16 + element * size : 16 + (element + 1) * size] = True
    np.testing.assert_array_equal(mask, expected)
    assert marks.all_of(column)
    assert marks.some_of(column) is True
    assert not marks.all_of(view_of(one)[:, 0:12:3])
    assert marks.some_of(view_of(one)[:, 1:12:3]) is None
    mask[2, 16 + 3 * size] = False  # one byte of an element in the second row of the column
    assert not marks.all_of(column)
    assert marks.some_of(column).all()
    mask[2, 16 + 3 * size : 16 + 4 * size] = False
    np.testing.assert_array_equal(
        marks.some_of(column), [[True] * 4, [True, False, True, True], [True] * 4]
    )
    marks.remove(column)
    assert not mask.any()


def test_marks_of_aliases_are_shared_by_the_byte():
    arena = Arena(128, 4096)
    a = arena.storage(buffer(address=64, partition=0))
    b = arena.storage(buffer(dtype=dtypes.uint8, shape=(2, 16), address=64 + 16, partition=1))
    a.written.add(view_of(a.buffer)[1:2, 4:6])
    assert b.written.all_of(view_of(b.buffer)[0:1, 0:8])
    assert not b.written.all_of(view_of(b.buffer)[0:1, 0:9])
    assert b.written.some_of(view_of(b.buffer)[1:2]) is None
    b.written.clear()
    assert a.written.some_of(view_of(a.buffer)) is None


NAN = {dtypes.float32, dtypes.bfloat16, dtypes.float16, dtypes.float8_e5m2, dtypes.float8_e4m3}


@pytest.mark.parametrize("space", ["sbuf", "psum", "hbm"])
@pytest.mark.parametrize(
    "dtype", [*sorted(NAN), dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.int32, dtypes.uint32]
)
@pytest.mark.parametrize("address", [None, 256])
def test_fresh_memory_reads_as_nan_or_the_largest_integer(space, dtype, address):
    if space == "hbm" and address is not None:
        return
    machine = Machine(chip("trn2"))
    made = buffer(space, dtype=dtype, address=address)
    machine.allocate(made)
    values = machine.value(view_of(made))
    assert values.shape == (4, 8)
    if dtype in NAN:
        assert np.isnan(values).all()
    else:
        assert (values == np.iinfo(np.dtype(dtype)).max).all()


def test_memory_given_back_and_taken_again_is_fresh():
    machine, one, two = Machine(chip("trn2")), buffer(), buffer()
    array = machine.allocate(one).array
    machine.storage(one).write(view_of(one), np.ones((4, 8), np.float32))
    machine.release(one)
    assert machine.allocate(two).array is array
    assert np.isnan(machine.value(view_of(two))).all()
    assert not machine.storage(two).written.all_of(view_of(two))


def test_memory_released_inside_a_loop_stays_until_it_ends():
    machine, one = Machine(chip("trn2")), buffer()
    machine.allocate(one)
    machine.hold()
    machine.hold()
    machine.release(one)
    machine.let_go()
    assert one in machine.storages
    machine.let_go()
    assert one not in machine.storages


def test_partitions_are_padded_so_that_rows_do_not_lie_a_page_apart():
    assert Slab().values(buffer(shape=(128, 1024))).strides[0] % 4096 != 0


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16, dtypes.int16])
def test_windows_share_memory_with_their_buffer(dtype):
    storage = Storage(buffer(dtype=dtype), Slab().values(buffer(dtype=dtype)), raw=False)
    whole, part = view_of(storage.buffer), view_of(storage.buffer)[1:3, 2:8:3]
    storage.window(whole)[...] = np.arange(32).reshape(4, 8)
    storage.written.add(whole)
    assert storage.window(part).tolist() == [[10, 13], [18, 21]]
    assert storage.window(part) is storage.window(part)
    storage.window(part)[...] = 0
    assert storage.read(whole)[1:3, 2::3].tolist() == [[0, 0], [0, 0]]


def test_windows_are_made_anew_when_values_become_bytes():
    machine, made = Machine(chip("trn2")), buffer()
    storage = machine.allocate(made)
    view = view_of(made)
    storage.write(view, np.full((4, 8), 1.5, np.float32))
    before = storage.window(view)
    assert storage.read(view.view(dtypes.uint16))[0, :2].tolist() == [0, 0x3FC0]
    assert storage.window(view) is not before
    storage.write(view, np.full((4, 8), 2.5, np.float32))
    assert (storage.read(view) == 2.5).all()


def test_borrowed_arrays_are_copied_before_the_first_write():
    machine, made = Machine(chip("trn2")), buffer("hbm")
    mine = np.zeros((4, 8), np.float32)
    storage = machine.adopt(made, mine)
    assert np.shares_memory(storage.array, mine)
    storage.own()
    storage.write(view_of(made), np.ones((4, 8), np.float32))
    assert (mine == 0).all()
    assert (machine.value(view_of(made)) == 1).all()


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.int8, dtypes.float32])
def test_put_rounds_to_the_memorys_dtype(raw, dtype):
    window = np.empty((2, 3), dtype.storage if raw else dtype.carrier)
    put(window, np.array([1.001, -300.5, 2.5, 0.5, 1e3, -0.25], np.float32), dtype, raw)
    found = window.astype(np.float32)
    wanted = {
        dtypes.bfloat16: [[1.0, -300.0, 2.5], [0.5, 1000.0, -0.25]],
        dtypes.int8: [[1, -128, 2], [0, 127, 0]],
        dtypes.float32: [[np.float32(1.001), -300.5, 2.5], [0.5, 1000.0, -0.25]],
    }[dtype]
    assert found.tolist() == np.array(wanted, np.float32).tolist()


def test_tiles_out_of_one_piece_do_not_overlap():
    slab = Slab()
    shapes = [(128, 1024), (3, 9_000), (128, 1), (128, 70_000), (64, 2048)] * 6
    tiles = [slab.values(buffer(shape=shape)) for shape in shapes]
    for n, (tile, (rows, columns)) in enumerate(zip(tiles, shapes, strict=True)):
        assert tile.shape[0] == rows
        assert tile.shape[1] >= columns
        tile[...] = n
    assert all((tile == n).all() for n, tile in enumerate(tiles))


def test_memory_in_use_is_not_given_to_the_next_machine():
    first, second = Slab(), Slab()
    one = first.values(buffer(shape=(128, 1024)))
    del first
    two = second.values(buffer(shape=(128, 1024)))
    one[...], two[...] = 1, 2
    assert (one == 1).all()
    where = one.ctypes.data
    del one
    assert Slab().values(buffer(shape=(128, 1024))).ctypes.data == where


@pytest.mark.parametrize("count", [1, 2 << 20, (2 << 20) + 3, 9 << 20])
def test_large_memory_begins_at_a_huge_page(count):
    made = fresh_bytes(count)
    made[...] = 7
    assert made.shape == (count,)
    assert count < 2 << 20 or made.ctypes.data % (2 << 20) == 0
