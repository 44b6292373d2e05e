"""Run the command as a user does: in a process of its own."""

import os
import subprocess
import sys
from collections import namedtuple

import pytest

Result = namedtuple("Result", "status out err")


@pytest.fixture
def opentrn(tmp_path):
    """Call `opentrn ARGUMENTS` in an empty directory; `env` adds variables, None removes one."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("NKI_", "NEURON_"))}

    def call(*arguments, env=()):
        variables = {k: v for k, v in {**clean, **dict(env)}.items() if v is not None}
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "opentrn", *map(str, arguments)],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture
def script(tmp_path):
    """Write a script into the directory the command runs in; return its path."""

    def write(text, name="script.py"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write
