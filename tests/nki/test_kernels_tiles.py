"""How tensors are cut into tiles, and how long the tuned kernels take in the timing model."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opentrn import nki
from opentrn.base import dtype
from opentrn.hw import target
from opentrn.isa import Builder, view_of
from opentrn.nki import kernels
from opentrn.nki.kernels import tiles
from opentrn.sim import timeline


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_boxes_cover_a_range_once(shape, data):
    size = int(np.prod(shape))
    start = data.draw(st.integers(0, size - 1))
    stop = data.draw(st.integers(start + 1, size))
    numbers, found, at = np.arange(size).reshape(shape), [], start
    for first, count, box in tiles.boxes(tuple(shape), start, stop):
        part = numbers[tuple(slice(a, b) for a, b in box)].reshape(-1)
        assert (first, count) == (at, part.size)
        found += part.tolist()
        at += count
    assert found == list(range(start, stop))


def test_merged_steps_walk_the_same_elements():
    assert tiles.merged([[12, 2], [4, 3], [1, 4]]) == [[1, 24]]
    assert tiles.merged([[12, 2], [1, 4]]) == [[12, 2], [1, 4]]
    assert tiles.merged([[0, 3], [0, 5]]) == [[0, 15]]
    assert tiles.merged([[7, 1], [1, 4], [9, 1]]) == [[1, 4]]
    assert tiles.merged([[7, 1]]) == [[1, 1]]


def test_what_is_made_ahead_is_made_in_order():
    log = []
    made = tiles.ahead("abc", lambda x: log.append(x) or x.upper())
    for item, value in made:
        log.append((item, value))
    assert log == ["a", "b", ("a", "A"), "c", ("b", "B"), ("c", "C")]


def test_stages_lag_behind_each_other():
    log = []
    stages = [(0, lambda x: log.append(f"{x}0")), (2, lambda x: log.append(f"{x}2"))]
    tiles.pipelined(["a", "b", "c"], stages)
    assert log == ["a0", "b0", "c0", "a2", "b2", "c2"]


def recorded(name, kernel, *shapes, kind="bfloat16", **options):
    """The timeline of a kernel on tensors of these shapes."""
    chip, builder = target(name), Builder("test", name)
    views = [view_of(builder.buffer("hbm", shape, dtype(kind))) for shape in shapes]
    return timeline(nki.record(kernel, chip, *views, **options).program, chip)


def test_the_tensor_engine_works_nearly_all_the_time_in_a_large_product():
    found = recorded("trn2", kernels.matmul, (2048, 2048), (2048, 2048))
    assert found.engine_busy_ns["tensor"] / found.total_ns > 0.9
    # 2 · 2048³ operations at 78.6 TFLOP/s take 219 µs.
    assert 219e3 < found.total_ns < 260e3


def test_engines_overlap_in_attention():
    found = recorded("trn2", kernels.attention, *[(2, 12, 512, 64)] * 3)
    busy = found.engine_busy_ns
    # The softmax binds: it streams every score three times, at one element a lane and cycle.
    assert max(busy["vector"], busy["scalar"]) / found.total_ns > 0.7
    assert busy["tensor"] + busy["vector"] + busy["scalar"] > 1.9 * found.total_ns


@pytest.mark.parametrize("name", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize(
    ("kernel", "shapes"),
    [
        (kernels.linear, [(256, 64), (64, 40000), (40000,), (256, 40000)]),
        (kernels.linear, [(300, 640), (640, 8192), (8192,), (300, 8192)]),
        (kernels.linear, [(600, 20000), (20000, 700), (700,), (600, 700)]),
        (kernels.attention, [(1, 1, 256, 128), (1, 1, 16384, 128), (1, 1, 16384, 128)]),
        (kernels.attention, [(1, 2, 130, 128), (1, 2, 4096, 128), (1, 2, 4096, 128),
                             (1, 1, 130, 4096)]),
        (kernels.layer_norm, [(130, 4096), (4096,), (4096,)]),
        (kernels.rms_norm, [(130, 50000), (50000,)]),
        (kernels.softmax, [(130, 4096)]),
    ],
)  # fmt: skip
def test_large_tensors_fit_the_memories(name, kernel, shapes):
    found = recorded(name, kernel, *shapes, kind="float32")
    assert len(found) > 0
