"""What users ask first: how small transfers hurt, and which of three times they are looking at."""

import numpy as np
import pytest

import opentrn.nki as nki
import opentrn.nki.isa as nisa
import opentrn.nki.language as nl
from opentrn import hw
from opentrn.base import float32
from opentrn.isa import Buffer, view_of
from opentrn.profiler import profile
from opentrn.sim import timeline

N = 25_600


def add_rows(a, b, chunk):
    """out = a + b on vectors as [N, 1], so many rows at a time."""
    return add(a, b, [nl.ds(m, chunk) for m in range(0, N, chunk)], (chunk, 1), (N, 1))


def add_blocks(a, b, free):
    """out = a + b on vectors as [blocks, 128, free]."""
    shape = (N // (128 * free), 128, free)
    return add(a.reshape(shape), b.reshape(shape), range(shape[0]), (128, free), shape)


def add(a, b, parts, tile, shape):
    out = nl.ndarray(shape, a.dtype, buffer=nl.shared_hbm)
    for part in parts:
        x, y, z = (nl.ndarray(tile, a.dtype, buffer=nl.sbuf) for _ in range(3))
        nisa.dma_copy(dst=x, src=a[part])
        nisa.dma_copy(dst=y, src=b[part])
        nisa.tensor_tensor(dst=z, data1=x, data2=y, op=nl.add)
        nisa.dma_copy(dst=out[part], src=z)
    return out


KERNELS = ((add_rows, 1), (add_rows, 128), (add_blocks, 2), (add_blocks, 200))


@pytest.fixture(scope="module", params=["trn1", "trn2", "trn3"])
def sums(request):
    """Profiles of the four sums on a chip, coarser and coarser."""
    chip = hw.chip(request.param)
    given = [view_of(Buffer(n, "hbm", (N, 1), float32, kind="input")) for n in range(2)]
    programs = [nki.record(kernel, chip, *given, size).program for kernel, size in KERNELS]
    return [profile(timeline(program, chip)) for program in programs]


def test_coarser_transfers_are_fewer_and_always_quicker(sums):
    assert [one.summary["dma_transfer_count"] for one in sums] == [76_800, 600, 300, 3]
    times = [one.summary["total_time"] for one in sums]
    assert times == sorted(times, reverse=True)
    assert times[0] > 10 * times[1]


def test_four_bytes_a_transfer_are_bound_by_their_overhead(sums):
    first = sums[0].summary
    assert "issue DMA transfers" in first.bound.reason
    assert {"issue", "small_transfers"} <= {one.code for one in first.advice}
    assert first["dma_bandwidth_percent"] < 1.0


def test_the_fixed_cost_and_the_peak_are_those_of_the_documents(sums):
    """1.3 us until the first byte moves; 16 engines of 17, 23 and 33 GB/s."""
    chip, last = sums[-1].chip, sums[-1]
    rows = [r for r, name in enumerate(last.table.name) if name == "dma_copy"]
    issued = min(last.table.start[r] for r in rows if last.table.issue[r])
    moved = min(last.table.start[r] for r in rows if not last.table.issue[r])
    assert moved - issued == pytest.approx(1300)
    peak = {"trn1": 272e9, "trn2": 368e9, "trn3": 528e9}[chip.name]
    assert chip.dma.engines * chip.dma.engine_rate == pytest.approx(peak)


@pytest.mark.parametrize(("run", "least", "most"), [(512, 0, 0.5), (2048, 0.8, 1), (8192, 0.9, 1)])
def test_runs_of_two_kib_come_near_the_peak(run, least, most):
    """Long streams of [128, run] bytes: the share of 368 GB/s that they reach on trn2."""

    def stream(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        for n in range(x.shape[0]):
            tile = nl.ndarray(x.shape[1:], x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x[n])
        nisa.dma_copy(dst=out[0], src=tile)
        return out

    chip = hw.chip("trn2")
    given = view_of(Buffer(0, "hbm", (64, 128, run // 4), float32, kind="input"))
    found = profile(timeline(nki.record(stream, chip, given).program, chip)).summary
    assert least <= found["dma_bandwidth"] / 368e9 <= most


# ------------------------------------------------------------------ which time is it?


@nki.jit
def product(a, b):
    """One matmul of 128 x 128 x 512, loads and store included."""
    out = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
    left, right = nl.load(a), nl.load(b)
    acc = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=acc, stationary=left, moving=right)
    done = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=done, src=acc)
    nl.store(out, done)
    return out


def test_device_library_and_host_times_are_three_numbers():
    a, b = np.ones((128, 128), np.float32), np.ones((128, 512), np.float32)
    told = profile(nki.run(product, a, b).timeline()).summary
    metrics = told.json()["metrics"]
    names = ("total_time", "device_run_time", "library_load_time", "host_launch_time")
    times = {name: metrics[name]["value"] for name in names}
    # A float32 matmul is four passes of 512 rows: 0.85 us, 1.7 cold; the rest are transfers.
    assert metrics["tensor_engine_active_time"]["value"] < 3e-6
    assert times["total_time"] < 12e-6
    assert times["device_run_time"] == pytest.approx(times["total_time"] + 15.2e-6)
    assert times["library_load_time"] == pytest.approx(1e-3)
    assert 50e-6 < times["host_launch_time"] < 200e-6
    text = " ".join(str(told).split())
    assert "the first one also loads libraries, 1.00 ms" in text
    assert "the host adds 120 us to each call" in text


def test_cold_warm_and_a_hundred_times_are_one_device_time():
    """The model has no state between runs: what differs on a machine is the library load."""
    a, b = np.ones((128, 128), np.float32), np.ones((128, 512), np.float32)
    first = nki.run(product, a, b).timeline().total_ns
    assert {nki.run(product, a, b).timeline().total_ns for _ in range(5)} == {first}
