"""The public parameters of the Vector Engine's instructions: names, order, which have defaults."""

import pytest

from opentrn.isa import signature
from opentrn.isa.enums import engine, reduce_cmd
from opentrn.isa.vector import (
    memset,
    reciprocal,
    scalar_tensor_tensor,
    tensor_copy,
    tensor_copy_predicated,
    tensor_scalar,
    tensor_tensor,
)
from opentrn.isa.vector_reduce import (
    bn_aggr,
    bn_stats,
    tensor_reduce,
    tensor_scalar_cumulative,
    tensor_scalar_reduce,
    tensor_tensor_scan,
)
from opentrn.isa.vector_search import (
    max8,
    nc_find_index8,
    nc_match_replace8,
    nc_stream_shuffle,
    range_select,
    select_reduce,
)

# As the NKI 0.6 API reference (nki.isa) prints them; "=" marks a default.
PUBLIC = {
    tensor_copy: "dst src engine=",
    memset: "dst value engine=",
    tensor_tensor: "dst data1 data2 op engine=",
    tensor_scalar: "dst data op0 operand0 reverse0= op1= operand1= reverse1= engine=",
    scalar_tensor_tensor: "dst data op0 operand0 op1 operand1 reverse0= reverse1=",
    reciprocal: "dst data",
    tensor_copy_predicated: "dst src predicate reverse_pred=",
    tensor_reduce: "dst op data axis negate= keepdims=",
    tensor_scalar_reduce: "dst data op0 operand0 reduce_op reduce_res= reverse0= reduce_cmd= "
    "reduce_init= reduce_res_negate=",
    tensor_scalar_cumulative: "dst src op0 op1 imm0 imm1= reduce_cmd=",
    tensor_tensor_scan: "dst data0 data1 initial op0 op1 reverse0= reverse1=",
    bn_stats: "dst data",
    bn_aggr: "dst data",
    max8: "dst src",
    nc_find_index8: "dst data vals",
    nc_match_replace8: "dst data vals imm dst_idx=",
    range_select: "dst on_true_tile comp_op0 comp_op1 bound0 bound1 reduce_cmd= reduce_res= "
    "reduce_op= range_start= on_false_value=",
    select_reduce: "dst predicate on_true on_false reduce_res= reduce_cmd= reduce_op= "
    "reverse_pred=",
    nc_stream_shuffle: "dst src shuffle_mask",
}


@pytest.mark.parametrize("cls", PUBLIC, ids=lambda c: c.__name__)
def test_public_parameters(cls):
    parameters = signature(cls).parameters.values()
    shown = [p.name + ("" if p.default is p.empty else "=") for p in parameters]
    assert shown == [*PUBLIC[cls].split(), "name="]


def test_default_values():
    def default(cls, name):
        return signature(cls).parameters[name].default

    for cls in (tensor_copy, memset, tensor_tensor, tensor_scalar):
        assert default(cls, "engine") is engine.unknown
    for cls in (tensor_scalar_reduce, tensor_scalar_cumulative, range_select):
        assert default(cls, "reduce_cmd") is reduce_cmd.reset_reduce
    assert default(select_reduce, "reduce_cmd") is reduce_cmd.idle
    for cls in (range_select, select_reduce):
        assert default(cls, "reduce_op").name == "maximum"
        assert default(cls, "reduce_res") is None
    assert default(range_select, "on_false_value") == -(2.0**128 - 2.0**104)
    assert default(tensor_scalar, "op1") is None
    for name in ("negate", "keepdims"):
        assert default(tensor_reduce, name) is False
