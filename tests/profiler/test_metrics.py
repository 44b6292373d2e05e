"""Metrics against numbers worked out by hand, and laws that hold for every real program."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import opentrn.nki as nki
import opentrn.nki.isa as nisa
import opentrn.nki.language as nl
from opentrn import runtime, sim
from opentrn.base import FileFormatError, MissingFileError, UnknownNameError
from opentrn.profiler import METRICS, compare, load_summary, save_summary, summarize, top_lines
from opentrn.profiler.metrics import ABSENT
from tests.profiler import golden, traces
from tests.runtime import kernels


def test_arithmetic_by_hand():
    # One full matmul of 2 x 128 x 128 x 512 flops in 1 us on trn2: the array does
    # 2 x 128 x 128 x 2.4 GHz = 78.6432 TFLOP/s, a quarter of the flops are a transpose.
    made = traces.Maker()
    made.matmul(0, 600)
    made.matmul(600, 800, name="nc_transpose", flops=2 * 128 * 128 * 128)
    made.move(0, 1000, 65536)
    made.move(0, 250, 32768, into="hbm", queue="dma.q1")
    found = summarize(made.trace, "trn2")
    assert found["hardware_flops"] == 16777216 + 4194304
    assert found["transpose_flops"] == 4194304
    assert found["model_flops"] == 16777216
    assert found["mfu_estimated_percent"] == pytest.approx(100 * 16777216 / 78643200)
    assert found["hfu_estimated_percent"] == pytest.approx(100 * 20971520 / 78643200)
    assert found["tensor_engine_active_time_percent"] == pytest.approx(80.0)
    assert found["mm_arithmetic_intensity"] == pytest.approx(16777216 / 98304)
    # A stack gives 2.9 TB/s / 4 = 725 GB/s; 98304 bytes in 1 us are 98.304 GB/s.
    assert found["mbu_estimated_percent"] == pytest.approx(100 * 98.304 / 725)
    assert found["peak_flops_bandwidth_ratio"] == pytest.approx(78643.2 / 725)
    assert found["mfu_max_achievable_estimated_percent"] == pytest.approx(
        100 * (16777216 / 98304) / (78643.2 / 725)
    )
    # The 16 DMA engines of a core carry 23 GB/s each; the flops need less (0.21 us at 79 TFLOP/s).
    assert found["roofline_time"] == pytest.approx(98304 / 368e9)
    assert found["neuroncore_cycle_count"] == 1200


def test_transfers_by_hand():
    made = traces.Maker()
    made.move(0, 100, 8192, issue=(0, 10))
    made.move(50, 150, 4096, issue=(10, 20))
    made.move(200, 300, 2048, into="hbm", queue="dma.q1", issue=(20, 40), issuer="gpsimd")
    found = summarize(made.trace, "trn2")
    assert found["dma_active_time"] == pytest.approx(250e-9)
    assert found["dma_transfer_time"] == pytest.approx(300e-9)
    assert found["dma_transfer_count"] == 3
    assert found["dma_queue_count"] == 2
    assert found["dma_transfer_total_bytes"] == 14336
    assert found["dma_transfer_average_bytes"] == pytest.approx(14336 / 3)
    assert found["dma_bandwidth"] == pytest.approx(14336 / 250e-9)
    assert found["dma_bandwidth_percent"] == pytest.approx(100 * 14336 / 250 / 368)
    assert (found["hbm_read_bytes"], found["hbm_write_bytes"]) == (12288, 2048)
    assert (found["sbuf_write_bytes"], found["sbuf_read_bytes"]) == (12288, 2048)
    # Issue is work of the engine that issues, and its instruction.
    assert found["sync_engine_active_time"] == pytest.approx(20e-9)
    assert found["gpsimd_engine_active_time"] == pytest.approx(20e-9)
    assert found["sync_engine_instruction_count"] == 2


def test_transfers_of_two_sizes_count_as_the_larger():
    made = traces.Maker()
    made.trace.add("dma.q0", "dma_copy", 0, 100, bytes_read=8192, bytes_written=4096, source="hbm",
                   target="sbuf")  # fmt: skip
    made.trace.add("dma.q0", "dma_copy", 100, 200, bytes_read=1024, bytes_written=1024,
                   source="hbm", target="hbm")  # fmt: skip
    made.trace.add("dma.q0", "dma_copy", 200, 300, bytes_read=512, bytes_written=512, source="sbuf",
                   target="sbuf")  # fmt: skip
    found = summarize(made.trace, "trn2")
    assert found["dma_transfer_total_bytes"] == 8192 + 1024 + 512
    assert (found["hbm_read_bytes"], found["hbm_write_bytes"]) == (9216, 1024)
    assert found["sbuf_write_bytes"] == 4096 + 512
    # HBM to HBM is carried once, and what stays on the chip not at all.
    assert found["roofline_time"] == pytest.approx((8192 + 1024) / 368e9)


def test_overlap_on_one_engine_counts_once():
    made = traces.Maker()
    made.work("scalar", 0, 60, name="activation")
    made.work("scalar", 40, 100, name="activation_reduce")
    found = summarize(made.trace, "trn2")
    assert found["scalar_engine_active_time"] == pytest.approx(100e-9)
    assert found["scalar_engine_instruction_time"] == pytest.approx(120e-9)
    assert found["activate_instruction_count"] == 2
    assert found["activate_instruction_time"] == pytest.approx(120e-9)


def test_bytes_over_two_memories():
    made = traces.Maker()
    made.work("vector", 0, 10, source="sbuf+psum", target="sbuf", bytes_read=1000,
              bytes_written=500)  # fmt: skip
    found = summarize(made.trace, "trn2")
    assert (found["sbuf_read_bytes"], found["psum_read_bytes"]) == (500, 500)
    assert found["psum_read_sbuf_write_count"] == 1
    assert found["psum_read_sbuf_write_bytes"] == 500


def test_counters_and_given_values():
    trace = traces.page()
    trace.meta["model_flops"] = 12345
    found = summarize(trace, "trn2", grades={"assumed": 0.25, "stated": 0.75})
    assert found["sbuf_peak_bytes"] == 262144
    assert found["sbuf_peak_percent"] == pytest.approx(100 * 262144 / (212984 * 128))
    assert found["psum_peak_banks"] == 2
    assert found["model_flops"] == 12345
    assert list(found.grades.items()) == [("stated", 0.75), ("assumed", 0.25)]
    assert found["spill_save_bytes"] == found["spill_reload_bytes"] == 0


def test_every_public_metric_is_there_or_says_why_not():
    """Table Summary of the Profile Parquet Schema Reference 7.4.0 (Neuron SDK 2.31.0)."""
    public = (Path(__file__).parent / "public_metrics.txt").read_text().split()
    assert len(public) == 101
    assert [name for name in public if name not in METRICS and name not in ABSENT] == []
    found = summarize(traces.page(), "trn2")
    assert [name for name in public if name not in found and name not in found.absent] == []


def test_the_span_and_what_is_active_in_it():
    made = traces.Maker()
    for start, end in ((100, 300), (200, 400), (600, 700)):
        made.move(start, end, 64)
    found = summarize(made.trace, "trn2")
    assert found["total_exec_time"] == pytest.approx(600e-9)
    assert found["total_active_time"] == pytest.approx(400e-9)
    assert found["total_active_time_percent"] == pytest.approx(100 * 4 / 6)
    assert found["trace_count"] == 3


def test_what_is_absent_says_why():
    found = summarize(traces.engine_bound(), "trn2")
    assert not set(found.absent) & set(found)
    assert set(found) <= set(METRICS)
    assert found.absent["throttle_time"] == ABSENT["throttle_time"]
    with pytest.raises(UnknownNameError, match="needs the program") as raised:
        found["throttle_time"]
    assert raised.value.code == "profiler.metric"
    with pytest.raises(UnknownNameError) as raised:
        found["total_tim"]
    assert "total_time" in raised.value.fix


def test_lines_by_hand():
    rows = top_lines(traces.page())
    assert [line.place for line in rows] == [f"kernel.txt:{n}" for n in (2, 5, 4, 3)]
    matmul = rows[-1]
    assert (matmul.count, matmul.resource) == (8, "tensor")
    assert matmul.busy == pytest.approx(4 * (100 + 213.25) * 1e-9)
    assert matmul.flops == 4 * (16777216 + 4194304)
    # The load of one turn: issue 500, bytes 400, path: its wait for the bytes of the turn before.
    assert rows[0].busy == pytest.approx(4 * 900e-9)
    assert sum(line.path for line in rows) == pytest.approx(traces.page().end * 1e-9)
    assert [line.place for line in top_lines(traces.page(), 2)] == ["kernel.txt:2", "kernel.txt:5"]


def test_lines_off_the_path_are_ordered_by_work():
    made = traces.Maker()
    made.matmul(0, 100, where=traces.line(1))
    made.work("vector", 0, 20, where=traces.line(2))
    made.work("vector", 20, 60, where=traces.line(3))
    assert [line.place[-1] for line in top_lines(made.trace)] == ["1", "3", "2"]


# ---------------------------------------------------------------------- real programs


@nki.jit
def product(x, w):
    """[256, 512] = xT[128, 256].T @ w[128, 512], with one transpose of a block of x."""
    out = nl.ndarray((256, 512), dtype=x.dtype, buffer=nl.shared_hbm)
    right = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=right, src=w)
    for n in range(2):
        left = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=left, src=x[0:128, 128 * n : 128 * n + 128])
        flipped = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=flipped, data=left)
        acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=acc, stationary=left, moving=right)
        copied = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=copied, src=acc)
        summed = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=summed, data1=copied, data2=acc, op=nl.add)
        nisa.dma_copy(dst=out[128 * n : 128 * n + 128, 0:512], src=summed)
    return out


def profiled(dtype):
    ran = nki.run(product, np.ones((128, 256), dtype), np.ones((128, 512), dtype))
    timeline = sim.timeline(ran.program, ran.chip)
    return ran, timeline, summarize(
        timeline.trace(), ran.chip, program=ran.program, grades=timeline.grade_shares()
    )  # fmt: skip


def test_a_real_program_by_hand():
    ran, timeline, found = profiled(ml_dtypes.bfloat16)
    assert found["total_time"] == pytest.approx(timeline.total_ns * 1e-9)
    assert found["hardware_flops"] == 2 * (2 * 128 * 128 * 512 + 2 * 128 * 128 * 128)
    assert found["transpose_flops"] == 2 * 2 * 128 * 128 * 128
    assert found["adjusted_hardware_flops"] == found["hardware_flops"]
    assert found["matmul_instruction_count"] == 2
    assert found["hbm_read_bytes"] == (128 * 512 + 2 * 128 * 128) * 2
    assert found["hbm_write_bytes"] == 256 * 512 * 2
    # PSUM: tensor_copy and tensor_tensor read float32 [128,512]; matmul and transpose write.
    assert found["psum_read_bytes"] == 2 * 2 * 128 * 512 * 4
    assert found["psum_write_bytes"] == 2 * (128 * 512 * 4 + 128 * 128 * 2)
    # SBUF reads: transpose and matmul left, matmul right, tensor_tensor copied, store.
    left, wide = 128 * 128 * 2, 128 * 512 * 2
    assert found["sbuf_read_bytes"] == 2 * (2 * left + wide + wide + wide)
    assert found["sbuf_write_bytes"] == wide + 2 * (left + wide + wide)
    assert found["weight_size_bytes"] == 0
    assert found["inputs_and_weights_size_bytes"] == 128 * 256 * 2 + 128 * 512 * 2
    assert found["inputs_outputs_weights_size_bytes"] == found["inputs_and_weights_size_bytes"] + (
        256 * 512 * 2
    )
    assert found["static_dma_size"] == found["dma_transfer_total_bytes"]
    assert found["hardware_dynamic_dma_size"] == found["software_dynamic_dma_size"] == 0
    assert found.opcodes == ran.program.counts()
    assert found.grades == pytest.approx(timeline.grade_shares())


def test_float32_counts_four_times():
    _, timeline, found = profiled(np.float32)
    assert found["adjusted_hardware_flops"] == 4 * found["hardware_flops"]
    # 2 x 512 columns x 4 passes and two transposes of 128 x 2 passes, at half speed while cold.
    full = (2 * 512 * 4 + 2 * 128 * 2) / 2.4e9
    worked = timeline.engine_busy_ns["tensor"] * 1e-9
    assert found["throttle_time"] == pytest.approx(worked - full)


@nki.jit
def passed_through(x):
    """The transpose of x [128, 128] as a matmul with the identity that only moves bits."""
    out = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    acc = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=acc, stationary=tile, moving=tile, is_transpose=True)
    nisa.tensor_copy(dst=tile, src=acc)
    nisa.dma_copy(dst=out, src=tile)
    return out


def test_a_matmul_that_transposes_is_no_model_work():
    ran = nki.run(passed_through, np.eye(128, dtype=np.float32))
    trace = sim.timeline(ran.program, ran.chip).trace()
    found = summarize(trace, ran.chip, program=ran.program)
    assert found["transpose_flops"] == found["hardware_flops"] == 2 * 128**3
    assert found["model_flops"] == found["mfu_estimated_percent"] == 0
    # Only the program knows.
    assert summarize(trace, ran.chip)["transpose_flops"] == 0


def written(timeline, engine):
    """ns from the start of an instruction of `engine` until its result is visible, merged."""
    events = zip(timeline.instructions, timeline.start, timeline.visible, strict=True)
    spans = [[start, end] for one, start, end in events if getattr(one, "engine", "") == engine]
    total, reach = 0.0, 0.0
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total


def test_device_loops_have_no_gaps_in_their_path():
    x = kernels.floats((128, 4))
    count = np.full((1, 1), 6, np.int32)
    model = runtime.load(kernels.compiled(kernels.as_often_as_told, x, count))
    model(x, count)
    timeline = model.time()
    found = summarize(timeline.trace(), model.device.chip, program=model.program)
    assert found.opcodes["tensor_scalar"] == 6
    assert "unknown" not in found.path
    assert sum(found.path.values()) == pytest.approx(1.0)
    # Branches and register moves count too; results that are still being written add a little.
    least = timeline.engine_busy_ns["vector"]
    most = least + float((timeline.visible - timeline.end).sum())
    assert least < found["vector_engine_active_time"] * 1e9 < most


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32])
def test_laws_of_real_programs(dtype):
    ran, timeline, found = profiled(dtype)
    for name in found:
        kind = METRICS[name]
        assert found.metrics[name].unit == kind.unit
        assert found[name] >= 0
        if kind.unit == "%" and "max_achievable" not in name:
            assert found[name] <= 100.0 + 1e-9, name
    engines = ("tensor", "vector", "scalar", "gpsimd", "sync")
    # Each transfer counts on the engine that issues it, so every instruction counts once.
    counted = sum(found[f"{engine}_engine_instruction_count"] for engine in engines)
    assert counted == len(ran.program) == sum(found.opcodes.values())
    assert found["dma_transfer_count"] == found.opcodes["dma_copy"] == 5
    for engine in ("tensor", "vector", "scalar"):
        active = written(timeline, engine)
        assert active >= timeline.engine_busy_ns[engine]
        assert found[f"{engine}_engine_active_time"] == pytest.approx(active * 1e-9)
    assert found["sync_engine_active_time"] == pytest.approx(timeline.engine_busy_ns["sync"] * 1e-9)
    assert sum(found.path.values()) == pytest.approx(1.0)
    assert "unknown" not in found.path
    steps = [step.index for step in timeline.critical_path()]
    assert len(steps) == len(set(steps))
    assert sum(line.path for line in found.lines) == pytest.approx(found["total_time"])


def test_the_path_is_the_timelines():
    _, timeline, _ = profiled(ml_dtypes.bfloat16)
    from opentrn.profiler.path import critical_path
    from opentrn.profiler.table import table

    read = table(timeline.trace())
    ours = [read.args[piece.row]["index"] for piece in critical_path(read).pieces]
    theirs = [step.index for step in timeline.critical_path()]
    assert ours == theirs


# ---------------------------------------------------------------------- files and pages


def test_a_summary_survives_its_file(tmp_path):
    found = summarize(traces.page(), "trn2")
    path = save_summary(found, tmp_path / "summary.json")
    data = json.loads(path.read_text())
    assert data["schema"] == "opentrn.summary/1"
    assert list(data) == sorted(data)
    assert list(data["metrics"]) == sorted(data["metrics"])
    assert data["metrics"]["total_time"] == {"unit": "s", "value": found["total_time"]}
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]
    back = load_summary(path)
    assert back.json() == found.json()
    assert str(back) == str(found)
    assert found.flat()["psum_peak_banks"] == 2


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": "opentrn.summary/9"}', '"x"'])
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(FileFormatError):
        load_summary(path)
    with pytest.raises(MissingFileError):
        load_summary(tmp_path / "none.json")
    with pytest.raises(MissingFileError):
        save_summary(summarize(traces.page(), "trn2"), tmp_path / "none" / "x.json")


@pytest.mark.parametrize("name", ["report.txt", "report_issue.txt", "compare.txt"])
def test_golden_pages(name):
    text = golden.pages()[name]
    assert text == (golden.FOLDER / name).read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("make", [
    traces.engine_bound, traces.dma_bound, traces.latency_bound, traces.dependency_bound,
    traces.two_full,
])  # fmt: skip
def test_every_page_is_at_most_100_columns(make):
    trace = make()
    trace.meta["program"] = "a kernel with a name " * 8
    assert max(map(len, str(summarize(trace, "trn2")).splitlines())) <= 100


def test_comparison_says_what_changed():
    slow, fast = traces.Maker(), traces.Maker()
    slow.matmul(0, 300)
    slow.work("vector", 300, 400, ("semaphore", 0))
    fast.matmul(0, 100)
    fast.work("vector", 100, 200, ("semaphore", 0))
    text = compare(summarize(slow.trace, "trn2"), summarize(fast.trace, "trn2"))
    assert "the second is 2.00 x as fast; most of it: 200 ns less tensor" in text
    row = next(line for line in text.splitlines() if line.startswith("total_time"))
    assert row.split() == ["total_time", "400", "ns", "200", "ns", "0.50", "x"]
