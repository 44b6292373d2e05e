"""Keras models train on real digits on the simulated chip, on both backends (`make keras`: all)."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "keras_digits.py"
EVERY = [(model, backend) for model in ("mlp", "cnn", "mha", "lstm")
         for backend in ("tensorflow", "jax")]  # fmt: skip
QUICK = [("mlp", "tensorflow"), ("mlp", "jax")]
RUN = EVERY if os.environ.get("OPENTRN_KERAS") else QUICK


@pytest.mark.parametrize(("model", "backend"), RUN)
def test_digits_are_learned(model, backend):
    for package in ("tensorflow", "keras", "sklearn", "jax"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed (the extras `tensorflow` and `demo`)")
    done = subprocess.run(
        [sys.executable, EXAMPLE, model], capture_output=True, text=True, check=False,
        env={**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip
    told = re.search(rf"{model} on {backend}: ([0-9.]+)% of 360 digits", done.stdout)
    assert told is not None, done.stderr[-3000:]
    assert float(told[1]) >= 97.0
