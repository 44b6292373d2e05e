"""Allocating, loading, storing and looking at tensors."""

import ml_dtypes
import numpy as np
import pytest

from opentrn import nki
from opentrn.base import MissingFileError, ShapeError, SpaceError, TrnError, UsageError
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from tests.nki.tiles import BF16

X = np.arange(128 * 24, dtype=np.float32).reshape(128, 24)


def outcome(kernel, *arrays, **more):
    run = nki.run(kernel, *arrays, **more)
    assert run.findings == ()
    return run.outputs


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum, nl.private_hbm, nl.hbm, nl.shared_hbm])
@pytest.mark.parametrize("dtype", [nl.float32, nl.bfloat16, nl.int32, nl.uint8])
def test_filled_tensors_in_every_memory(buffer, dtype):
    def kernel():
        out = nl.ndarray((3, 100, 37), dtype, buffer=nl.shared_hbm)
        made = (
            nl.full((100, 37), 7, dtype, buffer=buffer),
            nl.zeros((100, 37), dtype, buffer=buffer),
            nl.ones((100, 37), dtype, buffer=buffer),
        )
        for place, tensor in enumerate(made):
            nl.store(out[place], nl.copy(tensor) if buffer is nl.psum else tensor)
        return out

    found = outcome(kernel).astype(float)
    assert np.array_equal(found, np.array([7, 0, 1.0])[:, None, None] * np.ones((3, 100, 37)))


def test_large_and_odd_fills_of_hbm():
    def kernel():
        out = nl.full((129,), 3, nl.int16, buffer=nl.shared_hbm)
        more = nl.full((300, 1031), 2.5, nl.float32, buffer=nl.shared_hbm)
        return out, more

    small, large = outcome(kernel)
    assert (small == 3).all()
    assert (large == 2.5).all()


def test_likes_take_shape_dtype_and_memory():
    def kernel(x):
        t = nl.load(x)
        for made in (nl.zeros_like(t), nl.empty_like(t), nl.full_like(t, 4)):
            assert (made.shape, made.dtype, made.buffer) == (t.shape, t.dtype, nl.sbuf)
        other = nl.empty_like(t, dtype=nl.bfloat16, buffer=nl.psum, name="other")
        assert (other.dtype, other.buffer, other.name) == (nl.bfloat16, nl.psum, "other")
        out = nl.ndarray(t.shape, t.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.add(nl.full_like(t, 4), nl.zeros_like(t)))
        return out

    assert (outcome(kernel, X) == 4).all()


def test_load_and_store_cast():
    def kernel(x):
        out = nl.ndarray(x.shape, nl.bfloat16, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x, dtype=nl.int32))
        return out

    x = np.array([[0.5, 1.5, 2.5, -3.7, 257.0]], np.float32)
    assert outcome(kernel, x).astype(float).tolist() == [[0, 2, 2, -4, 256]]


def test_one_dimension_loads_as_one_partition():
    def kernel(x):
        t = nl.load(x)
        assert t.shape == (1, 24)
        out = nl.ndarray((1, 24), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, t)
        return out

    assert np.array_equal(outcome(kernel, X[3]), X[3:4])


def test_psum_is_stored_through_sbuf():
    def kernel(x):
        p = nl.ndarray((128, 24), nl.float32, buffer=nl.psum)
        nisa.tensor_copy(p, nl.load(x))
        out = nl.ndarray((128, 24), nl.bfloat16, buffer=nl.shared_hbm)
        nl.store(out, p)
        return out

    assert np.array_equal(outcome(kernel, X), X.astype(BF16))


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.uint8, np.int16])
@pytest.mark.parametrize("cast", [None, nl.float32])
def test_load_transpose2d(dtype, cast):
    x = X.astype(dtype)

    def kernel(a):
        t = nl.load_transpose2d(a, dtype=cast)
        out = nl.ndarray(t.shape, t.dtype, buffer=nl.shared_hbm)
        nl.store(out, t)
        return out

    found = outcome(kernel, x)
    assert found.dtype == (x.dtype if cast is None else np.float32)
    assert np.array_equal(found.astype(np.float64), x.T.astype(np.float64))


@pytest.mark.parametrize("dtype", [np.float32, BF16, ml_dtypes.float8_e5m2, np.int8, np.bool_])
def test_shared_constants_are_the_data(dtype, tmp_path):
    data = (np.arange(40).reshape(8, 5) % 7).astype(dtype)

    def kernel(source):
        c = nl.shared_constant(source)
        assert (c.shape, c.buffer) == ((8, 5), nl.shared_hbm)
        out = nl.ndarray(c.shape, c.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, c)
        return out

    assert np.array_equal(outcome(lambda: kernel(data)), data)
    if dtype in (np.float32, np.int8, np.bool_):  # formats a .npy file can name
        path = tmp_path / "data.npy"
        np.save(path, data)
        assert np.array_equal(outcome(kernel, str(path)), data)


def test_a_constant_that_is_written_keeps_its_data_for_the_next_replay():
    data = np.ones((4, 5), np.float32)

    def kernel(x):
        c = nl.shared_constant(data)
        out = nl.ndarray((4, 5), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.add(nl.load(c), nl.load(x)))
        nl.store(c, nl.load(x))
        return out

    x = np.full((4, 5), 3, np.float32)
    run = nki.run(kernel, x)
    assert (run.outputs == 4).all()
    assert (data == 1).all()
    assert all((held == 1).all() for held in run.program.constants.values())


def test_a_missing_constant_file_is_named():
    with pytest.raises(MissingFileError) as caught:
        nki.run(lambda: nl.shared_constant("no/such.npy"))
    assert caught.value.code == "nki.constant_file"


def test_identity_matrices_are_shared_by_size_and_dtype():
    def kernel():
        first, second = nl.shared_identity_matrix(8, nl.float32), nl.ndarray((8, 8), nl.float32)
        nl.shared_identity_matrix(8, nl.float32, dst=second)
        small = nl.shared_identity_matrix(5)
        assert small.dtype == nl.uint8
        out = nl.ndarray((2, 8, 8), nl.float32, buffer=nl.shared_hbm)
        nl.store(out[0], first)
        nl.store(out[1], second)
        other = nl.ndarray((5, 5), nl.uint8, buffer=nl.shared_hbm)
        nl.store(other, small)
        return out, other

    run = nki.run(kernel)
    assert np.array_equal(run.outputs[0], np.stack([np.eye(8)] * 2))
    assert np.array_equal(run.outputs[1], np.eye(5))
    assert len(run.program.constants) == 2


def test_static_ranges_are_ranges():
    for made in (nl.affine_range, nl.sequential_range, nl.static_range):
        assert list(made(3)) == [0, 1, 2]
        assert list(made(1, 8, 3)) == [1, 4, 7]
        assert list(made(0)) == []

    def kernel():
        nl.affine_range(nisa.register_alloc(3))

    with pytest.raises(UsageError) as caught:
        nki.run(kernel)
    assert caught.value.code == "nki.loop"


def test_ds_is_a_slice_with_a_size():
    def kernel(x):
        out = nl.ndarray((32, 8), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x)[nl.ds(32, 32), nl.ds(4, 8)])
        return out

    assert np.array_equal(outcome(kernel, X), X[32:64, 4:12])


def test_memories_know_what_they_are():
    assert nl.is_hbm("hbm")
    assert nl.is_hbm(nl.private_hbm)
    assert nl.is_hbm(nl.shared_hbm)
    assert not nl.is_hbm(nl.sbuf)
    assert nl.is_psum(nl.psum)
    assert nl.is_sbuf("sbuf")
    assert nl.is_on_chip(nl.psum)
    assert not nl.is_on_chip("private_hbm")
    with pytest.raises(SpaceError) as caught:
        nl.is_hbm("dram")
    assert caught.value.code == "nki.buffer"


def test_at_most_128_partitions_on_chip():
    for buffer in (nl.sbuf, nl.psum):
        with pytest.raises(ShapeError) as caught:
            nki.run(lambda buffer=buffer: nl.ndarray((256, 512), nl.float32, buffer=buffer))
        assert caught.value.code == "nki.partitions"
        assert "256" in caught.value.what
        assert "128" in caught.value.what
        assert caught.value.at.file == __file__
    nki.run(lambda: nl.ndarray((256, 512), nl.float32, buffer=nl.private_hbm).shape and None)


def test_sizes_are_integers():
    with pytest.raises(UsageError) as caught:
        nki.run(lambda: nl.ndarray((64 / 2, 512), nl.float32))
    assert caught.value.code == "view.buffer"


def test_values_can_be_looked_at_while_the_kernel_runs(capsys):
    seen = []

    def kernel(x):
        t = nl.load(x, dtype=nl.bfloat16)
        seen.append(t.numpy())
        nl.device_print("tile", t[0:1, 0:3])
        seen.append(repr(t))
        out = nl.ndarray(x.shape, nl.bfloat16, buffer=nl.shared_hbm)
        nl.store(out, t)
        return out

    nki.run(kernel, X[:2, :3])
    assert seen[0].dtype == BF16
    assert np.array_equal(seen[0], X[:2, :3].astype(BF16))
    assert capsys.readouterr().out.startswith("tile NkiTensor(")
    assert "[2, 3] bfloat16 in sbuf" in seen[1]


def test_program_ids_of_a_single_instance():
    def kernel(x):
        assert (nl.program_id(0), nl.num_programs(), nl.program_ndim()) == (0, 1, 0)
        return x

    nki.run(kernel, X)


def test_assigning_to_a_tile_is_refused_with_the_way_out():
    def kernel(x):
        t = nl.load(x)
        t[0:1, :] = 0.0

    with pytest.raises(UsageError) as caught:
        nki.run(kernel, X)
    assert caught.value.code == "nki.assign"
    assert "nisa.tensor_copy" in caught.value.fix


def test_addresses_outside_the_memory_are_refused():
    for buffer, address in [
        (nl.sbuf, (0, 1 << 20)), (nl.sbuf, (120, 0)), (nl.psum, (0, 16 * 1024 - 4)),
        (nl.sbuf, (0, -64)), (nl.sbuf, (-1, 0)),
    ]:  # fmt: skip
        with pytest.raises(TrnError) as caught:
            nki.run(lambda b=buffer, a=address: nl.ndarray((16, 8), nl.float32, b, address=a))
        assert caught.value.code == "nki.address"


@pytest.mark.parametrize(
    ("buffer", "dtype", "step"),
    [(nl.psum, nl.float32, 4), (nl.psum, nl.bfloat16, 4), (nl.psum, nl.int8, 4)]
    + [(nl.sbuf, nl.float32, 4), (nl.sbuf, nl.bfloat16, 2), (nl.sbuf, nl.int8, 1)],
)
def test_addresses_that_are_not_aligned_are_refused(buffer, dtype, step):
    """Tiles of PSUM begin at multiples of 4 bytes; in SBUF small elements at their own size.

    sbuf_min_align is 4 too, but the NKI Library places tiles of bfloat16 at every even byte.
    """
    for byte in (0, 1, 2, 3, 4, 65, 68):
        at = (32, byte)
        if byte % step == 0:
            done = nki.run(lambda at=at: (nl.ndarray((16, 8), dtype, buffer, address=at), None)[1])
            assert [f.code for f in done.findings] == ["nki.alignment"] * bool(byte % 4)
            continue
        with pytest.raises(UsageError) as caught:
            nki.run(lambda at=at: nl.ndarray((16, 8), dtype, buffer, address=at))
        assert caught.value.code == "nki.address"
        assert caught.value.fix == f"pass (32, {byte // step * step})"
        assert caught.value.at.text.startswith("nki.run(lambda at=at")


def test_addresses_are_two_numbers():
    with pytest.raises(UsageError) as caught:
        nki.run(lambda: nl.ndarray((16, 8), nl.float32, address=(32, 64, 0)))
    assert caught.value.code == "nki.address"
    assert caught.value.fix == "pass (32, 64)"
