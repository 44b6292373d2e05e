"""Bad input ends in five lines at the user's line, a code, a status, and nothing half-written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np
"""

KERNELS = {
    "partitions": (
        "tile = nl.ndarray((256, 512), dtype=nl.float32, buffer=nl.sbuf)",
        "nki.partitions",
        "256 partitions, at most 128",
    ),
    "operand in PSUM": (
        "nisa.nc_matmul(acc, nl.ndarray((128, 64), nl.bfloat16, buffer=nl.psum), x)",
        "nc_matmul.stationary",
        "`stationary` is in psum",
    ),
    "float32 with bfloat16": (
        "nisa.nc_matmul(acc, nl.ndarray((128, 64), nl.float32), x)",
        "nc_matmul.rules",
        "float32 (or tfloat32) pairs only with float32",
    ),
    "moving tile of 1024": (
        "nisa.nc_matmul(nl.ndarray((64, 1024), nl.float32, buffer=nl.psum), w, "
        "nl.ndarray((128, 1024), nl.bfloat16))",
        "nc_matmul.N",
        "N = 1024, at most 512 on trn2",
    ),
}

KERNEL = HEAD + """
@nki.jit
def kernel(a):
    out = nl.ndarray((64, 512), nl.float32, buffer=nl.shared_hbm)
    acc = nl.ndarray((64, 512), nl.float32, buffer=nl.psum)
    w = nl.ndarray((128, 64), nl.bfloat16)
    x = nl.ndarray((128, 512), nl.bfloat16)
    {line}
    return out

kernel(np.zeros((1, 1), np.float32))
"""

MODEL = """
import torch


class Odd(torch.nn.Module):
    def forward(self, x):
        y = torch.special.bessel_j0(x)
        return torch.linalg.eigvalsh(y) + torch.special.bessel_j0(y)[0]


def build():
    return Odd(), (torch.ones(4, 4),)


def good():
    return torch.nn.Linear(8, 4), (torch.ones(2, 8),)
"""


def opentrn(*args: str, folder: Path) -> subprocess.CompletedProcess:
    """Run the command as a user would."""
    command = [sys.executable, "-m", "opentrn", *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def refusal(done: subprocess.CompletedProcess) -> dict[str, str]:
    """The five lines by their words, after checking that there are five and a bad status."""
    assert done.returncode in (1, 2), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.rstrip("\n").splitlines()
    words = {line[2:6].strip(): line[8:] for line in lines if line[:2] == "  " and line[2] != " "}
    assert {"at", "rule", "fix", "more"} <= set(words), done.stderr
    return {"what": lines[0], "all": done.stderr, **words}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_the_chip_would_refuse(name, tmp_path):
    line, code, what = KERNELS[name]
    (tmp_path / "kernel.py").write_text(KERNEL.format(line=line))
    found = refusal(opentrn("run", "kernel.py", folder=tmp_path))
    assert found["at"] == f"kernel.py:13: {line}"
    assert found["more"] == f"opentrn explain {code}"
    assert what in found["all"]


def test_the_moving_tile_of_1024_is_fine_on_trn3(tmp_path):
    line = (
        "nisa.nc_matmul(nl.ndarray((64, 1024), nl.float32, buffer=nl.psum), nl.zeros((128, 64), "
        "nl.bfloat16), nl.zeros((128, 1024), nl.bfloat16)); nl.store(out, nl.zeros((64, 512), "
        "nl.float32))"
    )
    (tmp_path / "kernel.py").write_text(KERNEL.format(line=line))
    done = opentrn("run", "--target", "trn3", "kernel.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_an_unknown_target(tmp_path):
    (tmp_path / "kernel.py").write_text("print('never')")
    done = opentrn("run", "--target", "trn9", "kernel.py", folder=tmp_path)
    found = refusal(done)
    assert found["more"] == "opentrn explain hw.target"
    assert "trn2" in found["all"]
    assert "never" not in done.stdout


def test_a_missing_model_file(tmp_path):
    found = refusal(opentrn("compile", "nothing.py:build", folder=tmp_path))
    assert "no such file" in found["what"]
    assert found["more"] == "opentrn explain dropin.model"


def test_a_torch_op_without_a_rule_names_all_of_them_and_writes_nothing(tmp_path):
    pytest.importorskip("torch", reason="the extra `torch` is not installed")
    (tmp_path / "model.py").write_text(MODEL)
    found = refusal(opentrn("compile", "model.py:build", "-o", "odd.trn", folder=tmp_path))
    assert "graph.unsupported_op" in found["more"]
    assert "bessel_j0" in found["all"]
    assert "eigh" in found["all"] or "eigvalsh" in found["all"]
    assert "2 ×" in found["all"]
    assert sorted(os.listdir(tmp_path)) in (["model.py"], ["__pycache__", "model.py"])


@pytest.fixture(scope="module")
def executable(tmp_path_factory) -> Path:
    pytest.importorskip("torch", reason="the extra `torch` is not installed")
    folder = tmp_path_factory.mktemp("executable")
    (folder / "model.py").write_text(MODEL)
    done = opentrn("compile", "model.py:good", "-o", "good.trn", folder=folder)
    assert done.returncode == 0, done.stderr
    return folder / "good.trn"


def test_a_good_executable_is_profiled(executable):
    done = opentrn("profile", executable.name, folder=executable.parent)
    assert done.returncode == 0, done.stderr
    assert "device time" in done.stdout


@pytest.mark.parametrize("damage", ["truncated", "tampered"])
def test_a_damaged_executable(damage, executable, tmp_path):
    content = bytearray(executable.read_bytes())
    if damage == "truncated":
        content = content[: len(content) // 2]
    else:
        content[len(content) // 3] ^= 1
    (tmp_path / "bad.trn").write_bytes(content)
    code = (
        "import opentrn.cli, opentrn.base, opentrn.isa\n"
        "try:\n    opentrn.isa.load('bad.trn')\n"
        "except opentrn.base.TrnError as error:\n"
        "    print(error, file=opentrn.cli.sys.stderr)\n    raise SystemExit(1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "opentrn explain isa.executable" in done.stderr
    assert os.listdir(tmp_path) == ["bad.trn"]


def test_profiling_a_damaged_executable_names_it(executable, tmp_path):
    (tmp_path / "bad.trn").write_bytes(executable.read_bytes()[:-100])
    found = refusal(opentrn("profile", "bad.trn", folder=tmp_path))
    assert "isa.executable" in found["more"]


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (("compile", "model.py"), "dropin.model", "model.py is a file; which name"),
        (("analyze", "model.py"), "dropin.model", "model.py is a file; which name"),
        (("compile", "."), "dropin.model", "it is a directory"),
        (("check", "."), "dropin.kernel", "it is a directory"),
        (("check", "note.txt"), "dropin.kernel", "it is no Python file"),
        (("compile", "note.txt:build"), "dropin.model", "it is no Python file"),
        (("compile", "odd.py:json"), "dropin.model", "is the module json"),
        (("analyze", "odd.py:five"), "dropin.model", "returned an int, not (model, arguments)"),
        (("compile", "odd.py:nothing"), "dropin.model", "returned None"),
        (("compile", "odd.py:number"), "dropin.model", "is an int"),
        (("compile", "odd.py:needs"), "dropin.model", "takes x, y"),
        (("compile", "no.mlir"), "dropin.model", "there is no file no.mlir"),
        (("nccom-test",), "comm.nccom", "nccom-test: the following arguments are required"),
        (("nccom-test", "allr", "-r", "2", "-b", "5", "-d", "fp32"), "comm.nccom",
         "5 bytes are no whole number of fp32 elements"),
        (("nccom-test", "allr", "-r", "2", "-b", "inf"), "comm.nccom", "invalid size value"),
        (("nccom-test", "allr", "-r", "2", "-f", "nan"), "comm.nccom", "factor nan"),
        (("nccom-test", "allr", "-r", "2", "--report-to-json-file", "no/a"), "base.no_folder",
         "there is no directory no"),
        (("nccom-test", "allr", "-r", "2", "--report-to-json-file", "."), "base.unwritable",
         "it is a directory"),
    ],
)  # fmt: skip
def test_input_that_is_not_what_it_should_be(arguments, code, what, tmp_path):
    (tmp_path / "model.py").write_text("def build():\n    return None, ()\n")
    (tmp_path / "note.txt").write_text("a note")
    (tmp_path / "odd.py").write_text(
        "import json\nnumber = 5\ndef five(): return 5\ndef nothing(): pass\n"
        "def needs(x, y, z=1): pass\n"
    )
    found = refusal(opentrn(*arguments, folder=tmp_path))
    assert found["more"] == f"opentrn explain {code}"
    assert what in found["what"]
    assert found["at"].startswith("command line:1: opentrn")
    assert set(os.listdir(tmp_path)) <= {"model.py", "note.txt", "odd.py", "__pycache__"}


@pytest.mark.parametrize(("place", "code"), [(".", "base.unwritable"), ("no/a", "base.no_folder")])
def test_an_executable_or_report_that_cannot_be_written(place, code, executable):
    for arguments in (("compile", "model.py:good", "-o"), ("profile", "good.trn", "--report"),
                      ("profile", "good.trn", "--format", "csv", "-o")):  # fmt: skip
        before = sorted(os.listdir(executable.parent))
        found = refusal(opentrn(*arguments, place, folder=executable.parent))
        assert found["more"] == f"opentrn explain {code}"
        assert sorted(os.listdir(executable.parent)) == before
    found = refusal(opentrn("profile", "good.trn", "--out", "model.py", folder=executable.parent))
    assert found["more"] == "opentrn explain base.unwritable"


def test_an_error_of_a_users_file_begins_at_its_line(tmp_path):
    (tmp_path / "raises.py").write_text("def m():\n    return 1 // 0\n")
    done = opentrn("compile", "raises.py:m", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-2].startswith("ZeroDivisionError")
    assert "raises.py" in done.stderr.splitlines()[1]
    assert "opentrn/" not in done.stderr


def test_a_check_on_more_cores_than_there_are_ends_at_once(tmp_path):
    text = KERNEL.format(line="pass").replace("\nkernel(np", "\nlambda: kernel(np")
    (tmp_path / "kernel.py").write_text(text)
    done = opentrn("check", "kernel.py:kernel", "--arg", "a=float32[1,1]", "--grid", "999999999",
                   folder=tmp_path)  # fmt: skip
    assert done.returncode == 1
    assert "kernel[999999999] asks for 999999999 cores" in done.stdout
    assert "  at    command line:1: opentrn check kernel.py:kernel" in done.stdout
