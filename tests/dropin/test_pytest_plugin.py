"""`pytest --opentrn`, and test runners under `opentrn run -m`, run suites that import `nki`."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

SUITE = """
import unittest

import nki
import nki.language as nl
import numpy as np


@nki.jit
def copied(a):
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(a))
    return out


class TestCopy(unittest.TestCase):
    def test_copy(self):
        x = np.ones((4, 4), np.float32)
        np.testing.assert_array_equal(copied(x), x)

    def test_target(self):
        self.assertEqual(nki.current_chip().name, "trn3")
"""
PYTEST = ("-m", "pytest", "-q", "-p", "opentrn.pytest_plugin", "-p", "no:cacheprovider")


@pytest.fixture
def suite(tmp_path):
    (tmp_path / "test_suite.py").write_text(SUITE, encoding="utf-8")
    (tmp_path / "conftest.py").write_text("import nki.isa\n", encoding="utf-8")

    def run(*arguments):
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    run.folder = tmp_path
    return run


def test_by_option(suite):
    done = suite(*PYTEST, "--opentrn", "--opentrn-target", "trn3", "-v")
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert "opentrn: nki is simulated, target trn3" in done.stdout


def test_by_configuration(suite):
    (suite.folder / "pytest.ini").write_text("[pytest]\nopentrn = true\nopentrn_target = trn3\n")
    assert "2 passed" in suite(*PYTEST).stdout


def test_idle_unless_asked(suite):
    done = suite(*PYTEST)
    assert "No module named 'nki'" in done.stdout + done.stderr
    code = "import sys, opentrn.pytest_plugin; print('numpy' in sys.modules)"
    assert suite("-c", code).stdout == "False\n"


def test_an_unknown_target_is_a_usage_error(suite):
    done = suite(*PYTEST, "--opentrn", "--opentrn-target", "trn9")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "no target is called 'trn9'" in done.stderr


@pytest.mark.parametrize("runner", [("pytest", "-q", "-p", "no:cacheprovider"), ("unittest",)])
def test_runners_as_modules(suite, runner):
    done = suite("-m", "opentrn", "run", "--target", "trn3", "-m", *runner)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout or "Ran 2 tests" in done.stderr


def test_the_package_declares_the_plugin():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    declared = tomllib.loads(text)["project"]["entry-points"]["pytest11"]
    assert declared == {"opentrn.pytest_plugin": "opentrn.pytest_plugin"}


def test_the_environment_and_an_older_nki(suite, monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "gen4")
    done = suite(*PYTEST, "--opentrn", "--opentrn-nki", "0.4", "-v")
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert "opentrn: nki is simulated, target trn3, NKI 0.4" in done.stdout
    refused = suite(*PYTEST, "--opentrn", "--opentrn-nki", "0.9")
    assert "there is no NKI 0.9" in refused.stderr
