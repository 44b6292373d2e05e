"""The package as somebody has just installed it: it imports, answers and knows its machines."""

import json
import subprocess
import sys
from pathlib import Path

import opentrn


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "opentrn", *arguments], capture_output=True, text=True
    )


def test_the_command_answers_with_the_version():
    assert command("--version").stdout.split()[-1] == opentrn.__version__


def test_doctor_finds_no_problem():
    result = command("doctor", "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert report["problems"] == []
    assert {"numpy", "ml_dtypes", "click"} <= set(report["core"])
    assert all(report["core"].values())


def test_the_data_files_came_along():
    package = Path(opentrn.__file__).parent
    assert (package / "py.typed").exists()
    chips = {path.stem for path in (package / "hw" / "chips").glob("*.toml")}
    assert {"trn1", "trn2", "trn3", "inf2"} <= chips
