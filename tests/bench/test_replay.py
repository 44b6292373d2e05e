"""Traced instruction streams: how long they take here and there, alone and together."""

import json
import statistics

import pytest

from bench import replay
from opentrn import hw

STREAMS = replay.streams()
CHIP = hw.chip("trn2")


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_a_replayed_stream_is_within_a_tenth_of_the_traced_one(path):
    found = replay.replay(path)
    assert found.ours == pytest.approx(found.traced, rel=0.10)
    # A profiler's total counts what surrounds the kernel: 13.3 + 1.7 us in these ten runs.
    around = (CHIP.launch.begin + CHIP.launch.end) * 1e9
    assert around == pytest.approx(15_200, rel=0.02)
    assert found.ours + around == pytest.approx(found.traced + around, rel=0.10)


def durations(opcode: str, engine: str, elements: int, space: str, which: str):
    """Ours and the traced medians, from start to readable result, over streams with `which`."""
    ours, traced = [], []
    for path in STREAMS:
        if which not in path.stem:
            continue
        found = replay.replay(path)
        for step, start, visible in zip(found.steps, found.start, found.visible, strict=True):
            alike = (step.engine, step.elements, step.space) == (engine, elements, space)
            if step.opcode == opcode and alike:
                ours.append(visible - start)
                traced.append(step.duration_ns)
    return statistics.median(ours), statistics.median(traced)


@pytest.mark.parametrize(
    ("opcode", "engine", "elements", "space"),
    [
        ("COPY", "scalar", 512, "psum"),
        ("ACTIVATE", "scalar", 512, "psum"),
        ("ACTIVATE", "scalar", 512, "sbuf"),
        ("CAST", "scalar", 128, "psum"),
        ("COPY", "vector", 512, "psum"),
        ("TENSOR_REDUCE", "vector", 512, "psum"),
        ("TENSOR_REDUCE", "vector", 512, "sbuf"),
        ("TENSOR_REDUCE", "vector", 8, "sbuf"),
        ("TENSOR_SCALAR", "vector", 512, "sbuf"),
        ("TENSOR_SCALAR", "vector", 128, "psum"),
        ("MATMUL", "tensor", 128, "sbuf"),
        ("MATMUL", "tensor", 512, "sbuf"),
    ],
)
def test_instruction_medians_of_the_streams_that_check_are_within_a_tenth(
    opcode, engine, elements, space
):
    ours, traced = durations(opcode, engine, elements, space, replay.CHECKS)
    assert ours == pytest.approx(traced, rel=0.10)


def test_a_stream_is_read_out_of_a_profile(tmp_path):
    def one(subgroup, opcode, timestamp, duration, operands):
        return {"subgraph": "sg00", "subgroup": subgroup, "opcode": opcode,
                "timestamp": timestamp, "duration": duration, "operands": operands}  # fmt: skip

    page = {
        "layer_summary": [{"name": "/sg00/Unknown", "start": 100, "end": 5000}],
        "instruction": [
            one("Sync", "DMA_DIRECT2D", 100, 541, "semaphore=8 sem_increment=16 src_elem_size=512 "
                "dst_elem_size=512 src_pattern=[512,1][128,1] src_addr_imm=0x8005"),
            one("Vector", "DRAIN", 150, 3, ""),
            one("Vector", "COPY", 2000, 690, "S[8] (qSync)>=16 S[6] (Vector)++@complete "
                "src=fp32@0x2000000[1,1][512,1] dst=fp32@0x4000[1,1][512,1]"),
            one("Scalar", "ACTIVATE", 2730, 707, "S[6] (Vector)>=1 "
                "src=fp32@0x4000[1,1][256,2] dst=bfloat16@0x8000[1,1][256,2]"),
        ],
    }  # fmt: skip
    trace, out = tmp_path / "trace.json", tmp_path / "stream.csv"
    trace.write_text(json.dumps(page), encoding="utf-8")
    replay.extract(trace, out)
    dma, copy, exp, end = replay.read(out)
    assert (dma.engine, dma.descriptors, dma.bytes, dma.target) == ("sync", 128, 512, "sbuf")
    assert (copy.opcode, copy.elements, copy.space, copy.after) == ("COPY", 512, "psum", (0,))
    assert (exp.elements, exp.space, exp.target, exp.after) == (512, "sbuf", "bfloat16", (1,))
    assert (end.opcode, end.start_ns) == ("END", 4900)
