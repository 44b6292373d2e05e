"""Advice: each rule fires where it should, and only there."""

import ml_dtypes
import numpy as np
import pytest

import opentrn.nki as nki
import opentrn.nki.isa as nisa
import opentrn.nki.language as nl
from opentrn import sim
from opentrn.profiler import summarize
from tests.profiler import traces


def codes(trace, **more):
    return [one.code for one in summarize(trace, "trn2", **more).advice]


def busy_tensor(flops):
    """Ten matmuls of 100 ns without a gap."""
    made = traces.Maker()
    for n in range(10):
        made.matmul(100 * n, 100 * n + 100, flops=flops, where=traces.line(3))
    return made.trace


def test_small_matmuls():
    # In 100 ns the array could do 7.86 MFLOP.
    assert codes(busy_tensor(4_000_000)) == []
    assert codes(busy_tensor(3_800_000)) == ["small_matmuls"]
    found = summarize(busy_tensor(3_800_000), "trn2").advice[0]
    assert found.line == "kernel.txt:3"
    assert "48 % of its BF16 peak" in found.seen


def moving(nbytes):
    made = traces.Maker()
    for n in range(5):
        made.move(100 * n, 100 * n + 100, nbytes)
    return made.trace


def test_slow_and_small_transfers():
    # At 368 GB/s, 100 ns carry 36,800 bytes; half of it is 18,400; small is below 32,768.
    assert codes(moving(36000)) == []
    assert codes(moving(32000)) == ["small_transfers"]
    assert codes(moving(18000)) == ["slow_transfers", "small_transfers"]  # by gain


def test_work_that_does_not_overlap():
    assert codes(traces.dependency_bound()) == ["overlap"]
    assert codes(traces.latency_bound()) == ["small_transfers"]  # one turn has no next tile


def test_the_fastest_dtype_makes_the_roofline():
    @nki.jit
    def mixed(a, b):
        out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
        for x in (a, b):
            tile = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x)
            acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
            for _ in range(60):
                nisa.nc_matmul(dst=acc, stationary=tile[:, 0:128], moving=tile)
        copied = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=copied, src=acc)
        nisa.dma_copy(dst=out, src=copied)
        return out

    ran = nki.run(mixed, np.ones((128, 512), np.float32), np.ones((128, 512), ml_dtypes.bfloat16))
    trace = sim.timeline(ran.program, ran.chip).trace()
    found = summarize(trace, ran.chip, program=ran.program)
    flops = 120 * 2 * 128 * 128 * 512
    assert found["hardware_flops"] == flops
    assert found["adjusted_hardware_flops"] == flops * 5 / 2  # half of it counts four times
    # The stated bfloat16 peak of a core.
    assert found["roofline_time"] == pytest.approx(flops / 79e12)
    assert "throttle" not in [one.code for one in found.advice]


def test_a_cold_clock_is_named():
    @nki.jit
    def short(x):
        out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
        tile = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
        for _ in range(30):
            nisa.nc_matmul(dst=acc, stationary=tile[:, 0:128], moving=tile)
        copied = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=copied, src=acc)
        nisa.dma_copy(dst=out, src=copied)
        return out

    ran = nki.run(short, np.ones((128, 512), ml_dtypes.bfloat16))
    trace = sim.timeline(ran.program, ran.chip).trace()
    found = summarize(trace, ran.chip, program=ran.program)
    # 30 x 512 cycles are 6.4 us.  The first window of 3.4 us ends after little work, so the second
    # is at half speed as well: up to 3.4 us of work take twice their time.
    lost = found["throttle_time"] / found["tensor_engine_active_time"]
    assert 0.1 < lost < 0.35
    assert "throttle" in [one.code for one in found.advice]


@nki.jit
def by_three_ways(x):
    out = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile[:, 0:16], src=x[:, 0:16], dge_mode=nisa.dge_mode.hwdge)
    nisa.dma_copy(dst=tile[:, 16:48], src=x[:, 16:48], dge_mode=nisa.dge_mode.swdge)
    nisa.dma_copy(dst=tile[:, 48:64], src=x[:, 48:64])
    nisa.dma_copy(dst=out, src=tile)
    return out


def test_who_makes_the_descriptors():
    ran = nki.run(by_three_ways, np.ones((128, 64), np.float32))
    trace = sim.timeline(ran.program, ran.chip).trace()
    found = summarize(trace, ran.chip, program=ran.program)
    assert found["hardware_dynamic_dma_size"] == 128 * 16 * 4
    assert found["software_dynamic_dma_size"] == 128 * 32 * 4
    assert found["static_dma_size"] == 128 * (16 + 64) * 4
    shares = [found[f"{who}_dma_size_percent"] for who in
              ("hardware_dynamic", "software_dynamic", "dynamic", "static")]  # fmt: skip
    assert shares == [12.5, 25.0, 37.5, 62.5]
    assert found["input_queue_bytes"] == found["output_queue_bytes"] == 128 * 64 * 4
    assert found["weight_queue_bytes"] == 0
    parts = [found[f"{who}_dma_active_time"] for who in
             ("hardware_dynamic", "software_dynamic", "static")]  # fmt: skip
    assert max(parts) <= found["dma_active_time"] <= sum(parts) + 1e-15
