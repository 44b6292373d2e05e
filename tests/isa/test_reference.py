"""Reference pages, signatures and worked explanations of every instruction."""

import inspect
import re

import pytest

from opentrn import base, hw, isa
from opentrn.base import TrnError, UnknownNameError
from opentrn.isa import reference
from opentrn.isa.define import INSTRUCTIONS

# The public functions of nki.isa 0.6 with their parameters and defaults (members by name), from
# the API reference (aws-neuron-sdk 81ce03ae, nki/api/nki/isa/__init__.py).  Two differences: the
# register functions take `name` as all others do, and on_false_value of range_select, which the
# reference leaves out, is the lowest float32.
PUBLIC = """
dma_copy(dst, src, priority=None, oob_mode=error, dge_mode=unknown, engine=unknown, name=None)
tensor_copy(dst, src, engine=unknown, name=None)
memset(dst, value, engine=unknown, name=None)
tensor_copy_predicated(dst, src, predicate, reverse_pred=False, name=None)
nc_matmul(dst, stationary, moving, is_stationary_onezero=False, is_moving_onezero=False,
    is_transpose=False, accumulate=None, tile_position=(), tile_size=(), perf_mode=none,
    name=None)
nc_matmul_mx(dst, stationary, moving, stationary_scale, moving_scale, tile_position=None,
    tile_size=None, accumulate=None, name=None)
nc_transpose(dst, data, engine=unknown, name=None)
dma_transpose(dst, src, axes=None, priority=None, dge_mode=unknown, oob_mode=error, name=None)
tensor_tensor(dst, data1, data2, op, engine=unknown, name=None)
tensor_scalar(dst, data, op0, operand0, reverse0=False, op1=None, operand1=None, reverse1=False,
    engine=unknown, name=None)
tensor_reduce(dst, op, data, axis, negate=False, keepdims=False, name=None)
tensor_partition_reduce(dst, op, data, name=None)
tensor_scalar_cumulative(dst, src, op0, op1, imm0, imm1=None, reduce_cmd=reset_reduce,
    name=None)
activation(dst, op, data, bias=None, scale=1.0, reduce_op=None, reduce_res=None,
    reduce_cmd=idle, name=None)
activation_reduce(dst, op, data, reduce_op, reduce_res, bias=None, scale=1.0, name=None)
activate2(dst, op, data, imm0, imm1, op0, op1, relu_param=0.0, reverse0=False, reverse1=False,
    reduce_op=None, reduce_res=None, reduce_cmd=idle, name=None)
iota(dst, pattern, offset=0, channel_multiplier=0, name=None)
affine_select(dst, pattern, channel_multiplier, on_true_tile, on_false_value, cmp_op=equal,
    offset=0, name=None)
local_gather(dst, src_buffer, index, num_elem_per_idx=1, num_valid_indices=None, name=None)
nc_n_gather(dst, data, indices, name=None)
bn_stats(dst, data, name=None)
bn_aggr(dst, data, name=None)
tensor_tensor_scan(dst, data0, data1, initial, op0, op1, reverse0=False, reverse1=False,
    name=None)
nc_stream_shuffle(dst, src, shuffle_mask, name=None)
rng(dst, engine=vector, name=None)
dropout(dst, data, prob, name=None)
set_rng_seed(src_seeds, name=None)
rand_set_state(src_seeds, engine=gpsimd, name=None)
rand_get_state(dst, engine=gpsimd, name=None)
rand2(dst, min, max, name=None)
exponential(dst, src, max_value=0.0, reduce_res=None, reduce_cmd=idle, reduce_init=0.0,
    name=None)
reciprocal(dst, data, name=None)
max8(dst, src, name=None)
sequence_bounds(dst, segment_ids, name=None)
scalar_tensor_tensor(dst, data, op0, operand0, op1, operand1, reverse0=False, reverse1=False,
    name=None)
tensor_scalar_reduce(dst, data, op0, operand0, reduce_op, reduce_res=None, reverse0=False,
    reduce_cmd=reset_reduce, reduce_init=None, reduce_res_negate=False, name=None)
core_barrier(data, cores, engine=gpsimd, name=None)
dma_compute(dst, srcs, reduce_op, scales=None, unique_indices=True, oob_mode=error, name=None)
quantize_mx(dst, src, dst_scale, name=None)
range_select(dst, on_true_tile, comp_op0, comp_op1, bound0, bound1, reduce_cmd=reset_reduce,
    reduce_res=None, reduce_op=maximum, range_start=0, on_false_value=-3.4028234663852886e+38,
    name=None)
select_reduce(dst, predicate, on_true, on_false, reduce_res=None, reduce_cmd=idle,
    reduce_op=maximum, reverse_pred=False, name=None)
sendrecv(src, dst, send_to_rank, recv_from_rank, pipe_id, dma_engine=dma, name=None)
register_move(dst, src)
register_load(dst, src)
register_store(dst, src)
nc_find_index8(dst, data, vals, name=None)
nc_match_replace8(dst, data, vals, imm, dst_idx=None, name=None)
nonzero_with_count(dst, src, index_offset=0, padding_val=-1, name=None)
topk(val_dst, idx_dst, src, n, name=None)
all_reduce(srcs, dsts, replica_group, op, priority=None, name=None)
all_gather(srcs, dsts, replica_group, collective_dim, priority=None, name=None)
all_gather_v(srcs, dsts, replica_group, metadata_tensor, recv_counts_known=False,
    has_rdispls=False, priority=None, name=None)
reduce_scatter(srcs, dsts, replica_group, collective_dim, op, priority=None, name=None)
all_to_all(srcs, dsts, replica_group, collective_dim, priority=None, name=None)
all_to_all_v(srcs, dsts, replica_group, metadata_tensor, recv_counts_known=False,
    has_rdispls=False, priority=None, name=None)
collective_permute(srcs, dsts, source_target_pairs, priority=None, name=None)
collective_permute_implicit(srcs_by_channel, dsts_by_channel, replica_group, channel_ids=[0],
    priority=None, name=None)
collective_permute_implicit_reduce(srcs0_by_channel, srcs1_by_channel, dsts_by_channel,
    replica_group, op, channel_ids=[0], priority=None, name=None)
collective_permute_implicit_current_processing_rank_id(iteration_id, replica_group, channel_id=0,
    name=None)
rank_id(name=None)
"""
EXPECTED = dict(re.findall(r"(\w+)\(([^)]*(?:\(\)[^)]*)*)\)\n", re.sub(r"\n +", " ", PUBLIC)))
EVERY = sorted(INSTRUCTIONS)


def written(cls):
    """The signature as the table above writes it."""
    parts = []
    for name, parameter in isa.signature(cls).parameters.items():
        default = parameter.default
        if default is inspect.Parameter.empty:
            parts.append(name)
        else:
            parts.append(f"{name}={getattr(default, 'name', default)}")
    return ", ".join(parts)


def test_the_table_is_read_whole():
    assert len(EXPECTED) == 60
    assert EXPECTED["dma_transpose"].startswith("dst, src, axes=None, priority=None")
    assert EXPECTED["nc_matmul"].endswith("tile_size=(), perf_mode=none, name=None")


@pytest.mark.parametrize("name", EVERY)
def test_signatures_are_the_public_ones(name):
    assert written(INSTRUCTIONS[name]) == EXPECTED[name]


@pytest.mark.parametrize("name", EVERY)
def test_every_instruction_has_a_page_with_everything(name):
    cls = INSTRUCTIONS[name]
    text = reference.page(name)
    assert text.startswith(f"{name}({EXPECTED[name].split(',')[0]}")
    first = cls.__doc__.strip().splitlines()[0]
    assert first in text
    for word in (*cls.parameters, *cls.dims):
        assert re.search(rf"\b{word}\b", text)
    for law in (*cls.dims.values(), *cls.flags.values()):
        assert law.why in text
    law = getattr(cls, "cycles", None) or cls.transfer
    assert law.source in text
    assert law.grade in text
    for chip in hw.chips():
        assert (chip in text) == (hw.chip(chip).generation in cls.generations)


@pytest.mark.parametrize("name", EVERY)
def test_a_legal_example_is_found_on_every_chip_that_has_the_instruction(name):
    cls = INSTRUCTIONS[name]
    for chip in map(hw.chip, hw.chips()):
        found = reference.sample(cls, chip)
        if chip.generation in cls.generations:
            cls(chip, *found)
        else:
            assert found is None


def test_limits_of_each_chip():
    # facts: one PSUM bank of 2 KiB holds 512 float32; trn3 lets one matmul fill 16 KiB
    page = reference.page("nc_matmul")
    assert "512 on trn1" in page
    assert "512 on trn2" in page
    assert "4096 on trn3" in page
    assert re.search(r"K +≤ 128 ", page)


def test_an_unknown_page():
    with pytest.raises(UnknownNameError) as caught:
        reference.page("nc_matmull")
    assert "nc_matmul" in caught.value.fix


@pytest.mark.parametrize(
    "code",
    [
        "nc_matmul.N",
        "nc_matmul.dst",
        "nc_matmul.stationary.dtype",
        "activation.P",
        "activation.bias",
        "activation.scale.dtype",
        "activation.start_partition",
        "activate2.generation",
        "iota.dst",
        "tensor_copy.engine",
        "tensor_scalar.operand0.dtype",
    ],
)
def test_explanations_with_a_wrong_and_a_right_example(code):
    text = reference.explain(code)
    assert text.startswith(code)
    wrong, why, right = reference.example(code)
    for part in (f"wrong {wrong}", why, f"right {right}"):
        assert part in text
    assert wrong != right
    assert wrong.startswith(code.split(".")[0] + "(")


def test_the_wrong_example_is_one_step_over_the_limit():
    wrong, why, right = reference.example("nc_matmul.K")
    assert "stationary=sbuf[129, 8]" in wrong
    assert "K = 129, at most 128" in why
    assert "stationary=sbuf[128, 8]" in right


def test_most_codes_of_most_instructions_have_an_example():
    codes = [
        f"{name}.{part}"
        for name, cls in INSTRUCTIONS.items()
        for part in (*cls.dims, *cls.operands, *(f"{o}.dtype" for o in cls.operands))
    ]
    found = [code for code in codes if reference.example(code) is not None]
    assert len(found) > 0.8 * len(codes)


def test_other_declared_codes_are_explained_too():
    text = reference.explain("isa.text")
    assert text.splitlines()[0] == "isa.text"
    assert base.explanation("isa.text").meaning in text


def test_unknown_codes_name_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        reference.explain("nc_matmul.KK")
    assert caught.value.code == "isa.unknown_code"
    assert "nc_matmul.K" in caught.value.fix


def test_what_an_instruction_refuses_is_explained():
    chip, operands, flags = (
        hw.chip("trn2"),
        *reference.sample(INSTRUCTIONS["iota"], hw.chip("trn2")),
    )
    tile = operands[0]._replace(space="psum")
    with pytest.raises(TrnError) as caught:
        INSTRUCTIONS["iota"](chip, (tile,), flags)
    assert caught.value.code in reference.explain(caught.value.code)
