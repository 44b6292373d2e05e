"""Where NaN and infinities begin, tensors by name, and values while a kernel runs."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from opentrn import nki
from opentrn.nki import beta1
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.nki.beta1 import language as ol


@nki.jit
def log_then_more(x):
    tile = nl.load(x)
    logs = nl.ndarray(x.shape, nl.float32, name="logs")
    nisa.activation(dst=logs, op=nl.log, data=tile)
    nisa.tensor_scalar(dst=logs, data=logs, op0=nl.multiply, operand0=2.0)
    out = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm, name="out")
    nl.store(out, logs)
    return out


def test_the_line_that_makes_the_first_infinity_is_named_alone():
    x = np.ones((4, 3), np.float32)
    x[2, 1] = 0
    with nki.find_nonfinite() as found:
        result = log_then_more(x)
    assert np.isneginf(result[2, 1])
    assert [f.code for f in found] == ["nki.nonfinite"]
    assert found[0].where.text == "nisa.activation(dst=logs, op=nl.log, data=tile)"
    assert found[0].what == (
        "activation on scalar gives 1 infinite of 12 elements in `logs`, first at [2, 1]"
    )


def test_finite_kernels_have_no_finding_and_runs_carry_theirs():
    with nki.find_nonfinite() as found, nki.watch() as runs:
        log_then_more(np.ones((4, 3), np.float32))
        assert found == []
        log_then_more(np.zeros((4, 3), np.float32))
    assert runs[0].findings == ()
    assert [f.code for f in runs[1].findings] == ["nki.nonfinite", "sim.activation_range"]
    assert "12 infinite of 12" in found[0].what


def test_arguments_that_hold_nan_are_the_origin():
    x = np.ones((4, 3), np.float32)
    x[0, 2] = np.nan
    with nki.find_nonfinite() as found:
        log_then_more(x)
    assert [f.what for f in found] == ["argument `x` holds 1 NaN of 12 elements, first at [0, 2]"]


def test_a_tile_that_is_written_anew_is_clean_again():
    def kernel(x):
        tile = nl.load(x)
        nisa.memset(tile, float("inf"))
        nisa.memset(tile, 1.0)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=3e38)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=3e38)
        return x

    with nki.find_nonfinite() as found:
        nki.run(kernel, np.ones((2, 2), np.float32))
    assert [f.what.split()[0] for f in found] == ["memset", "tensor_scalar"]
    assert found[1].where.line == kernel.__code__.co_firstlineno + 5


def test_an_overflow_of_a_format_is_found_in_its_copy():
    def kernel(x):
        narrow = nl.ndarray(x.shape, nl.float16)
        nisa.tensor_copy(dst=narrow, src=nl.load(x))
        return x

    with nki.find_nonfinite() as found:
        nki.run(kernel, np.full((2, 2), 70000.0, np.float32))
    assert "tensor_copy on vector gives 4 infinite" in found[0].what


def test_later_turns_of_a_device_loop_are_looked_at_together():
    def kernel(x):
        tile = nl.load(x)

        def body(i):
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=1e20)

        nl.fori_loop(0, 4, body)
        return x

    with nki.find_nonfinite() as found:
        nki.run(kernel, np.ones((2, 2), np.float32))
    assert [f.what for f in found] == [
        "tensor_scalar in a later turn of a device loop gives 4 infinite of 4 elements in `a tile`"
        ", first at [0, 0]"
    ]


def test_cores_and_the_older_language_are_looked_into():
    def kernel(x):
        if nl.program_id(0) == 1:
            nisa.activation(dst=nl.ndarray(x.shape, nl.float32), op=nl.log, data=nl.load(x))
        return x

    @beta1.jit
    def older(x):
        out = ol.ndarray(x.shape, dtype=x.dtype, buffer=ol.shared_hbm)
        ol.store(out, ol.log(ol.load(x)))
        return out

    x = np.zeros((2, 2), np.float32)
    with nki.find_nonfinite() as found:
        nki.run(nki.jit(kernel)[2], x)
    assert [f.what.split()[0] for f in found] == ["activation"]
    with nki.find_nonfinite() as found:
        older(x)
    assert [f.where.text for f in found] == ["ol.store(out, ol.log(ol.load(x)))"]


def test_tensors_are_dumped_by_name():
    x = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
    with nki.dump("logs", "x") as kept:
        log_then_more(x)
    assert sorted(kept) == ["logs", "x"]
    np.testing.assert_allclose(kept["logs"], 2 * np.log(x.astype(np.float64)), rtol=1e-6)
    with nki.dump("*") as every:
        log_then_more(x)
    assert {"logs", "out", "x"} <= set(every)


def test_dumps_keep_dtypes_and_cores_apart():
    def kernel(x):
        tile = nl.load(x, dtype=nl.bfloat16)
        mine = nl.ndarray(x.shape, nl.bfloat16, name="mine")
        nisa.tensor_scalar(dst=mine, data=tile, op0=nl.add, operand0=float(nl.program_id(0)))
        return x

    with nki.dump("mine") as kept:
        nki.run(nki.jit(kernel)[2], np.ones((2, 2), np.float32))
    assert {n: v.dtype for n, v in kept.items()} == {
        "mine": ml_dtypes.bfloat16,
        "mine@1": ml_dtypes.bfloat16,
    }
    assert (kept["mine"] == 1).all()
    assert (kept["mine@1"] == 2).all()


def test_breakpoint_stops_in_the_kernel_with_values_at_hand(monkeypatch):
    seen = {}

    def stop():
        frame = sys._getframe(1)
        seen.update(name=frame.f_code.co_name, tile=frame.f_locals["tile"].numpy())

    monkeypatch.setattr(sys, "breakpointhook", stop)

    @nki.jit
    def kernel(x):
        tile = nl.multiply(nl.load(x), 3.0)
        breakpoint()
        nl.store(x, tile)
        return x

    kernel(np.full((2, 2), 2.0, np.float32))
    assert seen["name"] == "kernel"
    assert (seen["tile"] == 6).all()


def test_print_shows_tiles_and_registers(capsys):
    @nki.jit
    def kernel(x):
        tile = nl.load(x)
        print("here", tile[0:1, 0:2], nisa.register_alloc(7))
        return x

    kernel(np.full((2, 2), 2.5, np.float32))
    out = capsys.readouterr().out
    assert out.startswith("here NkiTensor(")
    assert "[[2.5 2.5]]" in out
    assert "= 7)" in out


@pytest.mark.parametrize("times", [1, 3])
def test_device_print_writes_where_the_runtime_would(monkeypatch, tmp_path, times):
    monkeypatch.setenv("NEURON_RT_DEBUG_OUTPUT_DIR", str(tmp_path))

    @nki.jit
    def kernel(x):
        for n in range(times):
            nl.device_print("scores", nl.add(nl.load(x), float(n)))
        return x

    kernel(np.zeros((2, 3), np.float32))
    for n in range(times):
        held = np.load(tmp_path / "scores" / "core_0" / str(n) / "tensor.npy")
        np.testing.assert_array_equal(held, np.full((2, 3), float(n)))
    assert len(list((tmp_path / "scores" / "core_0").iterdir())) == times


STOPS = """
import nki
import nki.language as nl
import numpy as np


@nki.jit
def doubled(x):
    tile = nl.load(x)
    breakpoint()
    twice = nl.multiply(tile, 2.0)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, twice)
    return out


for n in range(4):
    print("result", doubled(np.full((1, 2), 1.5 + n, np.float32)))
"""


def test_the_debugger_steps_through_a_kernel_of_a_script(tmp_path):
    """pdb on standard input: it stops at the user's line in every launch, shows tiles, steps on."""
    script = tmp_path / "stops.py"
    script.write_text(STOPS)
    commands = ["p tile", "n", "p twice", "c"] * 4
    done = subprocess.run(
        [sys.executable, "-m", "opentrn", "run", str(script)],
        input="\n".join(commands) + "\n", capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = STOPS.splitlines()
    for stop in ("    twice = nl.multiply(tile, 2.0)", "    out = nl.ndarray(x.shape, x.dtype"):
        number = next(n for n, line in enumerate(lines, 1) if line.startswith(stop))
        assert done.stdout.count(f"{script}({number})doubled()") == 4
    for n in range(4):
        assert f"(Pdb) NkiTensor([1, 2] float32 in sbuf)\n[[{1.5 + n} {1.5 + n}]]" in done.stdout
        assert f"NkiTensor([1, 2] float32 in sbuf)\n[[{3 + 2 * n}. {3 + 2 * n}.]]" in done.stdout
        assert f"result [[{3 + 2 * n}. {3 + 2 * n}.]]" in done.stdout
