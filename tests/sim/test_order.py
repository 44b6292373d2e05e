"""The list scheduler's order: a permutation that keeps every dependence, and what it gains."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import UsageError, float32
from opentrn.isa import engine as engines
from opentrn.isa import view_of
from opentrn.sim import Replay, place
from opentrn.sim.order import reordered
from opentrn.sim.timeline import timeline
from tests.sim.programs import TRN2, Writer, matmul
from tests.sim.test_depend import bytes_of, random_program


class Apart(dict):
    """Slots that give every tile memory of its own."""

    def __missing__(self, buffer):
        self[buffer] = type("Slot", (), {"address": 10**12 * (buffer.id + 1), "partition": 0})
        return self[buffer]


@given(st.integers(0, 10**9), st.sampled_from([8, 16, 128]))
@settings(max_examples=60, deadline=None)
def test_every_conflict_on_a_byte_keeps_its_order(seed, window):
    program, slots = random_program(seed), Apart()
    found = reordered(program, TRN2, window)
    place_of = {id(one): n for n, one in enumerate(found.body)}
    assert sorted(place_of) == sorted(id(one) for one in program.body)
    touched = [
        [{b for v in views for b in bytes_of(v, slots).tolist()}
         for views in (one.reads(), one.writes())]
        for one in program.body
    ]  # fmt: skip
    for j, (reads, writes) in enumerate(touched):
        for i in range(j):
            before_reads, before_writes = touched[i]
            if (before_writes & (reads | writes)) or (before_reads & writes):
                assert place_of[id(program.body[i])] < place_of[id(program.body[j])]


def chains(count):
    """Independent chains of four dependent additions on the Vector Engine, one after another."""
    w = Writer(TRN2)
    x = w.buffer("hbm", (128, 64), float32, name="x", kind="input")
    out = w.buffer("hbm", (128, 64 * count), float32, name="out", kind="output")
    w.builder.inputs, w.builder.outputs = [x], [out]
    loaded = w.buffer("sbuf", (128, 64), float32)
    sums = w.buffer("sbuf", (128, 64 * count), float32)
    w.load(loaded, x)
    for n in range(count):
        tile = loaded
        for step in range(4):
            part = view_of(sums)[:, 64 * n : 64 * n + 64]
            added = part if step == 3 else w.buffer("sbuf", (128, 64), float32)
            w.add("tensor_scalar", dst=added, data=tile, op0="add", operand0=float(n),
                  engine=engines.vector)  # fmt: skip
            tile = added
    w.load(out, sums)
    return w.program()


def test_independent_chains_fill_each_others_gaps():
    program = chains(16)
    plain, listed = timeline(program, TRN2), timeline(program, TRN2, order="list")
    cost = program.body[1].form.cost
    # In program order each of the 64 additions waits for the result before it.
    assert plain.total_ns > 48 * (cost.busy_ns + cost.latency_ns)
    assert listed.total_ns < 0.75 * plain.total_ns
    assert listed.engine_busy_ns["vector"] == pytest.approx(plain.engine_busy_ns["vector"])


def test_the_new_order_computes_the_same():
    program = chains(5)
    found = reordered(program, TRN2)
    assert [a is b for a, b in zip(program.body, found.body, strict=True)].count(False) > 5
    x = np.arange(128 * 64, dtype=np.float32).reshape(128, 64)
    wanted = np.concatenate([x + 4 * n for n in range(5)], axis=1)
    for one in (program, found):
        assert np.array_equal(Replay(one, TRN2)([x])[0], wanted)


def test_accumulation_groups_and_memory_survive():
    program = matmul(m=512, k=512, n=1024)
    found = reordered(program, TRN2)
    place(found, TRN2)  # would raise CapacityError
    groups: dict = {}
    for one in found.body:
        if one.opcode == "nc_matmul":
            groups.setdefault(one.operands[0].buffer, []).append(one)
    for buffer, members in groups.items():
        written = [one for one in program.body if one.opcode == "nc_matmul"
                   and one.operands[0].buffer is buffer]  # fmt: skip
        assert members == written


def test_what_cannot_move_stays_and_unknown_orders_are_refused():
    w = Writer(TRN2)
    tile = w.buffer("sbuf", (128, 64), float32, address=0)
    for _ in range(4):
        w.add("memset", dst=tile, value=0.0)
    program = w.program()
    assert reordered(program, TRN2) is program
    with pytest.raises(UsageError):
        timeline(program, TRN2, order="best")
