"""Unrolled loops made ready turn by turn: placement, waits and times are the plain ones."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.base import CapacityError, float32
from opentrn.isa import View, view_of
from opentrn.isa import engine as engines
from opentrn.sim import folded, repeats, timeline, words
from opentrn.sim.apart import all_apart
from opentrn.sim.depend import dependencies
from opentrn.sim.flatten import coded_of
from opentrn.sim.letters import letters_of
from opentrn.sim.place import place
from opentrn.sim.recur import Span, spans
from opentrn.sim.timeline import Prepared, alone, rates_of, scheduled
from opentrn.sim.timing import Schedule
from tests.sim.programs import TRN2, Writer
from tests.sim.test_depend import Small

ON = (engines.vector, engines.scalar, engines.gpsimd)


@pytest.fixture(scope="module", autouse=True)
def eager():
    """Try repetitions that are too short to be worth it."""
    kept = folded._TURNS, folded._WORTH, repeats._WORTH
    folded._TURNS, folded._WORTH, repeats._WORTH = 4, 20, 20
    yield
    folded._TURNS, folded._WORTH, repeats._WORTH = kept


def check(program, chip) -> bool:
    """Whether the program was folded; then everything is compared with the plain functions."""
    try:
        placement = place(program, chip)
    except CapacityError:
        assert folded.folded(program, chip, 0.0) is None
        return False
    found = folded.folded(program, chip, 0.0)
    if found is None:
        return False
    where, flow = found
    assert list(where.slots.items()) == list(placement.slots.items())
    for name in ("peak_bytes", "peak_at", "findings", "bank", "apart"):
        assert getattr(where, name) == getattr(placement, name), name
    plain = dependencies(program, placement, chip)
    assert flow.rows == plain.rows
    assert all(a is b for a, b in zip(flow.instances, plain.instances, strict=True))
    for name in ("row", "position", "dep_start", "dep", "bank_at", "bank_bits"):
        assert np.array_equal(getattr(flow, name), getattr(plain, name)), name
    rates = rates_of(TRN2)
    times = alone(Prepared(program, TRN2, where, flow, rates), False)
    wanted = scheduled(coded_of(plain, TRN2), rates, False)
    for name in Schedule._fields:
        assert np.array_equal(getattr(times, name), getattr(wanted, name)), name
    return True


class Unrolled:
    """A random loop, written out: what a turn does is chosen once, what it is done to each time."""

    def __init__(self, seed: int):
        self.rng, self.w = random.Random(seed), Writer()
        rng, w = self.rng, self.w
        self.given = w.buffer("hbm", (128, 64), kind="input")
        w.builder.inputs = [self.given]
        self.result = w.buffer("hbm", (256 * 128, 64))
        self.scratch = w.buffer("hbm", (128, 64))
        self.shared = [w.buffer("sbuf", (128, 64)) for _ in range(2)]
        self.kept: list = []
        self.sum = w.buffer("psum", (128, 64), float32)
        self.sizes = [(rng.choice([32, 128]), rng.choice([16, 32, 64])) for _ in range(3)]
        self.width = rng.choice([512, 1024, 2048])
        self.fills = rng.random() < 0.8  # tiles are written before they are read
        self.ways = rng.choice([1, 1, 1, 2, 3])  # shared tiles are used in turns
        self.plan = [self.step() for _ in range(rng.randrange(2, 8))]

    def step(self) -> tuple:
        """What one instruction does: its kind and numbers that choose operands and parts."""
        rng = self.rng
        kind = rng.choices(["load", "copy", "store", "far", "product", "read", "back"],
                           [3, 6, 2, 0.1, 2, 1, 0.5])[0]  # fmt: skip
        return kind, rng.randrange(8), rng.randrange(8), rng.randrange(3), rng.choice(ON)

    def turn(self, number: int) -> None:
        """One turn."""
        w, before = self.w, self.kept
        own = [w.buffer("sbuf", size) for size in self.sizes]
        acc = w.buffer("psum", (128, self.width), float32)
        if self.fills:
            for tile in own:
                w.load(tile, view_of(self.given)[0 : tile.shape[0], 0 : tile.shape[1]])
            w.add("memset", dst=acc, value=0.0)
        pool = [*own, self.shared[number % self.ways % 2], *before[:1]]
        for kind, a, b, part, engine in self.plan:
            into = acc if part else self.sum
            if kind == "store":
                self.store(number, own[a % 3] if self.fills else pool[a % len(pool)])
            elif kind == "product":
                left = view_of(self.shared[1])[:, 0:64]
                w.add("nc_matmul", dst=view_of(into)[0:64, 0:64], stationary=left,
                      moving=self.shared[0])  # fmt: skip
            elif kind == "back" and before:
                w.copy(before[0], before[0], engine=engine)
            else:
                self.move(kind, view_of(pool[a % len(pool)]), view_of(pool[b % len(pool)]),
                          into, part, engine)  # fmt: skip
        self.kept = own

    def store(self, number: int, tile) -> None:
        """A tile to the part of the result that is this turn's."""
        (rows, columns), first = tile.shape, number * 128
        self.w.load(view_of(self.result)[first : first + rows, 0:columns], tile)

    def move(self, kind: str, one, other, into, part: int, engine) -> None:
        """Load, copy or store parts of tiles."""
        rows = min(one.shape[0], other.shape[0])
        columns = min(one.shape[1], other.shape[1])
        low = columns // 2 if part == 1 else 0
        one, other = one[0:rows, low:columns], other[0:rows, low:columns]
        rows, columns = one.shape
        if kind == "load":
            self.w.load(one, view_of(self.given)[0:rows, 0:columns])
        elif kind == "far":
            self.w.load(view_of(self.scratch)[0:rows, 0:columns], one)
        elif kind == "read":
            self.w.copy(one, view_of(into)[0:rows, 0:columns],
                        engine=engines.vector if part else engines.scalar)  # fmt: skip
        else:
            self.w.copy(one, other, engine=engine)

    def program(self, turns: int, mutations: int = 0):
        """Some instructions, the turns, some more; in `mutations` turns something is different."""
        rng, w = self.rng, self.w
        if rng.random() < 0.7:
            for tile in self.shared:
                w.add("memset", dst=tile, value=0.0)
        odd = {rng.randrange(turns) for _ in range(mutations)}
        for number in range(turns):
            if number in odd:
                self.different(number)
            else:
                self.turn(number)
        for _ in range(rng.randrange(3)):
            w.copy(self.shared[0], rng.choice(self.shared), engine=rng.choice(ON))
        return w.program()

    def different(self, number: int) -> None:
        """A turn in which one instruction is left out, done twice, or done to another tile."""
        rng, plan, kept = self.rng, list(self.plan), self.plan
        at = rng.randrange(len(plan))
        kind = rng.randrange(4)
        if kind == 0 and len(plan) > 1:
            del plan[at]
        elif kind == 1:
            plan.insert(at, plan[at])
        else:
            what, a, b, *rest = plan[at]
            plan[at] = (what, a + (kind == 2), b + (kind != 2), *rest)
        self.plan = plan
        self.turn(number)
        self.plan = kept


@given(st.integers(0, 10**9), st.sampled_from([1024, 1536, 2048, 4096]))
@settings(max_examples=40, deadline=None)
def test_unrolled_loops_are_made_ready_as_instruction_by_instruction(seed, sbuf):
    made = Unrolled(seed)
    check(made.program(made.rng.randrange(60, 200)), Small(sbuf))


@given(st.integers(0, 10**9), st.integers(1, 3), st.sampled_from([1024, 1536, 2048]))
@settings(max_examples=40, deadline=None)
def test_where_a_turn_is_different_the_waits_are_too(seed, mutations, sbuf):
    made = Unrolled(seed)
    check(made.program(made.rng.randrange(80, 250), mutations), Small(sbuf))


@pytest.mark.parametrize("mutations", [0, 1])
def test_many_of_those_are_really_folded(mutations):
    """Else the comparisons above say nothing."""
    done = 0
    for seed in range(40):
        made = Unrolled(seed)
        done += check(made.program(made.rng.randrange(100, 250), mutations), Small(1536))
    assert done >= 20


@given(st.integers(0, 10**9))
@settings(max_examples=30, deadline=None)
def test_compiled_code_reads_the_same_letters(seed):
    pytest.importorskip("numba", reason="the extra `fast` is not installed")
    made = Unrolled(seed)
    program = made.program(made.rng.randrange(4, 250), 2)
    fast, plain = letters_of(program, fast=True), letters_of(program)
    assert fast.forms == plain.forms
    for name in ("place", "writes", "hbm", "form", "letter", "buffer"):
        assert np.array_equal(getattr(fast, name), getattr(plain, name)), name
    asked: dict = {}
    for one, letter in zip(program.body, plain.letter.tolist(), strict=True):
        chip = [v for v in one.operands if isinstance(v, View) and v.buffer.on_chip]
        looks = one.form, tuple((v.buffer.sort, v.offset, v.steps, v.dtype) for v in chip)
        assert asked.setdefault(looks, letter) == letter
    assert len(asked) == len(plain.form)


# ---------------------------------------------------------------------- by hand


def test_repetitions_are_found_where_they_are():
    """A loop of 3 in front, one of 5 with one of 2 inside each turn, something else behind."""
    inner = [20, *[21, 22] * 4, 23]
    row = [1, *[10, 11, 12] * 30, 2, *inner * 12, 3, 4, 5]
    found = spans(np.array(row, np.uint64), turns=4, worth=20)
    assert found == [Span(1, 3, 30), Span(92, 10, 12)]
    assert spans(np.arange(500, dtype=np.uint64), 4, 20) == []


@given(st.integers(0, 10**9))
@settings(max_examples=200, deadline=None)
def test_what_counts_as_apart_shares_no_byte(seed):
    """Tiles of a grid, some moved or cut differently, against the bytes of each."""
    rng, w = random.Random(seed), Writer()
    shape = rng.choice([(64, 32), (4, 16, 32)])
    view = view_of(w.buffer("hbm", shape))
    high, wide = rng.choice([8, 16]), rng.choice([8, 16, 32])
    tiles = []
    for row in range(0, shape[-2], high):
        for column in range(0, shape[-1], wide):
            tile = view.slice(len(shape) - 2, row, row + high, 1)
            tile = tile.slice(len(shape) - 1, column, column + wide, 1)
            tiles += [tile] if len(shape) == 2 else [tile[n] for n in range(4)]
    rng.shuffle(tiles)
    del tiles[rng.randrange(2, len(tiles) + 1) :]
    if rng.random() < 0.4:
        tiles.append(rng.choice([view[:, 0:8], view[0:1], tiles[0]]))
    used = [set() for _ in tiles]
    for own, tile in zip(used, tiles, strict=True):
        index = np.zeros(1, np.int64) + tile.offset
        for stride, count in tile.steps:
            index = (index[:, None] + stride * np.arange(count)).reshape(-1)
        own.update(index.tolist())
    shared = sum(map(len, used)) != len(set().union(*used))
    apart = all_apart(tiles, np.arange(len(tiles)))
    assert not (apart and shared)
    if len(shape) == 2 and len({tile.shape for tile in tiles}) == 1:
        assert apart is not shared


def pipeline(turns: int, far: bool = False, last=None, columns: int = 64):
    """Load, work on two engines, store, each turn with tiles of its own; one tile is shared."""
    w = Writer()
    x = w.buffer("hbm", (128, columns), kind="input")
    y = w.buffer("hbm", (turns * 128, columns))
    w.builder.inputs, w.builder.outputs = [x], [y]
    shared = w.buffer("sbuf", (128, columns))
    w.add("memset", dst=shared, value=1.0)
    for turn in range(turns):
        a, b = (w.buffer("sbuf", (128, columns)) for _ in range(2))
        w.load(a, x)
        w.copy(b, a, engine=engines.scalar)
        w.copy(b, shared, engine=engines.vector)
        row = 0 if far else turn * 128
        w.load(view_of(y)[row : row + 128, :], b)
    if last is not None:
        last(w, a)
    return w.program()


def test_what_is_not_looked_at_costs_nothing():
    """Four times the turns.  Two turns fill the ring, and each waits for what the turn two before
    did with its bytes: the waits of every turn are alike."""
    found = [folded.folded(pipeline(turns), Small(512 + 128), 0.0)[1] for turns in (100, 400)]
    for flow in found:
        (repeat,) = flow.repeats
        assert repeat.length == 4
        assert repeat.count > len(flow) / 4 - 8
    assert check(pipeline(100), Small(512 + 128))


def test_a_store_to_where_the_turn_before_stored_is_no_repetition_of_this_kind():
    assert folded.folded(pipeline(100, far=True), Small(640), 0.0) is None


def test_a_tile_of_a_turn_that_is_used_far_behind_it():
    """The last turn's tile is used again: that turn is not like the others."""
    assert check(pipeline(100, last=lambda w, a: w.copy(a, a)), Small(640))


def test_a_tile_in_use_from_the_middle_to_the_end_is_no_repetition():
    w = Writer()
    shared = w.buffer("sbuf", (128, 64))
    w.add("memset", dst=shared, value=1.0)
    tiles = [w.buffer("sbuf", (128, 64)) for _ in range(100)]
    for tile in tiles:
        w.copy(tile, shared)
    w.copy(shared, tiles[50])
    assert folded.folded(w.program(), Small(640), 0.0) is None


def test_timelines_of_long_programs_are_folded_and_equal(monkeypatch):
    program, plain = (pipeline(700, columns=4096) for _ in range(2))
    found = timeline(program, TRN2)
    assert isinstance(found.placement, folded.FoldedPlacement)
    monkeypatch.setattr(words, "layout", lambda: None)
    monkeypatch.setattr("opentrn.sim.letters.layout", lambda: None)
    wanted = timeline(plain, TRN2)
    assert not isinstance(wanted.placement, folded.FoldedPlacement)
    for name in Schedule._fields:
        assert np.array_equal(getattr(found.schedule, name), getattr(wanted.schedule, name)), name
    assert list(map(repr, found.trace().rows())) == list(map(repr, wanted.trace().rows()))
    assert found.critical_path()[-1][1:] == wanted.critical_path()[-1][1:]
