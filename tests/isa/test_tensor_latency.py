"""How long after its last column a Tensor Engine result can be read: the measured 165 ns."""

import pytest

from opentrn.isa.enums import engine
from opentrn.isa.tensor import nc_matmul, nc_transpose
from tests.isa.vector_forms import BF16, F32, make, tile, visible


@pytest.mark.parametrize("kind", [BF16, F32])
def test_a_product_is_visible_165_ns_after_its_last_column(kind):
    done = make(
        nc_matmul,
        dst=tile(128, 512, space="psum"),
        stationary=tile(128, 128, t=kind),
        moving=tile(128, 512, t=kind),
    )
    assert done.cost.latency_ns == pytest.approx(165)


def test_an_instruction_of_a_cold_engine_lasts_as_in_the_traces():
    # 584.5 ns: median of 40 bfloat16 MATMUL of N = 512 in public traces; cold is half rate.
    one = make(
        nc_matmul,
        dst=tile(128, 512, space="psum"),
        stationary=tile(128, 128, t=BF16),
        moving=tile(128, 512, t=BF16),
    )
    assert 2 * one.cost.busy_ns + one.cost.latency_ns == pytest.approx(584.5, rel=0.02)


def test_transposes_wait_for_the_engine_that_makes_them():
    on_tensor = make(
        nc_transpose, dst=tile(128, 128, t=BF16, space="psum"), data=tile(128, 128, t=BF16)
    )
    assert on_tensor.cost.latency_ns == pytest.approx(165)
    # 32 columns take the least of 64 cycles at 0.96 GHz; 152 ns is the Vector Engine's latency.
    on_vector = make(nc_transpose, dst=tile(32, 32), data=tile(32, 32), engine=engine.vector)
    assert visible(on_vector) == pytest.approx(64 / 0.96 + 152)
