"""`opentrn compile` and `opentrn analyze` of StableHLO files and JAX functions."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from opentrn import runtime
from opentrn.cli import main

jax = pytest.importorskip("jax", reason="the extra `jax` is not installed")
jnp = jax.numpy
neuron = pytest.importorskip("opentrn.frameworks.jax", reason="the extra `jax`")

SHAPES = (jax.ShapeDtypeStruct((8, 16), np.float32), jax.ShapeDtypeStruct((16, 4), np.float32))
SOURCE = '''
import jax
import jax.numpy as jnp
import numpy as np

def function(x, w):
    return jax.nn.softmax(x @ w)

def build():
    return function, (jax.ShapeDtypeStruct((8, 16), np.float32), jnp.ones((16, 4)))
'''


def softmax(x, w):
    return jax.nn.softmax(x @ w)


def spectrum(x, w):
    return jnp.tanh(x @ w), jnp.fft.fft(x @ w).real


def opentrn(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


@pytest.fixture
def files(tmp_path):
    for function in (softmax, spectrum):
        text = jax.jit(function).lower(*SHAPES).as_text(debug_info=True)
        (tmp_path / f"{function.__name__}.mlir").write_text(text)
    (tmp_path / "model.py").write_text(SOURCE)
    return tmp_path


@pytest.mark.parametrize("model", ["softmax.mlir", "model.py:build"])
def test_compiled_programs_run(files, model):
    done = opentrn("compile", files / model, "-o", files / "x.trn", "--dtype", "float32")
    assert done.exit_code == 0, done.output
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=s.shape).astype(np.float32) for s in SHAPES)
    found = runtime.load(files / "x.trn")(x, w)
    np.testing.assert_allclose(found, np.asarray(softmax(x, w)), rtol=1e-5, atol=1e-6)


def test_an_analysis_names_what_does_not_run(files):
    good = opentrn("analyze", files / "softmax.mlir")
    assert good.exit_code == 0
    assert "unsupported" not in good.output
    bad = opentrn("analyze", files / "spectrum.mlir", "--json")
    assert bad.exit_code == 1
    told = json.loads(bad.output)
    assert told["schema"] == "opentrn.analysis/1"
    assert not told["runs"]
    by_op = {v["op"]: v for v in told["verdicts"]}
    assert by_op["tanh"]["outcome"] == "runs"
    assert by_op["dot_general"]["outcome"] == "runs"
    assert by_op["fft"]["outcome"] == "unsupported"
    assert by_op["fft"]["neuron"] == "NCC_EVRF004"
    (place,) = by_op["fft"]["places"]
    assert place["file"] == __file__


def test_equal_ops_are_judged_once():
    def f(x):
        y = jnp.tanh(x)
        return jnp.tanh(y) + jax.lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c) * i, x)
    found = neuron.analyze(neuron.from_jax(f, jnp.ones((4, 8))))
    assert found.runs
    (tanh,) = [v for v in found.verdicts if v.op == "tanh"]
    assert tanh.count == 4  # y itself is the first turn of the loop
    assert len(tanh.places) == 3


def test_bad_files_are_refused(files):
    missing = opentrn("compile", files / "none.mlir")
    assert missing.exit_code == 1
    assert "there is no file" in missing.output
    (files / "bad.mlir").write_text("module { func.func @main( }")
    for command in ("compile", "analyze"):
        done = opentrn(command, files / "bad.mlir")
        assert done.exit_code == 1
        assert "not a StableHLO program: line 1" in done.output
    refused = opentrn("compile", files / "spectrum.mlir")
    assert refused.exit_code == 1
    assert "1 × fft: complex64" in refused.output
