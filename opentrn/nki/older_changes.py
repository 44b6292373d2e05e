"""The facts about NKI 0.1 to 0.5: which version had which names and signatures.

From the stubs of each release (aws-neuron-sdk v2.27.0 to v2.32.0, nki/api/nki) and the migration
guide (v2.32.0, nki/migration/index.rst).  In signatures a default left empty is today's.
"""

from dataclasses import dataclass

from opentrn.base import declare


@dataclass(frozen=True)
class Change:
    """How a function was up to the version `last`.

    `signature` lists its parameters then ("" for today's); `what` and `fix` tell the change;
    `turn` names what the call becomes in `older_turns` (today's function by keywords without one);
    `now` is today's name where the old one is gone.
    """

    last: str
    signature: str
    what: str
    fix: str = ""
    turn: str = ""
    now: str = ""


_MATMUL = "dst, stationary, moving, is_stationary_onezero=, is_moving_onezero=, is_transpose="
_SELECT = "dst, on_true_tile, comp_op0, comp_op1, bound0, bound1"
_REDUCE = "dst, data, op0, operand0, reduce_op, reduce_res, reverse0="
_PERMUTED = "iteration_id, replica_group, channel_id="
_OFFSET = "`offset` moved behind the tiles in NKI 0.3 and is optional"
_OOB = "`oob_mode` stands before `name` since NKI 0.4"
_PRIORITY = "`priority` stands before the modes since NKI 0.4"
_PLACE = "`accumulate` stands before `tile_position` since NKI 0.3"
_BUFFER = "`buffer` is nl.sbuf when left out, and never a string, since NKI 0.3"
_DYNAMIC = "removed in NKI 0.4"
_KEYWORDS = "pass the arguments by keyword"

CHANGES: dict[str, tuple[Change, ...]] = {
    "nki.isa.affine_select": (
        Change(
            "0.2",
            "dst, pattern, offset, channel_multiplier, on_true_tile, on_false_value, cmp_op=, "
            "name=",
            _OFFSET,
            "pass offset= by keyword, behind the tiles",
        ),
    ),
    "nki.isa.core_barrier": (
        Change("0.2", "data, cores, engine=engine.unknown, name=", "", turn="any_engine"),
    ),
    "nki.isa.dma_compute": (
        Change(
            "0.2",
            "dst, srcs, scales, reduce_op, name=",
            "`reduce_op` comes before `scales` since NKI 0.3",
            "nisa.dma_compute(dst, srcs, reduce_op, scales=scales)",
        ),
        Change("0.3", "dst, srcs, reduce_op, scales=, unique_indices=, name=", _OOB, _KEYWORDS),
    ),
    "nki.isa.dma_copy": (
        Change(
            "0.1",
            "dst, src, dst_rmw_op=None, oob_mode=, dge_mode=, name=",
            "`dst_rmw_op` was removed in NKI 0.3",
            "nisa.dma_compute(dst, [dst, src], reduce_op)",
            turn="dma_copy",
        ),
        Change(
            "0.2",
            "dst, src, dst_rmw_op=None, oob_mode=, dge_mode=, unique_indices=True, name=",
            "`dst_rmw_op` and `unique_indices` were removed in NKI 0.3",
            "nisa.dma_compute(dst, [dst, src], reduce_op)",
            turn="dma_copy",
        ),
        Change("0.3", "dst, src, oob_mode=, dge_mode=, engine=, name=", _PRIORITY, _KEYWORDS),
    ),
    "nki.isa.dma_transpose": (
        Change("0.1", "dst, src, axes=, dge_mode=, name=", _PRIORITY, turn="dma_transpose"),
        Change(
            "0.3", "dst, src, axes=, dge_mode=, oob_mode=, name=", _PRIORITY, turn="dma_transpose"
        ),
    ),
    "nki.isa.iota": (Change("0.2", "dst, pattern, offset, channel_multiplier=, name=", _OFFSET),),
    # By the guide until 0.2; the NKI Library of 0.3 still does (cross_partition_copy at d2ad3a57).
    "nki.isa.memset": (Change("0.3", "", "", turn="memset"),),
    "nki.isa.nc_matmul": (
        Change(
            "0.2", f"{_MATMUL}, tile_position=, tile_size=, perf_mode=, name=", _PLACE, _KEYWORDS
        ),
    ),
    "nki.isa.nc_matmul_mx": (
        Change(
            "0.2",
            "dst, stationary, moving, stationary_scale, moving_scale, tile_position=, tile_size=, "
            "name=",
            _PLACE,
            _KEYWORDS,
        ),
    ),
    "nki.isa.quantize_mx": (Change("0.4", "", "", turn="quantize_mx"),),
    "nki.isa.rand_get_state": (
        Change("0.4", "dst, engine=engine.unknown, name=", "", turn="any_engine"),
    ),
    "nki.isa.rand_set_state": (
        Change("0.4", "src_seeds, engine=engine.unknown, name=", "", turn="any_engine"),
    ),
    "nki.isa.range_select": (
        Change(
            "0.1",
            f"{_SELECT}, reduce_cmd=reduce_cmd.idle, reduce_res=, reduce_op=, range_start=0.0, "
            "on_false_value=0.0, name=",
            "",
            turn="range_select",
        ),
        Change(
            "0.2",
            f"{_SELECT}, reduce_cmd=, reduce_res=, reduce_op=, range_start=0.0, "
            "on_false_value=-3.4028235e+38, name=",
            "",
            turn="range_select",
        ),
    ),
    "nki.isa.register_move": (
        Change(
            "0.2",
            "dst, imm",
            "`imm` is called `src` since NKI 0.3, and may be a register",
            "nisa.register_move(dst, src)",
            turn="register_move",
        ),
    ),
    "nki.isa.rng": (Change("0.4", "dst, engine=engine.unknown, name=", "", turn="any_engine"),),
    "nki.isa.sendrecv": (
        Change(
            "0.2",
            "src, dst, send_to_rank, recv_from_rank, pipe_id, name=None, use_gpsimd_dma=False",
            "`use_gpsimd_dma` became `dma_engine` in NKI 0.3",
            "pass dma_engine=nisa.dma_engine.gpsimd_dma",
            turn="sendrecv",
        ),
    ),
    "nki.isa.tensor_copy_dynamic_dst": (
        Change(
            "0.3",
            "dst, src, engine=, name=",
            _DYNAMIC,
            "nisa.tensor_copy(dst.ap(..., scalar_offset=index), src)",
            "always",
            now="tensor_copy",
        ),
    ),
    "nki.isa.tensor_copy_dynamic_src": (
        Change(
            "0.3",
            "dst, src, engine=, name=",
            _DYNAMIC,
            "nisa.tensor_copy(dst, src.ap(..., scalar_offset=index))",
            "always",
            now="tensor_copy",
        ),
    ),
    "nki.isa.tensor_reduce": (Change("0.2", "", "", turn="tensor_reduce"),),
    "nki.isa.tensor_scalar_reduce": (
        Change("0.3", f"{_REDUCE}, name=", "`reduce_cmd` stands before `name` since NKI 0.4"),
        Change(
            "0.5",
            f"{_REDUCE}, reduce_cmd=, reduce_init=, name=",
            "`reduce_res_negate` stands before `name` since NKI 0.6",
        ),
    ),
    "nki.collectives.collective_permute_implicit_current_processing_rank_id": (
        Change(
            "0.2",
            f"{_PERMUTED}, num_channels=1",
            "`num_channels` was removed in NKI 0.3",
            "leave it out, and pass channel_ids to collective_permute_implicit",
            turn="current_rank",
        ),
    ),
    "nki.language.ndarray": (
        Change("0.2", "shape, dtype, buffer=None, name=, address=", _BUFFER, turn="made"),
    ),
    "nki.language.zeros": (
        Change("0.2", "shape, dtype, buffer=None, name=", _BUFFER, turn="made"),
    ),
    "nki.language.num_programs": (
        Change("0.2", "axes=None", "`axes` is 0 when left out since NKI 0.3", turn="num_programs"),
    ),
    "nki.language.shared_constant": (
        Change(
            "0.2",
            "constant, dtype=None",
            "`dtype` was removed in NKI 0.3",
            "convert the array itself",
            turn="shared_constant",
        ),
    ),
}

_COLLECTIVES = (
    *("ReplicaGroup", "all_gather", "all_reduce", "all_to_all", "reduce_scatter", "rank_id"),
    *("collective_permute", "collective_permute_implicit", "collective_permute_implicit_reduce"),
    "collective_permute_implicit_current_processing_rank_id",
)

# Names of today and the version that brought them.
SINCE: dict[str, str] = {
    "nki.isa.exponential": "0.2",
    "nki.isa.nonzero_with_count": "0.2",
    "nki.isa.activate2": "0.4",
    "nki.isa.get_nc_sub_version": "0.5",
    "nki.isa.topk": "0.6",
    **dict.fromkeys((f"nki.collectives.{name}" for name in _COLLECTIVES), "0.2"),
    "nki.collectives.all_to_all_v": "0.3",
    "nki.collectives.all_gather_v": "0.6",
    "nki.language.abs_max": "0.4",
    "nki.language.abs_min": "0.4",
    "nki.language.bypass": "0.4",
    "nki.language.prelu": "0.4",
    "nki.language.average": "0.5",
    "nki.language.float8_e8m0fnu": "0.5",
    "nki.language.fori_loop": "0.6",
    "nki.language.while_loop": "0.6",
}

# Keywords of 0.1 that 0.2 renamed.
RENAMED: dict[tuple[str, str], str] = {("nc_matmul", "is_moving_zero"): "is_moving_onezero"}

for _key in CHANGES:
    _name = _key.rpartition(".")[2]
    declare(
        f"nki.migrate.{_name}",
        f"A call of {_name} that today's NKI takes otherwise, or not at all.",
        rule=f"{_name} was another up to NKI {CHANGES[_key][-1].last} (NKI migration guides)",
        fix=CHANGES[_key][-1].fix or "write the call as NKI 0.6 takes it",
    )
