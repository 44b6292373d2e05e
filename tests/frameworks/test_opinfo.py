"""PyTorch's OpInfo samples on the device `neuron`: every op passes, or fails as the table says.

A part of the ops runs here; `make opinfo` runs all.  The table, opinfo_expected.json, is written by
`python -m tests.frameworks.opinfo`.
"""

import json
import os

import pytest

pytest.importorskip("torch", reason="the extra `torch` is not installed")
opinfo = pytest.importorskip("tests.frameworks.opinfo", reason="PyTorch's OpInfo tables")

EXPECTED = json.loads(opinfo.EXPECTED.read_text())
WHOLE = os.environ.get("OPENTRN_OPINFO") == "all"
# In a short run: every so many ops, so that all kinds of them are among those.
EVERY = 1 if WHOLE else 23
EVERY_DTYPE = opinfo.PASSES if WHOLE else [("float32", "forward"), ("bfloat16", "gradient")]


def cases():
    ops = list(opinfo.every().items())[::EVERY]
    for dtype, what in EVERY_DTYPE:
        for name, info in ops:
            if not opinfo.has(info, dtype, what):
                continue  # PyTorch has no samples
            told = EXPECTED.get(name, {}).get(opinfo.key(dtype, what))
            marks = pytest.mark.xfail(reason=": ".join(told), strict=True) if told else ()
            yield pytest.param(name, dtype, what, marks=marks, id=f"{name} {dtype} {what}")


@pytest.mark.parametrize(("name", "dtype", "what"), list(cases()))
def test_an_op_gives_the_cpus_numbers(name, dtype, what):
    found = opinfo.outcome(name, opinfo.every()[name], dtype, what)
    assert found == opinfo.Outcome("passed")
