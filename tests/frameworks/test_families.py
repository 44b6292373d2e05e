"""A few of the model families, unmodified: logits and gradients on the device are eager torch's.

`make families` runs all 27; docs/conformance.md has the table.
"""

import os

import pytest

pytest.importorskip("torch", reason="the extra `torch` is not installed")
pytest.importorskip("transformers", reason="the extra `demo` is not installed")
families = pytest.importorskip("tests.frameworks.families", reason="the extra `torch`")

WHOLE = os.environ.get("OPENTRN_FAMILIES") == "all"
FEW = ("llama", "mixtral", "resnet", "lstm", "dlrm")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", families.COLUMNS)
@pytest.mark.parametrize("name", families.FAMILIES if WHOLE else FEW)
def test_a_family_gives_eagers_logits_and_gradients(name, how):
    found = families.measure(name, *families.COLUMNS[how])
    assert found.passed, found
