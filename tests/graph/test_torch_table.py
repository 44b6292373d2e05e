"""The table of torch rules, without torch: schemas are parsed, and rules that lie do not enter."""

import inspect
import subprocess
import sys

import pytest

from opentrn.base import Bug
from opentrn.graph import g
from opentrn.graph.importers.torch import KEPT, SKIPPED
from opentrn.graph.importers.torch_rules import RULES, parse, torch_op
from opentrn.graph.importers.torch_types import broadcast_shape, common_dtype, not_negative, wider

EMPTY = inspect.Parameter.empty


def test_schemas_are_parsed():
    name, parameters = parse(
        "aten::conv2d(Tensor input, Tensor? bias=None, SymInt[2] stride=[1, 1], float eps=1e-05, "
        "*, str mode=\"none\", Device? device=None, bool x=False) -> (Tensor, Tensor)")
    assert name == "aten::conv2d"
    assert parameters == {"input": EMPTY, "bias": None, "stride": [1, 1], "eps": 1e-5,
                          "mode": "none", "x": False}
    assert parse("aten::t(Tensor(a) self) -> Tensor(a)") == ("aten::t", {"self": EMPTY})
    assert parse("aten::f() -> Tensor") == ("aten::f", {})


def fine(g, self, other, alpha=1):
    """self"""
    return self


SCHEMA = "aten::made_up(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"


def swapped(g, other, self, alpha=1):
    """other"""


def another_default(g, self, other, alpha=2):
    """self"""


def silent(g, self, other, alpha=1):
    return self


@pytest.mark.parametrize(
    ("function", "match"),
    [(swapped, r"says \(self, other, alpha\)"), (another_default, "defaults to 1"),
     (silent, "say what it computes")],
)
def test_a_rule_that_differs_from_its_schema_does_not_enter(function, match):
    with pytest.raises(Bug, match=match):
        torch_op(SCHEMA)(function)
    assert "aten::made_up" not in RULES


def test_an_op_has_one_rule():
    torch_op(SCHEMA)(fine)
    try:
        with pytest.raises(Bug, match="two rules for aten::made_up"):
            torch_op(SCHEMA)(fine)
    finally:
        del RULES["aten::made_up"]


def test_what_is_kept_whole_has_a_rule():
    assert [k for k in KEPT if f"aten::{k}" not in RULES] == []
    assert not set(SKIPPED) & set(RULES)
    assert len(RULES) >= 200


def test_importing_the_room_does_not_import_torch():
    code = "import sys, opentrn.graph; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


X = g.input("x", (3,), "bfloat16")
S = g.input("s", (), "float32")
I = g.input("i", (3,), "int32")  # noqa: E741 - an integer
B = g.input("b", (3,), "bool")


@pytest.mark.parametrize(
    ("operands", "want"),
    [
        ((X, S), "bfloat16"), ((X, 2), "bfloat16"), ((X, 2.5), "bfloat16"), ((I, 2), "int32"),
        ((I, 2.5), "float32"), ((I, S), "float32"), ((B, 2), "int64"), ((B, True), "bool"),
        ((X, I), "bfloat16"), ((B, I), "int32"),
    ],
)
def test_promotion_follows_torch(operands, want):
    assert common_dtype(*operands) == want


def test_pairs_of_dtypes():
    from opentrn.base import dtype
    for a, b, want in (("float16", "bfloat16", "float32"), ("uint8", "int8", "int16"),
                       ("uint8", "int32", "int32"), ("int64", "float16", "float16"),
                       ("bool", "uint8", "uint8"), ("float64", "float32", "float64")):
        assert wider(dtype(a), dtype(b)) == wider(dtype(b), dtype(a)) == want


def test_shapes_broadcast():
    assert broadcast_shape((3, 1), (4,), ()) == (3, 4)
    assert broadcast_shape((0,), (1,)) == (0,)


def test_indices_known_not_to_be_negative():
    line = g.iota((4,), 0, "int64")
    assert not_negative(g.reshape(line + 3, (2, 2)))
    assert not_negative(g.constant([0, 5]))
    assert not not_negative(g.constant([0, -5]))
    assert not not_negative(I)
    assert not not_negative(line - 3)
