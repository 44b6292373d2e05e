"""The Tensor Engine's instructions: values, limits by generation, costs."""

import numpy as np
import pytest

from opentrn.base import DtypeError, LimitError, ShapeError, SpaceError, UsageError
from opentrn.isa.enums import engine, matmul_perf_mode
from opentrn.isa.tensor import nc_matmul, nc_transpose
from tests.isa.vector_forms import BF16, F32, carrier, cycles, make, refuse, tile

RNG = np.random.default_rng(0)
DOUBLE = matmul_perf_mode.double_row
TARGETS = pytest.mark.parametrize("on", ["trn1", "trn2", "trn3"])


def product(k=128, m=128, n=512, t=BF16, on="trn2", into=F32, **more):
    pair = (2,) if more.get("perf_mode") in (DOUBLE, "double_row") else ()
    return make(
        nc_matmul,
        on=on,
        dst=tile(m, n, t=into, space="psum"),
        stationary=tile(k, *pair, m, t=t),
        moving=tile(k, *pair, n, t=t),
        **more,
    )


@pytest.mark.parametrize(("k", "m", "n"), [(128, 128, 512), (1, 1, 1), (7, 33, 65), (128, 1, 512)])
@pytest.mark.parametrize("t", [BF16, F32, "float16", "float8_e4m3", "float8_e5m2"])
def test_values_are_those_of_float64(k, m, n, t):
    w, x = (carrier(RNG.normal(size=shape), t) for shape in ((k, m), (k, n)))
    found = product(k, m, n, t).run(stationary=w, moving=x)["dst"]
    wanted = w.astype(np.float64).T @ x.astype(np.float64)
    bound = 1e-6 * (np.abs(w).astype(np.float64).T @ np.abs(x)) + 1e-30
    assert found.dtype == np.float32
    assert (np.abs(found - wanted) <= bound).all()


def test_double_rows_contract_both_halves():
    w = carrier(RNG.integers(-8, 9, (64, 2, 32)), "float8_e4m3")
    x = carrier(RNG.integers(-8, 9, (64, 2, 48)), "float8_e4m3")
    form = product(64, 32, 48, "float8_e4m3", perf_mode=DOUBLE)
    wanted = np.einsum("kim,kin->mn", w.astype(np.float64), x)
    assert np.array_equal(form.run(stationary=w, moving=x)["dst"], wanted)
    assert form.flops() == 2 * (2 * 64) * 32 * 48
    named = product(64, 32, 48, "float8_e4m3", perf_mode="double_row")
    assert named.perf_mode is DOUBLE


def test_products_go_into_the_array_that_is_given():
    w, x = RNG.integers(-4, 5, (8, 6)), RNG.integers(-4, 5, (8, 10))
    out = np.full((6, 20), -1, np.float32)[:, ::2]
    made = product(8, 6, 10, F32).run(w.astype(np.float32), x.astype(np.float32), out=out)
    assert made["dst"] is out
    assert np.array_equal(out, w.T @ x)


@TARGETS
def test_limits_by_generation(on):
    most = 4096 if on == "trn3" else 512
    assert product(n=512, on=on).N == 512
    text = refuse(LimitError, "nc_matmul.N", lambda: product(n=most + 1, on=on))
    assert f"at most {most} on {on}" in text
    refuse(LimitError, "nc_matmul.M", lambda: product(m=129, on=on))
    refuse(LimitError, "nc_matmul.K", lambda: product(k=129, on=on))


def test_sizes_must_agree_and_spaces_be_right():
    psum, left = tile(64, 96, space="psum"), tile(128, 64)
    refuse(
        ShapeError,
        "nc_matmul.moving",
        lambda: make(nc_matmul, dst=psum, stationary=left, moving=tile(64, 96)),
    )
    refuse(
        ShapeError,
        "nc_matmul.moving",
        lambda: make(nc_matmul, dst=psum, stationary=left, moving=tile(128, 90)),
    )
    refuse(
        SpaceError,
        "nc_matmul.dst",
        lambda: make(nc_matmul, dst=tile(64, 96), stationary=left, moving=tile(128, 96)),
    )
    refuse(
        SpaceError,
        "nc_matmul.stationary",
        lambda: make(
            nc_matmul, dst=psum, stationary=tile(128, 64, space="psum"), moving=tile(128, 96)
        ),
    )
    refuse(DtypeError, "nc_matmul.stationary.dtype", lambda: product(t="int8"))
    refuse(UsageError, "nc_matmul.stationary",
           lambda: make(nc_matmul, dst=psum, stationary=None, moving=tile(128, 96)))  # fmt: skip


@pytest.mark.parametrize(
    ("left", "right", "fine"),
    [(F32, F32, True), (F32, "tfloat32", True), (F32, BF16, False), (BF16, "float16", True),
     ("float8_e4m3", "float8_e5m2", True), ("float8_e4m3", BF16, True), ("tfloat32", BF16, False)],
)  # fmt: skip
def test_pairs_of_dtypes(left, right, fine):
    def pair():
        return make(
            nc_matmul,
            dst=tile(128, 512, space="psum"),
            stationary=tile(128, 128, t=left),
            moving=tile(128, 512, t=right),
        )

    if fine:
        pair()
    else:
        assert "float32" in refuse(LimitError, "nc_matmul.rules", pair)


def test_a_result_crosses_no_bank_before_trn3():
    def across(on):
        dst = tile(128, 256, space="psum", offset=1028)
        return make(nc_matmul, on=on, dst=dst, stationary=tile(128, 128), moving=tile(128, 256))

    assert "one PSUM bank of 2048" in refuse(LimitError, "nc_matmul.rules", lambda: across("trn2"))
    across("trn3")


def test_double_row_needs_fp8_and_the_third_generation():
    refuse(LimitError, "nc_matmul.rules", lambda: product(t=BF16, perf_mode=DOUBLE))
    refuse(
        LimitError, "nc_matmul.rules", lambda: product(t="float8_e4m3", on="trn1", perf_mode=DOUBLE)
    )


def test_tiles_of_the_array():
    part = {"tile_position": (32, 64), "tile_size": (32, 64)}
    assert product(32, 64, on="trn2", **part).K == 32
    refuse(LimitError, "nc_matmul.K", lambda: product(33, 64, **part))
    refuse(LimitError, "nc_matmul.M", lambda: product(32, 65, **part))
    refuse(LimitError, "nc_matmul.rules", lambda: product(32, 64, tile_size=(32, 64)))
    refuse(
        LimitError,
        "nc_matmul.rules",
        lambda: product(32, 64, tile_size=(32, 64), tile_position=(16, 0)),
    )
    refuse(
        LimitError,
        "nc_matmul.rules",
        lambda: product(48, 64, tile_size=(48, 64), tile_position=(0, 0)),
    )


def test_cycles_of_a_product():
    assert cycles(product()) == pytest.approx(512)
    assert cycles(product(n=16)) == pytest.approx(64)
    assert cycles(product(m=8, n=4)) == pytest.approx(8)
    assert cycles(product(t=F32)) == pytest.approx(4 * 512)
    assert cycles(product(t=F32, is_moving_onezero=True)) == pytest.approx(2 * 512)
    assert product().cost.background_ns == pytest.approx(
        128 / 4 / product().chip.tensor.clock * 1e9
    )
    assert product().flops() == 2 * 128 * 128 * 512


@pytest.mark.parametrize("t", [F32, BF16, "uint8", "int32"])
def test_transposes(t):
    data = carrier(RNG.integers(0, 100, (128, 3, 16)), t)
    form = make(nc_transpose, dst=tile(48, 128, t=t, space="psum"), data=tile(128, 3, 16, t=t))
    assert form.engine_name == "tensor"
    found = form.run(data=data)["dst"]
    assert np.array_equal(found, data.reshape(128, 48).T)


def test_the_engine_of_a_transpose():
    small = make(nc_transpose, dst=tile(16, 32), data=tile(32, 16))
    assert small.engine_name == "vector"
    assert cycles(small) == pytest.approx(64)
    named = make(
        nc_transpose, dst=tile(16, 32, space="psum"), data=tile(32, 16), engine=engine.vector
    )
    assert named.engine_name == "vector"
    refuse(
        LimitError,
        "nc_transpose.rules",
        lambda: make(nc_transpose, dst=tile(64, 32), data=tile(32, 64)),
    )
    refuse(
        LimitError,
        "nc_transpose.F",
        lambda: make(nc_transpose, dst=tile(64, 32), data=tile(32, 64), engine=engine.vector),
    )
    refuse(
        LimitError,
        "nc_transpose.rules",
        lambda: make(nc_transpose, dst=tile(16, 32), data=tile(32, 16), engine=engine.tensor),
    )
    refuse(
        UsageError,
        "nc_transpose.engine",
        lambda: make(nc_transpose, dst=tile(16, 32), data=tile(32, 16), engine=engine.scalar),
    )
    refuse(
        LimitError,
        "nc_transpose.rules",
        lambda: make(nc_transpose, dst=tile(16, 32, t=BF16), data=tile(32, 16)),
    )
    refuse(ShapeError, "nc_transpose.data",
           lambda: make(nc_transpose, dst=tile(32, 16), data=tile(32, 16)))  # fmt: skip
