"""Microscaling (MX) instructions of NeuronCore-v4: quantisation and matrix multiplication.

Layout (Trainium3 architecture guide, NG4; NKI "MXFP matrix multiplication" guide): an element of a
packed type holds four numbers that follow each other along the contraction; 8 partitions of them,
32 numbers, share one scale.  The scales of the 32 partitions of a quadrant lie in 4 partitions of
that quadrant, beginning at its partition 0, 4, 8 or 12.  Scales are powers of two (float8_e8m0fnu,
or its bytes as uint8); 255 is NaN.
"""

import numpy as np

from opentrn.base import (
    bfloat16,
    float4_e2m1fn_x4,
    float8_e4m3fn_x4,
    float8_e5m2_x4,
    float8_e8m0fnu,
    float16,
    float32,
    numerics,
    uint8,
)
from opentrn.isa.define import Instr
from opentrn.isa.indirection import QUADRANT
from opentrn.isa.operands import Acc, Cycles, Dim, Flag, In, InOut, Out, derived, stated
from opentrn.isa.tensor import ACCUMULATE, pe_pair
from opentrn.isa.vector_laws import VectorInstr, engine_cycles

FP8_X4 = (float8_e5m2_x4, float8_e4m3fn_x4)
MX = (*FP8_X4, float4_e2m1fn_x4)
SCALES = (float8_e8m0fnu, uint8)
GROUP, PACK = 8, 4
PER_QUADRANT = QUADRANT // GROUP
OFFSETS = (0, 4, 8, 12)
ROW_TILES = (32, 64, 128)


def scale_rows(partitions: int) -> np.ndarray:
    """Row of a scale tile for each group of 8 partitions of its data."""
    groups = np.arange(partitions // GROUP)
    return groups // PER_QUADRANT * QUADRANT + groups % PER_QUADRANT


def scale_rules(name: str, scale, data_name: str, data, columns: int):
    """Rows, columns and first partition of a scale tile beside its data."""
    last = int(scale_rows(data.partitions)[-1]) + 1
    yield (
        scale.partitions >= last,
        f"`{name}` needs {last} partitions for the {data.partitions} of `{data_name}` (4 in each "
        f"quadrant of 32): it has {scale.partitions}",
        f"allocate `{name}` with {data.partitions if data.partitions > 32 else 4} partitions",
    )
    yield (
        scale.free == columns,
        f"`{name}` has a scale for each packed column: {columns}, not {scale.free}",
        f"slice `{name}` to {columns} columns",
    )
    yield (
        data.partition % QUADRANT == 0
        and scale.partition - data.partition in OFFSETS
        and scale.partition_step == 1,
        f"`{name}` begins at partition {scale.partition}, `{data_name}` at {data.partition}: "
        "scales lie in the quadrant of their data, from its partition 0, 4, 8 or 12 on",
        "begin the scale tile 0, 4, 8 or 12 partitions after the data tile",
    )


def scale_parts(partitions: int, view) -> tuple:
    """The parts of a scale tile that belong to so many partitions of data."""
    firsts = range(0, partitions, QUADRANT)
    return tuple(view[first : first + PER_QUADRANT] for first in firsts)


# ---------------------------------------------------------------------- quantisation


class quantize_mx(VectorInstr):
    """dst = src / dst_scale in MXFP8, one scale for each 8 partitions × 4 elements of src.

    With a = max |src| of such a group the scale is 2^(⌊log2 a⌋ − (E − 1)), E being 8 for
    float8_e4m3fn and 15 for float8_e5m2: twice that of the OCP example, so that the largest value
    can be rounded without clamping.  An all-zero group has scale 2^-127.
    """

    generations = (4,)
    packs = True
    partial = True
    example = {"P": QUADRANT, "F": 32, "W": 8, "S": QUADRANT, "G": 8}
    dst = Out("sbuf", "P W", *FP8_X4)
    src = In("sbuf", "P F", float16, bfloat16)
    dst_scale = InOut("sbuf", "S G", *SCALES, engine_side=False)

    P = Dim(
        lambda i, chip: int(chip.core.partitions),
        "whole quadrants of 32 partitions",
        multiple=QUADRANT,
        least=QUADRANT,
    )
    F = Dim(
        lambda i, chip: int(chip.vector.free_sbuf),
        "four elements are packed into one",
        multiple=PACK,
        least=PACK,
    )
    W = Dim(None, "a quarter of the free size of `src`")
    S = Dim(lambda i, chip: int(chip.core.partitions), "4 of each 32 partitions hold scales")
    G = Dim(None, "a scale for each packed column")

    def laws(i):
        """Sizes, and where the scales lie."""
        yield (
            i.W * PACK == i.F,
            f"`dst` has a quarter of the elements of `src`: {i.F // PACK}, not {i.W}",
            f"allocate dst with shape ({i.P}, {i.F // PACK})",
        )
        yield from scale_rules("dst_scale", i.dst_scale, "src", i.src, i.F // PACK)

    def parts(i, name, view):
        """All of dst; of the scales four rows in each quadrant."""
        return scale_parts(i.P, view) if name == "dst_scale" else (view,)

    def exact(self) -> bool:
        """Words and scales go out as they are."""
        return True

    def run(i, src, dst_scale):
        """Packed words, and the scale tile with its rows replaced."""
        element = i.dst.dtype.element
        groups = src.reshape(i.P // GROUP, GROUP, i.W, PACK).transpose(0, 2, 1, 3)
        values, scales = numerics.quantise_mx(groups.reshape(-1, i.W, GROUP * PACK), element)
        values = values.reshape(-1, i.W, GROUP, PACK).transpose(0, 2, 1, 3)
        words = numerics.pack_x4(values.reshape(i.P, i.F), i.dst.dtype)
        held = np.array(dst_scale).reshape(i.S, i.G)
        held[scale_rows(i.P)] = _coded(scales[..., 0], i.dst_scale.dtype)
        return {"dst": words.reshape(i.dst.shape), "dst_scale": held.reshape(i.dst_scale.shape)}

    cycles = stated(
        "NG4 QuantizeMX: four input elements for each partition and cycle: max(MIN_II, F/4)",
        lambda i, chip: engine_cycles(i, i.F / PACK),
    )


def _coded(scales: np.ndarray, dtype) -> np.ndarray:
    """float32 powers of two as the carrier of a scale tile."""
    if dtype == uint8:
        return numerics.encode(scales, float8_e8m0fnu).view(np.uint8)
    return scales


# ---------------------------------------------------------------------- multiplication


class nc_matmul_mx(Instr):
    """dst[M,N] = Σ_k Σ_q stationary[k,m,q]·2^a · moving[k,n,q]·2^b, q = 0…3, summed in float32.

    a and b are the exponents in `stationary_scale` and `moving_scale`, one for each 8 partitions k
    and column.  fp8 and fp4 may be mixed.  The result overwrites `dst`, adds to it, or
    (accumulate=None) adds exactly where an earlier matmul has already written.
    """

    engines = ("tensor",)
    generations = (4,)
    partial = True
    gathers = ("dst", "stationary", "moving", "stationary_scale", "moving_scale")
    dst = Acc("psum", "M N", float32, bfloat16)
    stationary = In("sbuf", "K M", *MX)
    moving = In("sbuf", "K N", *MX)
    stationary_scale = In("sbuf", "* *", *SCALES, engine_side=False)
    moving_scale = In("sbuf", "* *", *SCALES, engine_side=False)
    tile_position = Flag(None, "first row and column of the PE array", read=pe_pair)
    tile_size = Flag(None, "rows of the PE array (32, 64 or 128) and 128 columns", read=pe_pair)
    accumulate = Flag(None, ACCUMULATE, truth=True)

    K = Dim(
        lambda i, chip: i.pe_rows(),
        "a row of the PE array takes four numbers; scales come for whole quadrants",
        multiple=QUADRANT,
        least=QUADRANT,
    )
    M = Dim(
        lambda i, chip: int(chip.tensor.stationary_free),
        "one column of the PE array for each; they are loaded in pairs",
        multiple=2,
        least=2,
    )
    N = Dim(
        lambda i, chip: int(chip.tensor.moving_free) * (2 if i.dst.dtype == bfloat16 else 1),
        "the result must fit PSUM: 8 banks of 2 KiB per partition",
    )

    def pe_rows(self) -> int:
        """Rows of the PE array this matmul may use."""
        return int(self.tile_size[0]) if self.tile_size else int(self.chip.tensor.rows)

    def rules(i):
        """PE tiles, scales, pairs of indices."""
        yield from _row_tile_rules(i)
        for name in ("stationary", "moving"):
            data, scale = getattr(i, name), getattr(i, f"{name}_scale")
            yield from scale_rules(f"{name}_scale", scale, name, data, data.free)
            same = (data.indirect, data.index and data.index.tile) == (
                scale.indirect,
                scale.index and scale.index.tile,
            )
            yield (
                same,
                f"`{name}` and `{name}_scale` are one matrix: both are indirect by the same index, "
                "or neither",
                "call .indirect() on both with one index tile",
            )

    def parts(i, name, view):
        """Of the scales four rows in each quadrant."""
        return scale_parts(i.K, view) if name.endswith("_scale") else (view,)

    def run(i, stationary, moving, stationary_scale, moving_scale, out=None):
        """float32 product of the dequantised matrices."""
        left = _unpacked(i.stationary, stationary), _exponents(i, "stationary", stationary_scale)
        right = _unpacked(i.moving, moving), _exponents(i, "moving", moving_scale)
        product = numerics.dot_mx(*left, *right)
        if out is not None:
            np.copyto(out, product)
        return {"dst": product}

    cycles = derived(
        "NG4: MX at the rows a cycle of bfloat16 with four numbers a row (4 times its throughput); "
        "as nc_matmul (ISA v2.26.1): max(min(64, M), N), stationary load M/4 in the background",
        lambda i, chip: _matmul_cycles(i, chip),
    )

    def flops(self) -> int:
        """2·K·M·N for each of the four numbers in a word."""
        return 2 * PACK * self.K * self.M * self.N


def _unpacked(tile, words: np.ndarray) -> np.ndarray:
    """Packed [K, C] as float32 [4K, C]: 32 rows in a group."""
    words = np.ascontiguousarray(words).reshape(tile.partitions, tile.free)
    values = numerics.unpack_x4(words, tile.dtype).reshape(tile.partitions, tile.free, PACK)
    return values.transpose(0, 2, 1).reshape(PACK * tile.partitions, tile.free)


def _exponents(i, name: str, scale: np.ndarray) -> np.ndarray:
    """float32 powers of two [K/8, C] of one matrix."""
    tile = getattr(i, f"{name}_scale")
    rows = np.ascontiguousarray(scale).reshape(tile.partitions, tile.free)[scale_rows(i.K)]
    return numerics.decode(rows, float8_e8m0fnu) if tile.dtype == uint8 else rows


def _row_tile_rules(i):
    yield (
        bool(i.tile_size) == bool(i.tile_position),
        "tile_position and tile_size must be given together",
        "pass both, or neither to use the whole PE array",
    )
    if not i.tile_size or not i.tile_position:
        return
    (rows, columns), (row, column) = i.tile_size, i.tile_position
    yield (
        rows in ROW_TILES and columns == 128,
        f"an MX tile has 32, 64 or 128 rows and 128 columns, not {rows} × {columns}",
        "choose a legal tile_size: row tiling only",
    )
    yield (
        column == 0 and row % rows == 0 and 0 <= row <= 128 - rows,
        f"tile_position is (a multiple of {rows} below 128, 0), not ({row}, {column})",
        "move the tile",
    )
    gathered = any(tile.indirect == "tensor" for _, tile in i.tiles())
    yield (
        (row, column) == (0, 0) or not gathered,
        "tensor indirection needs tile_position (0, 0)",
        "leave tile_position and tile_size out",
    )


def _matmul_cycles(i, chip) -> Cycles:
    busy = max(min(chip.tensor.min_cycles, i.M), i.N)
    latency = chip.tensor.latency * chip.tensor.clock
    return Cycles(busy, latency=latency, background=i.M / chip.tensor.load_ratio)


__all__ = ["nc_matmul_mx", "quantize_mx", "scale_rows"]
