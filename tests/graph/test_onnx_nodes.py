"""Every node test of the package `onnx` on ops that are built passes, within its own tolerance."""

import pytest

from opentrn.graph import from_onnx

pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

from tests.graph import onnx_nodes as data

# Whole ops that are refused: text, images in files, random numbers, classical models, …
REFUSED = {
    "ImageDecoder", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit",
    "TfIdfVectorizer", "RandomUniformLike", "Bernoulli",
    "ai.onnx.ml.ArrayFeatureExtractor", "ai.onnx.ml.Binarizer", "ai.onnx.ml.LabelEncoder",
    "ai.onnx.ml.TreeEnsemble", "ai.onnx.preview.training.Adagrad",
    "ai.onnx.preview.training.Adam", "ai.onnx.preview.training.Momentum",
}  # fmt: skip
# Uses of ops that are built, by what their refusal says.
REFUSED_USES = (
    "graphs have no float8_e4m3fnuz", "graphs have no float8_e5m2fnuz", "a tensor holds text",
    "version 1 of ONNX's operators", "dropping draws random numbers", "is a optional",
    "it computes running means, as in training", "has batches and lengths",
    "scales of 8 bits are not rounded",
)  # fmt: skip
# Floats beyond the range of int2 and int4: the operator's text leaves them undefined. The cases
# expect what one cast of NumPy's gives; `convert` gives the nearest number there is.
UNDEFINED = {
    f"test_{op}_{source}_to_{kind}{end}"
    for source in ("FLOAT", "FLOAT16") for kind in ("INT2", "INT4")
    for op, end in (("cast", ""), ("castlike", ""), ("castlike", "_expanded"))
}  # fmt: skip


@pytest.fixture(scope="module")
def results():
    return data.table()


def test_nothing_is_wrong(results):
    wrong = {name: told for name, told in results.items() if told.startswith("wrong")}
    assert {n: t for n, t in wrong.items() if n not in UNDEFINED} == {}
    assert wrong.keys() <= UNDEFINED


def test_what_is_refused_is_listed(results):
    refused = {n: t for n, t in results.items() if t.startswith("refused")}
    assert {n: t for n, t in refused.items() if not data.ops_of(data.cases()[n].model) & REFUSED
            and not any(use in t for use in REFUSED_USES)} == {}  # fmt: skip
    assert sum(t == "passed" for t in results.values()) >= 1750


def test_the_packages_stored_models_pass():
    cases = data.stored()
    told = {name: data.run(case) for name, case in cases.items()}
    refused = {"ai.onnx.preview.training.Gradient", "StringNormalizer"}
    assert {n: t for n, t in told.items()
            if t != "passed" and not data.ops_of(cases[n].model) & refused} == {}  # fmt: skip
    assert len(told) >= 140


@pytest.mark.parametrize("name", ["light_resnet50.onnx", "light_squeezenet.onnx"])
def test_image_models_are_read_whole(name):
    graph = from_onnx(data.light()[name])
    assert graph.outputs[0].shape[:2] == (1, 1000)
    assert graph.histogram()["convolution"] in (53, 26)


def test_the_checks_can_fail():
    import numpy as np

    case = data.cases()["test_abs"]
    one = np.ones(3, np.float32)
    assert data.differs(one, one, case) == ""
    assert data.differs(one, one * 1.1, case) == "has other numbers"
    assert data.differs(one, one[:2], case) == "is float32[3], not float32[2]"
    assert data.differs(one, one.astype(np.float64), case) == "is float32[3], not float64[3]"
    assert data.differs(one.astype(np.int8), 2 * one.astype(np.int8), case) == "has other numbers"
