"""Instructions of the Tensor Engine: matrix multiplication and transpose.

Costs: NKI ISA reference v2.26.1 (the last to print them; aws-neuron-sdk nki/api/nki/isa) and the
Trainium/Inferentia2 architecture guide (NG2:262-308): a stationary load of S columns takes S/4
cycles and hides behind the previous matmul.
"""

from operator import index

import numpy as np

from opentrn.base import (
    UsageError,
    bfloat16,
    float8_e3m4,
    float8_e4m3,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    numerics,
    tfloat32,
)
from opentrn.isa.define import Instr
from opentrn.isa.enums import engine, matmul_perf_mode
from opentrn.isa.operands import Acc, Cycles, Dim, Flag, In, Out, derived

FP8 = (float8_e4m3, float8_e5m2, float8_e4m3fn, float8_e3m4)
DOUBLE_ROW = (float8_e4m3, float8_e5m2, float8_e4m3fn)
WIDE = (float32, tfloat32)
MATMUL = (*FP8, bfloat16, float16, *WIDE)
GATHERED = (float16, bfloat16, float8_e4m3, float8_e5m2, float8_e4m3fn)


ACCUMULATE = "True adds to dst, False overwrites, None adds after first touch"


def _doubled(form) -> bool:
    return form.perf_mode is matmul_perf_mode.double_row


def _pair(names: str):
    """Layout of an operand: in double-row mode a dimension of 2 follows the partition."""
    head, tail = names.split()
    return lambda form: f"{head} 2 {tail}" if _doubled(form) else names


def pe_pair(value) -> tuple[int, ...]:
    """(rows, columns) of the PE array as two integers; empty where there are none."""
    if value is None or value == ():
        return ()
    try:
        pair = tuple(index(n) for n in value)
    except TypeError:
        pair = ()
    if len(pair) != 2:
        raise UsageError(
            f"{value!r} is no place or size in the PE array",
            code="nc_matmul.tile_size",
            rule="tile_position and tile_size are two integers, rows and columns",
            fix="pass for example tile_position=(64, 0), tile_size=(64, 128)",
        )
    return pair


def _read_mode(value):
    name = getattr(value, "name", value)
    if name not in matmul_perf_mode.__members__:
        raise UsageError(
            f"nc_matmul: perf_mode={value!r} is not a nisa.matmul_perf_mode",
            code="nc_matmul.perf_mode",
            rule="`perf_mode` is nisa.matmul_perf_mode.none or double_row",
            fix="leave `perf_mode` out, or pass nisa.matmul_perf_mode.double_row",
        )
    return matmul_perf_mode[name]


def _handed_on(rows, columns, out, add: bool):
    """The product with a moving matrix of one 1 in each column, infinities and NaN kept apart.

    Any other moving matrix gives the product: what transpose mode makes of it is not published.
    """
    ones = columns == 1
    if add or not ((ones | (columns == 0)).all() and (ones.sum(axis=0) == 1).all()):
        return numerics.dot(rows, columns, out, add)
    turned = rows[ones.argmax(axis=0)].T
    if out is None:
        return turned
    np.copyto(out, turned)
    return out


class nc_matmul(Instr):
    """dst[M,N] = stationary[K,M]ᵀ · moving[K,N], summed in float32 by the Tensor Engine.

    The result overwrites `dst`, adds to it, or (accumulate=None) adds exactly where an earlier
    matmul has already written.  In double-row mode K is split as [K, 2] in both inputs.
    """

    engines = ("tensor",)
    adds = True
    gathers = ("dst", "stationary", "moving")
    dst = Acc("psum", "M N", float32, bfloat16, float16)
    stationary = In("sbuf", _pair("K M"), *MATMUL)
    moving = In("sbuf", _pair("K N"), *MATMUL)
    is_stationary_onezero = Flag(False, "`stationary` holds only 0 and 1: twice as fast in fp32")
    is_moving_onezero = Flag(False, "`moving` holds only 0 and 1: twice as fast in fp32")
    is_transpose = Flag(False, "pass `stationary` through bit by bit (gen3 and later)")
    accumulate = Flag(None, ACCUMULATE, truth=True)
    tile_position = Flag((), "first row and column of the PE array to use", read=pe_pair)
    tile_size = Flag((), "rows and columns of the PE array to use", read=pe_pair)
    perf_mode = Flag(matmul_perf_mode.none, "double_row: two FP8 rows at once", read=_read_mode)

    K = Dim(lambda i, chip: i.pe_rows(), "one row of the PE array for each partition")
    M = Dim(lambda i, chip: i.pe_columns(), "one column of the PE array for each stationary column")
    N = Dim(
        lambda i, chip: int(chip.tensor.moving_free) * (2 if i.dst.dtype == bfloat16 else 1),
        "the result must fit the PSUM one matmul may fill (a bank of 2 KiB per partition on "
        "trn1 and trn2) as float32",
    )

    def pe_rows(self) -> int:
        """Rows of the PE array this matmul may use."""
        return int(self.tile_size[0]) if self.tile_size else int(self.chip.tensor.rows)

    def pe_columns(self) -> int:
        """Columns of the PE array this matmul may use."""
        return int(self.tile_size[1]) if self.tile_size else int(self.chip.tensor.stationary_free)

    def rules(i):
        """Laws on dtype pairs, PSUM dtype, banks, modes and PE tiles."""
        pair = {i.stationary.dtype, i.moving.dtype}
        yield (
            pair <= set(WIDE) or not pair & set(WIDE),
            "float32 (or tfloat32) pairs only with float32 (or tfloat32): "
            f"stationary is {i.stationary.dtype}, moving is {i.moving.dtype}",
            "copy both operands to one dtype with nisa.tensor_copy",
        )
        yield (
            not {float8_e4m3, float8_e4m3fn} <= pair,
            "float8_e4m3 and float8_e4m3fn do not mix in one matmul",
            "convert one operand to the other's format",
        )
        passes = i.transposes() and i.dst.dtype == i.stationary.dtype
        narrow = i.dst.dtype == bfloat16 and i.chip.generation >= 4
        yield (
            i.dst.dtype == float32 or narrow or passes,
            f"`dst` must be float32 on {i.chip.name} (bfloat16 from NeuronCore-v4 on, or where "
            "is_transpose=True passes the dtype of `stationary` on)",
            "allocate dst with dtype=nl.float32 and cast while copying out of PSUM",
        )
        yield _one_bank(i)
        yield (
            not _doubled(i) or (i.chip.generation >= 3 and pair <= set(DOUBLE_ROW)),
            "double_row needs FP8 operands and NeuronCore-v3 or later",
            "use perf_mode=none, or quantise both operands to FP8",
        )
        yield from _pe_tile_rules(i)
        yield from _gather_rules(i)

    def transposes(i) -> bool:
        """Whether the PE array hands bits on; on NeuronCore-v2 `is_transpose` is only a name."""
        return i.is_transpose and i.chip.generation >= 3

    def run(i, stationary, moving, out=None, add=False):
        """float32 product of the two tiles; put into (or with `add` added to) `out` [M, N]."""
        depth = 2 * i.K if _doubled(i) else i.K
        rows, columns = stationary.reshape(depth, i.M), moving.reshape(depth, i.N)
        if i.transposes() and not np.isfinite(rows).all():
            return {"dst": _handed_on(rows, columns, out, add)}
        return {"dst": numerics.dot(rows, columns, out, add)}

    def run_several(i, stationary: list, moving, outs: list, add: bool) -> None:
        """`run` of several stationary tiles with one moving tile, each into its own place."""
        if i.transposes() or _doubled(i):
            for one, out in zip(stationary, outs, strict=True):
                i.run(one, moving, out=out, add=add)
        else:
            lefts = [one.reshape(i.K, i.M) for one in stationary]
            numerics.dots(lefts, moving.reshape(i.K, i.N), outs, add)

    cycles = derived(
        "NKI ISA v2.26.1 nc_matmul: max(min(64, N_stationary), N_moving), ×4 for float32 (×2 with "
        "a onezero operand); NG2:285 stationary load N/4 in the background",
        lambda i, chip: _matmul_cycles(i, chip),
    )

    def flops(self) -> int:
        """2·K·M·N, twice that in double-row mode."""
        return 2 * self.K * self.M * self.N * (2 if _doubled(self) else 1)


def _one_bank(i) -> tuple[bool, str, str]:
    """The Tensor Engine fills one PSUM bank at a time, up to NeuronCore-v3."""
    bank = int(i.chip.core.psum_bank)
    return (
        i.dst.offset + i.dst.reach <= bank or i.chip.generation >= 4,
        f"`dst` must lie within one PSUM bank of {bank} bytes per partition: it reaches from byte "
        f"{i.dst.offset} of a bank to byte {i.dst.offset + i.dst.reach - 1}",
        "give each accumulation group its own PSUM tile",
    )


def _gather_rules(i):
    """Tensor indirection (NKI 0.6 API reference, nc_matmul): modes, tiling and dtypes."""
    gathered = [(name, tile) for name, tile in i.tiles() if tile.indirect == "tensor"]
    if not gathered:
        return
    yield (
        not i.is_transpose or i.moving.indirect != "tensor",
        "with is_transpose=True `moving` cannot be indirect",
        "gather with nisa.tensor_copy first",
    )
    yield (
        i.tile_position in ((), (0, 0)),
        "tensor indirection needs tile_position (0, 0)",
        "leave tile_position and tile_size out",
    )
    for name, tile in gathered:
        yield (
            tile.dtype in GATHERED,
            f"an indirect operand is {', '.join(GATHERED)}: `{name}` is {tile.dtype}",
            "give the tile one of these dtypes, or gather with nisa.tensor_copy",
        )


def _pe_tile_rules(i):
    yield (
        bool(i.tile_size) == bool(i.tile_position),
        "tile_position and tile_size must be given together",
        "pass both, or neither to use the whole PE array",
    )
    if not i.tile_size or not i.tile_position:
        return
    smallest = int(i.chip.tensor.row_tile)
    sizes, at = i.tile_size, i.tile_position
    legal = [s for s in (32, 64, 128) if s >= smallest]
    yield (
        all(s in legal for s in sizes),
        f"PE tiles have {', '.join(map(str, legal))} rows or columns on {i.chip.name}",
        "choose a legal tile_size",
    )
    yield (
        all(p % s == 0 and p + s <= 128 for p, s in zip(at, sizes, strict=True)),
        "tile_position must be a multiple of tile_size inside the 128×128 PE array",
        "move the tile",
    )
    yield (
        not _doubled(i) or sizes[1] == 128,
        "double_row does not combine with column tiling",
        "use 128 columns",
    )


def _matmul_cycles(i, chip) -> Cycles:
    wide = i.stationary.dtype == float32
    passes = chip.tensor.fp32_passes if wide else 1
    if wide and (i.is_stationary_onezero or i.is_moving_onezero):
        passes = passes / 2
    busy = max(min(chip.tensor.min_cycles, i.M), i.N) * passes
    load = i.M / chip.tensor.load_ratio * passes
    return Cycles(busy, latency=chip.tensor.latency * chip.tensor.clock, background=load)


class nc_transpose(Instr):
    """dst[F,P] = data[P,F]ᵀ on the Tensor Engine (SBUF to PSUM) or the Vector Engine (≤ 32×32).

    All free axes of `data` count as one.  The bits pass through unchanged from NeuronCore-v3 on.
    """

    waits = True
    engines = ("tensor", "vector")
    dst = Out("psum|sbuf", "F P")
    data = In("sbuf|psum", "P F")
    engine = Flag(engine.unknown, "tensor or vector; unknown picks by shape and memory")

    P = Dim(lambda i, chip: i.most(), "the PE array is 128 × 128; a Vector Engine bank 32 × 32")
    F = Dim(lambda i, chip: i.most(), "the PE array is 128 × 128; a Vector Engine bank 32 × 32")

    def most(self) -> int:
        """Largest side of the square this engine transposes."""
        return 32 if self.engine.name == "vector" else int(self.chip.tensor.rows)

    def choose(self) -> str:
        """Tensor Engine where its memories allow, Vector Engine otherwise."""
        tensor = self.data.space == "sbuf" and self.dst.space == "psum"
        return "tensor" if tensor else "vector"

    def rules(i):
        """Each engine's memories, and equal dtypes."""
        if i.engine_name == "tensor":
            yield (
                i.data.space == "sbuf" and i.dst.space == "psum",
                "the Tensor Engine reads SBUF and writes PSUM",
                "put `data` in nl.sbuf and `dst` in nl.psum, or use engine=nisa.engine.vector",
            )
            yield _one_bank(i)
        else:
            yield (
                i.P <= 32 and i.F <= 32,
                "the Vector Engine transposes at most 32 × 32",
                "cut the tile into 32 × 32 blocks, or give `dst` in nl.psum for the Tensor Engine",
            )
        yield (
            i.dst.dtype == i.data.dtype,
            f"`dst` must have the dtype of `data` ({i.data.dtype})",
            "allocate dst with dtype=data.dtype",
        )

    def run(i, data):
        """The transposed tile."""
        return {"dst": data.reshape(i.P, i.F).T}

    def exact(self) -> bool:
        """A transpose moves bits."""
        return True

    cycles = derived(
        "NKI ISA v2.26.1 nc_transpose: Tensor max(P, min(64, F)); Vector max(MIN_II, N); "
        "NG3:199 float32 transpose at 2 passes from NeuronCore-v3 on",
        lambda i, chip: _transpose_cycles(i, chip),
    )

    def flops(self) -> int:
        """A pass through the PE array counts 2·P·P·F, as the profiler counts transposes."""
        return 2 * self.P * self.P * self.F if self.engine_name == "tensor" else 0


def _transpose_cycles(i, chip) -> Cycles:
    if i.engine_name == "vector":
        latency = chip.vector.latency * chip.vector.clock
        return Cycles(max(chip.vector.min_cycles, i.F), latency=latency)
    passes = 1.0
    if i.data.dtype == float32:
        passes = chip.tensor.fp32_passes / 2 if chip.generation >= 3 else chip.tensor.fp32_passes
    busy = max(i.P, min(chip.tensor.min_cycles, i.F)) * passes
    load = i.F / chip.tensor.load_ratio * passes
    return Cycles(busy, latency=chip.tensor.latency * chip.tensor.clock, background=load)


__all__ = ["nc_matmul", "nc_transpose"]
