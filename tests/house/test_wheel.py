"""The wheel holds what the package needs, and nothing else."""

import shutil
import subprocess
import sys
import zipfile

import pytest

from tests.house import rules

SUFFIXES = (".py", ".toml", ".typed", ".html", ".css", ".js")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built from a copy of the tracked files: the build leaves folders behind."""
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for path in rules.tracked():
        inside = path.relative_to(rules.ROOT)
        if inside.parts[0] == "opentrn" or len(inside.parts) == 1:
            (source / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, source / inside)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(made), str(source)], check=True)
    (built,) = made.glob("opentrn-*.whl")
    return zipfile.ZipFile(built)


def test_the_wheel_holds_the_package(wheel):
    wanted = {
        path.relative_to(rules.ROOT).as_posix()
        for path in rules.tracked()
        if path.is_relative_to(rules.PACKAGE) and path.suffix in SUFFIXES
    }
    assert "opentrn/py.typed" in wanted
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == wanted


def test_the_wheel_carries_licence_requirements_and_command(wheel):
    (info,) = {n.split("/")[0] for n in wheel.namelist() if ".dist-info/" in n}
    names = set(wheel.namelist())
    assert {f"{info}/licenses/LICENSE", f"{info}/licenses/NOTICE"} <= names
    metadata = wheel.read(f"{info}/METADATA").decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.11" in metadata
    core = [n for n in metadata.splitlines() if n.startswith("Requires-Dist") and "extra" not in n]
    assert len(core) == len(rules.CORE_PACKAGES)
    for package in rules.CORE_PACKAGES:
        assert any(line.split()[1].startswith(package) for line in core), package
    assert "opentrn = opentrn.cli:main" in wheel.read(f"{info}/entry_points.txt").decode()
