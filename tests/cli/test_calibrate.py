"""`opentrn calibrate`: measured times that a chip with other numbers would have given."""

import json

import pytest

from opentrn import hw, nki
from opentrn.dropin import run_script
from opentrn.isa import for_chip
from opentrn.sim import timeline

KERNELS = """
import numpy as np, nki, nki.isa as nisa, nki.language as nl

def body(x, loads, copies):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    b = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    for _ in range(loads):
        a = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x)
    for _ in range(copies):
        nisa.tensor_copy(dst=b, src=a)
    nisa.dma_copy(dst=out, src=b)
    return out

@nki.jit
def few(x): return body(x, 1, 10)
@nki.jit
def copies(x): return body(x, 1, 200)
@nki.jit
def loads(x): return body(x, 60, 1)
@nki.jit
def both(x): return body(x, 60, 200)

x = np.ones((128, 32), np.float32)
for kernel in (few, copies, loads, both):
    kernel(x)
"""
NAMES = ("few", "copies", "loads", "both")


@pytest.fixture
def measured(script, tmp_path):
    """A table of what the kernels take where transfers are issued in 0.8 us, not 0.5."""
    path = script(KERNELS, "kernels.py")
    slow = hw.variant(hw.chip("trn2"), ["dma.static_issue=0.8 us"])
    with nki.watch() as runs:
        run_script(str(path), (), "trn2")
    times = {run.programs[0].name: timeline(for_chip(run.programs[0], slow), slow).run_ns
             for run in runs}  # fmt: skip
    rows = [f"kernels.py, {times[name]:.1f} ns, {name}, fit" for name in NAMES]
    rows.append(f"kernels.py, {times['both']:.1f} ns, both, check")
    table = tmp_path / "measured.csv"
    table.write_text("\n".join(["program, latency, kernel, use", *rows]), encoding="utf-8")
    return table


def test_the_number_that_differs_is_found(opentrn, measured):
    result = opentrn("calibrate", measured, "--json")
    assert (result.status, result.err) == (0, "")
    found = json.loads(result.out)
    (change,) = found["changes"]
    assert change["fact"] == "dma.static_issue"
    assert change["before"] == "0.5 us"
    assert float(change["after"].removesuffix(" ns")) == pytest.approx(800, rel=0.05)
    assert max(map(abs, found["after"])) < 0.03
    assert abs(found["checked"][0]) < 0.03 < abs(found["checked_before"][0])
    assert len(found["cross"]) == 4
    text = opentrn("calibrate", measured).out
    assert f"--set '{change['setting']}'" in text
    assert "cross-validated" in text
    assert "only checked" in text


def test_the_setting_is_one_that_profile_takes(opentrn, measured, tmp_path):
    setting = json.loads(opentrn("calibrate", measured, "--json").out)["changes"][0]["setting"]
    result = opentrn("profile", tmp_path / "kernels.py", "--kernel", "loads", "--set", setting)
    assert result.status == 0
    assert "dma.static_issue" in result.out


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("program\nkernels.py", "the columns are program"),
        ("program,latency\nkernels.py,3 GB", "'3 GB' is no time"),
        ("program,latency\nkernels.py,soon", "no number to read"),
        ("program,latency\nkernels.py,3 us,4", "not as many cells"),
        ("program,latency\nkernels.py,3 us", "4 kernels of kernels.py"),
        ("program,latency,measure\nkernels.py,3 us,all", "measure is 'all'"),
        ("program,latency,kernel\nkernels.py,3 us,few", "1 measurement to fit"),
    ],
)
def test_tables_with_mistakes_are_refused_at_their_line(opentrn, script, tmp_path, table, said):
    script(KERNELS, "kernels.py")
    path = tmp_path / "table.csv"
    path.write_text(table, encoding="utf-8")
    result = opentrn("calibrate", path)
    assert result.status == 1
    assert said in result.err
    assert "Traceback" not in result.err


def test_a_table_that_is_not_there_or_no_text(opentrn, tmp_path):
    assert "cannot read the table" in opentrn("calibrate", tmp_path / "none.csv").err
    (tmp_path / "table.csv").write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in opentrn("calibrate", tmp_path / "table.csv").err
