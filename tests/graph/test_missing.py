"""Ops of nearly the name, and the one error for all that have no rule."""

import pytest

from opentrn.base import Where
from opentrn.graph import TORCH_RULES, near_op
from opentrn.graph.importers.missing import unsupported


@pytest.mark.parametrize(
    "name",
    ["aten::_linalg_svd", "aten::_fft_r2c", "aten::cholesky_inverse", "aten::linalg_eig",
     "aten::special_bessel_j0", "aten::special_zeta", "custom::mine"],
)  # fmt: skip
def test_other_ops_are_not_offered_as_near(name):
    assert near_op(name, TORCH_RULES) == ""


def test_misspelt_ops_are():
    assert near_op("aten::_index_put_impl", ["aten::index_put", "aten::add"]) == "aten::index_put"
    assert near_op("custom_call @mhlo.topc", ["custom_call @mhlo.topk"]) == "custom_call @mhlo.topk"
    assert near_op("Conv2", ["Conv", "Relu"]) == "Conv"


def test_every_op_is_named_once_with_its_count_in_five_lines():
    places = {f"aten::odd_{k}": [Where("m.py", k + 1)] * (k + 1) for k in range(30)}
    error = unsupported("model uses {} torch op", places, 900, ["aten::add"], "write it anew")
    lines = str(error).splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("this model uses 30 torch ops that have no rule (465 of 900 nodes)")
    for k in range(30):
        assert lines[0].count(f"{k + 1} × aten::odd_{k}{',' if k else ''}") == 1
    assert "m.py:1" in lines[1]
    one = unsupported("model uses {} torch op", {"aten::odd": [None]}, 9, [], "write it anew")
    assert one.what == "this model uses 1 torch op that has no rule (1 of 9 nodes): 1 × aten::odd"
