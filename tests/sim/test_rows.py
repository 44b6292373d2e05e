"""What the clock is told of a form: dispatch between instructions, ports, PE cells, tables."""

import pytest

from opentrn.base import bfloat16, float32
from opentrn.hw import chip
from opentrn.isa import engine as engines
from opentrn.isa import view_of
from opentrn.sim.rows import PSUM_PORT, SBUF_PORT, row_of
from opentrn.sim.timeline import prepare, timeline
from tests.sim.programs import TRN2, Writer

TRN1, TRN3 = chip("trn1"), chip("trn3")


def row(name: str, target=TRN2, **given):
    """The row of one instruction on given (space, shape, dtype) tiles."""
    w = Writer(target)
    tiles = {n: w.buffer(*t) if isinstance(t, tuple) else t for n, t in given.items()}
    return row_of(w.add(name, **tiles).form, target)


def sbuf(*shape, dtype=float32):
    return ("sbuf", shape, dtype)


def psum(*shape, dtype=float32):
    return ("psum", shape, dtype)


# Profiles of trn2 (hw/chips/trn2.toml, kernel-profiles): ns from start to start of two independent
# instructions that follow each other, and from start to the readable result.
TRACED = [
    ("tensor_copy", {"dst": sbuf(128, 512), "src": psum(128, 512), "engine": engines.vector},
     598, 690),
    ("tensor_reduce", {"dst": sbuf(128, 1), "data": sbuf(128, 512), "op": "maximum", "axis": 1},
     603, 685),
    ("tensor_scalar", {"dst": sbuf(128, 512), "data": sbuf(128, 512), "op0": "multiply",
                       "operand0": sbuf(128, 1), "engine": engines.vector}, 396, 481),
    ("tensor_scalar", {"dst": sbuf(128, 128), "data": psum(128, 128), "op0": "multiply",
                       "operand0": sbuf(128, 1), "engine": engines.vector}, None, 349.5),
    ("tensor_copy", {"dst": sbuf(128, 512), "src": psum(128, 512), "engine": engines.scalar},
     474, 585),
    ("tensor_copy", {"dst": sbuf(128, 128), "src": psum(128, 128), "engine": engines.scalar},
     157, 265),
    ("activation", {"dst": sbuf(128, 512), "op": "exp", "data": psum(128, 512),
                    "bias": sbuf(128, 1)}, 570, 686),
    ("activation", {"dst": sbuf(128, 512), "op": "exp", "data": sbuf(128, 512),
                    "bias": sbuf(128, 1)}, 612, 707),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "apart", "lasts"), TRACED)
def test_instructions_last_and_follow_each_other_as_in_profiles(name, given, apart, lasts):
    found = row(name, **given)
    assert found.busy + found.latency == pytest.approx(lasts, rel=0.03)
    if apart is not None:
        assert found.busy == pytest.approx(apart, rel=0.04)


def test_trn1_dispatch_is_what_was_measured_there():
    # 523 cycles each for [128,512] with an operand in PSUM, 102 for [128,64] by a tile (1.12 GHz).
    split = row("tensor_tensor", TRN1, dst=sbuf(128, 512), data1=sbuf(128, 512),
                data2=psum(128, 512), op="add")  # fmt: skip
    assert split.busy == pytest.approx(523 / 1.12)
    small = row("tensor_scalar", TRN1, dst=sbuf(128, 64), data=sbuf(128, 64), op0="multiply",
                operand0=sbuf(128, 1), engine=engines.vector)  # fmt: skip
    assert small.busy == pytest.approx(102 / 1.12)


def test_tiny_instructions_take_the_least_interval():
    found = row("tensor_copy", dst=sbuf(128, 1), src=psum(128, 1), engine=engines.vector)
    assert found.busy == pytest.approx(64 / 0.96)


# ---------------------------------------------------------------------- shared ports


def ports(target, engine, src, dst):
    found = row("tensor_copy", target, dst=dst, src=src, engine=engine)
    return found.ports, found.banks


def test_trn1_engines_exclude_each_other_from_sbuf_and_psum():
    inside = (sbuf(128, 64), sbuf(128, 64))
    out_of_psum = (psum(128, 64), sbuf(128, 64))
    assert ports(TRN1, engines.vector, *inside) == (SBUF_PORT, False)
    assert ports(TRN1, engines.gpsimd, *inside) == (SBUF_PORT, False)
    assert ports(TRN1, engines.vector, *out_of_psum) == (SBUF_PORT | PSUM_PORT, False)
    exp = row("activation", TRN1, dst=sbuf(128, 64), op="exp", data=psum(128, 64))
    assert exp.ports == PSUM_PORT


def test_later_generations_share_a_bus_in_fast_modes_and_psum_banks():
    half = (sbuf(128, 64, dtype=bfloat16), sbuf(128, 64, dtype=bfloat16))
    scattered = (psum(128, 64), sbuf(128, 64))
    for target in (TRN2, TRN3):
        assert ports(target, engines.vector, *half) == (SBUF_PORT, False)
        assert ports(target, engines.gpsimd, *half) == (SBUF_PORT, False)
        assert ports(target, engines.vector, *scattered) == (0, True)
    pair = {"dst": sbuf(128, 64), "data1": sbuf(128, 64), "data2": sbuf(128, 64), "op": "add"}
    assert row("tensor_tensor", **pair).ports == 0  # float32: no fast mode
    halves = {n: sbuf(128, 64, dtype=bfloat16) for n in ("dst", "data1", "data2")}
    assert row("tensor_tensor", **halves, op="add").ports == SBUF_PORT


def both_engines(target, dtype):
    """The Vector Engine and GpSimd each copy tiles of their own."""
    w = Writer(target)
    for engine in (engines.vector, engines.gpsimd):
        a, b = w.buffer("sbuf", (128, 2048), dtype), w.buffer("sbuf", (128, 2048), dtype)
        w.add("memset", dst=view_of(a)[:, 0:64], value=0.0, engine=engine)
        w.copy(b, a, engine=engine)
    t = timeline(w.program(), target)
    copies = [k for k, one in enumerate(t.instructions) if one.opcode == "tensor_copy"]
    (a0, a1), (b0, b1) = ((t.start[k], t.end[k]) for k in copies)
    return min(a1, b1) - max(a0, b0)


def test_vector_and_gpsimd_copy_in_turn_or_together():
    assert both_engines(TRN1, float32) <= 0.0
    assert both_engines(TRN2, bfloat16) <= 0.0  # four elements a cycle: on the shared bus
    assert both_engines(TRN3, bfloat16) <= 0.0


def drained(same_bank: bool):
    """The Vector and the Scalar Engine each copy 256 columns out of PSUM."""
    w = Writer(TRN2)
    tiles = [w.buffer("psum", (128, 256), float32, address=at) for at in
             (0, 1024 if same_bank else 2048)]  # fmt: skip
    for tile in tiles:
        w.add("memset", dst=view_of(tile)[:, 0:1], value=0.0)
    for tile, engine in zip(tiles, (engines.vector, engines.scalar), strict=True):
        w.copy(w.buffer("sbuf", (128, 256), float32), tile, engine=engine)
    return timeline(w.program(), TRN2)


def test_vector_and_scalar_meet_in_a_psum_bank_or_pass():
    apart, together = drained(False), drained(True)
    assert apart.start[3] < apart.end[2]
    assert together.start[3] >= together.end[2]
    assert together.binding[3] == (2, "port")


# ---------------------------------------------------------------------- PE cells, tables, HBM


def tiles_of_the_array(parts):
    """Multiplies of 32 rows in row tiles 0, 32, 64 and 96, or one after another in tile 0."""
    w = Writer(TRN2)
    left = [w.buffer("sbuf", (32, 128)) for _ in range(4)]
    right = [w.buffer("sbuf", (32, 512)) for _ in range(4)]
    for tile in reversed((*left, *right)):  # the first multiply waits longest
        w.add("memset", dst=tile, value=0.0)
    for k in range(4):
        acc = w.buffer("psum", (128, 512), float32)
        w.add("nc_matmul", dst=acc, stationary=left[k], moving=right[k],
              tile_position=(32 * k if parts else 0, 0), tile_size=(32, 128))  # fmt: skip
    t = timeline(w.program(), TRN2)
    return [k for k, one in enumerate(t.instructions) if one.opcode == "nc_matmul"], t


def test_row_tiles_of_the_array_multiply_side_by_side():
    rows, t = tiles_of_the_array(parts=True)
    starts = [t.start[k] for k in rows]
    # 64 cycles of 2.4 GHz between starts, while each multiply takes 512 (at half speed 1024).
    assert starts[3] - starts[0] == pytest.approx(3 * 64 / 2.4)
    rows, t = tiles_of_the_array(parts=False)
    assert t.start[rows[3]] - t.start[rows[0]] >= 3 * 512 / 2.4


def test_a_change_of_function_loads_its_table():
    w = Writer(TRN2)
    tile = w.buffer("sbuf", (128, 64), float32)
    w.add("memset", dst=tile, value=0.0)
    for op in ("exp", "exp", "relu", "exp", "tanh", "exp"):
        w.add("activation", dst=w.buffer("sbuf", (128, 64), float32), op=op, data=tile)
    setup = prepare(w.program(), TRN2).columns.setup.tolist()
    # relu is in every set; the first exp, tanh and the exp after it load one.
    assert setup == [0, 1283, 0, 0, 0, 1283, 1283]


def test_a_core_alone_has_its_stack_of_hbm():
    load = row("dma_copy", dst=sbuf(128, 2048), src=("hbm", (128, 2048), float32))
    assert load.hbm == pytest.approx(2**20 / (2.9e12 / 4) * 1e9)
    assert load.finish == pytest.approx(355)
