"""Laws of all programs: every way of getting, writing, reading and running one agrees."""

import sys

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import dtype as as_dtype
from opentrn.isa import Buffer, Executable, Loop, exe, view_of
from opentrn.isa.read import parse_program
from opentrn.isa.text import program_text
from opentrn.sim import Machine, Replay, timeline
from tests.laws.samples import SAMPLES

everywhere = pytest.mark.parametrize("name", SAMPLES)


def run_of(name):
    sample = SAMPLES[name]
    return nki.run(sample.kernel, *sample.arrays)


def flat(outputs):
    return list(outputs) if isinstance(outputs, list | tuple) else [outputs]


def recorded(name, chip):
    sample = SAMPLES[name]
    views = [
        view_of(Buffer(0, "hbm", array.shape, as_dtype(array.dtype), name=name, kind="input"))
        for name, array in zip(sample.names, sample.arrays, strict=True)
    ]
    return nki.record(sample.kernel, chip, *views)


@everywhere
def test_recording_from_shapes_gives_the_program_of_running(name):
    run = run_of(name)
    ours, theirs = (
        # The line of an input is where the kernel was called.
        [line.partition(" ; ")[0] if " input " in line else line for line in text.splitlines()]
        for text in (program_text(recorded(name, run.chip).program), program_text(run.program))
    )
    assert ours == theirs


@everywhere
def test_what_is_written_is_read_back(name):
    text = program_text(run_of(name).program)
    assert program_text(parse_program(text)) == text


@everywhere
def test_recorded_read_and_loaded_programs_compute_the_same(name, tmp_path):
    run, arrays = run_of(name), list(SAMPLES[name].arrays)
    wanted = flat(run.outputs)
    Executable.of(run.program).save(tmp_path / "program.exe")
    loaded = exe.load(tmp_path / "program.exe")
    assert program_text(loaded.program) == program_text(run.program)
    programs = [run.program, recorded(name, run.chip).program, loaded.program]
    if not run.program.constants:
        programs.append(parse_program(program_text(run.program)))
    for program in programs:
        found = Replay(program, run.chip)(arrays)
        for ours, theirs in zip(found, wanted, strict=True):
            assert ours.size == theirs.size
            assert ours.dtype == theirs.dtype
            assert np.array_equal(np.sort(ours, axis=None), np.sort(theirs, axis=None))


class Counted(Machine):
    """A machine that counts the instructions it really runs."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.ran, self._inside = 0, False

    def execute(self, instruction):
        self.ran += 1
        self._inside = True
        super().execute(instruction)
        self._inside = False

    def bind(self, instruction):
        step = super().bind(instruction)
        if self._inside:
            return step

        def counted():
            self.ran += 1
            step()

        return counted


def branches(timed):
    return sum(isinstance(one, Loop) for one in timed.instructions)


@everywhere
def test_both_sides_retire_the_same_instructions(name, monkeypatch):
    machines = []

    def machine(chip):
        machines.append(Counted(chip))
        return machines[-1]

    monkeypatch.setattr(sys.modules["opentrn.nki.jit"], "new_machine", machine)
    with nki.tracing():  # a launch that was made before would be replayed
        run = run_of(name)
    timed = run.timeline()
    assert len(timed) - branches(timed) == machines[0].ran
    trips = [count for _, count in run.trips[0]]
    again = timeline(run.program, run.chip, trips=run.trips[0])
    assert len(again) == len(timed)
    assert all(count >= 0 for count in trips)


def test_the_counts_of_two_kernels_by_hand():
    """counted: 4 turns of 3 and of 2 inner instructions; falling: 5 turns of its body."""
    counted, falling = run_of("counted"), run_of("falling")
    assert sorted(n for _, n in counted.trips[0]) == [2] * 4 + [3] * 4 + [4]
    timed = counted.timeline()
    assert len(timed) - branches(timed) == 3 + 4 * 3 + 4 * 2 + 1
    timed = falling.timeline()
    body = len(next(node for node in falling.program.body if isinstance(node, Loop)).body)
    outside = sum(not isinstance(node, Loop) for node in falling.program.body)
    assert [n for _, n in falling.trips[0]] == [5]
    assert len(timed) - branches(timed) == outside + 5 * body


@everywhere
def test_running_again_gives_the_same_program_and_values(name):
    first, second = run_of(name), run_of(name)
    assert program_text(first.program) == program_text(second.program)
    for a, b in zip(flat(first.outputs), flat(second.outputs), strict=True):
        assert a.tobytes() == b.tobytes()
    assert first.findings == second.findings
    # nl.dynamic_range is deprecated, and used here on purpose.
    assert {f.code for f in first.findings} <= {"nki.migrate.dynamic_range"}


@everywhere
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_values_do_not_depend_on_the_target(name, target):
    with nki.use_target(target):
        outputs = flat(run_of(name).outputs)
    for a, b in zip(outputs, flat(run_of(name).outputs), strict=True):
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-2, atol=1e-2)
