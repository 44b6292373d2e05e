"""What DMA copies and transposes refuse (NKI 0.6 reference; NKI 0.3 and 0.4 update guides)."""

import pytest

from opentrn.base import LimitError, SpaceError, UsageError
from opentrn.base import dtype as as_dtype
from opentrn.isa import dge_mode, engine, oob_mode
from opentrn.isa.dma import dma_copy, dma_transpose
from opentrn.isa.operands import IndexForm
from opentrn.isa.vector import tensor_copy
from tests.isa.vector_forms import BF16, F32, make, tile


def hbm(*shape, t=BF16, **more):
    return tile(*shape, t=t, space="hbm", **more)


@pytest.mark.parametrize("side", ["dst", "src"])
def test_the_dma_does_not_reach_psum(side):
    sides = {"dst": tile(4, 8), "src": tile(4, 8), side: tile(4, 8, space="psum")}
    with pytest.raises(SpaceError) as caught:
        make(dma_copy, **sides)
    assert caught.value.code == f"dma_copy.{side}"
    if side == "src":
        assert caught.value.fix == "copy `src` into a tile in sbuf with nisa.tensor_copy first"


def test_hardware_generation_moves_bytes_and_does_not_cast():
    cast = {"dst": tile(4, 8, t=BF16), "src": hbm(4, 8, t=F32)}
    for mode in (dge_mode.unknown, dge_mode.swdge, dge_mode.none):
        make(dma_copy, dge_mode=mode, **cast)
    with pytest.raises(LimitError, match=r"\.view\(dtype\)"):
        make(dma_copy, dge_mode=dge_mode.hwdge, **cast)
    make(dma_copy, dge_mode=dge_mode.hwdge, dst=tile(4, 8, t=BF16), src=hbm(4, 8))


@pytest.mark.parametrize(("flag", "value"), [("dge_mode", 2), ("oob_mode", 1), ("engine", "sync")])
def test_modes_are_members_of_their_enumerations(flag, value):
    with pytest.raises(UsageError) as caught:
        make(dma_copy, dst=tile(4, 8), src=tile(4, 8), **{flag: value})
    assert caught.value.code == f"dma_copy.{flag}"
    assert f"nisa.{flag}." in caught.value.rule


def test_engines_are_members_too():
    with pytest.raises(UsageError) as caught:
        make(tensor_copy, dst=tile(4, 8), src=tile(4, 8), engine=5)
    assert caught.value.code == "tensor_copy.engine"
    assert "nisa.engine.vector" in caught.value.rule


def turned(target, source, **more):
    return make(dma_transpose, dst=target, src=source, **more)


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [((32, 64), (64, 32)), ((5, 3, 64), (64, 3, 5)), ((32, 1, 2, 64), (64, 1, 2, 32))],
)
def test_the_result_has_the_permuted_shape_rank_included(shape, wanted):
    turned(tile(*wanted, t=BF16), hbm(*shape))
    for wrong in (wanted[::-1], (*wanted, 1), tuple(n for n in wanted if n != 1)):
        if wrong != wanted:
            with pytest.raises(LimitError):
                turned(tile(*wrong, t=BF16), hbm(*shape))


GATHERED = {"indirect": "vector"}


@pytest.mark.parametrize(
    ("source", "target", "mode", "fine"),
    [
        (hbm(16, 128), tile(128, 16, t=BF16), dge_mode.hwdge, True),
        (hbm(32, 128), tile(128, 32, t=BF16), dge_mode.hwdge, False),
        (hbm(4, 4, 128), tile(128, 4, 4, t=BF16), dge_mode.hwdge, True),
        (hbm(4, 2, 128), tile(128, 2, 4, t=BF16), dge_mode.hwdge, False),
        (hbm(3, 16, 128), tile(128, 16, 3, t=BF16), dge_mode.hwdge, False),
        (hbm(16, 129), tile(129, 16, t=BF16), dge_mode.hwdge, False),
        (hbm(16, 128, t=F32), tile(128, 16, t=F32), dge_mode.hwdge, False),
        (hbm(16, 128), tile(128, 16, t=BF16), dge_mode.swdge, False),
        (hbm(16, 128), tile(128, 16, t=BF16), dge_mode.none, True),
        (hbm(128, 64, **GATHERED), tile(64, 128, t=BF16), dge_mode.swdge, True),
        (hbm(128, 64, **GATHERED), tile(64, 128, t=BF16), dge_mode.unknown, True),
        (hbm(128, 64, **GATHERED), tile(64, 128, t=BF16), dge_mode.hwdge, False),
        (hbm(24, 64, **GATHERED), tile(64, 24, t=BF16), dge_mode.unknown, False),
        (hbm(128, 64, t=F32, **GATHERED), tile(64, 128, t=F32), dge_mode.unknown, False),
        (hbm(128, 2, 2, 64, **GATHERED), tile(64, 2, 2, 128, t=BF16), dge_mode.unknown, False),
        (hbm(128, 1, 2, 64, **GATHERED), tile(64, 1, 2, 128, t=BF16), dge_mode.unknown, True),
    ],
)
def test_transposes_by_generation_mode(source, target, mode, fine):
    if fine:
        turned(target, source, dge_mode=mode)
        return
    with pytest.raises(LimitError) as caught:
        turned(target, source, dge_mode=mode, oob_mode=oob_mode.error)
    assert caught.value.code == "dma_transpose.rules"
    assert caught.value.fix


def test_trn1_does_not_transpose_gathered_rows():
    sides = (tile(64, 128, t=BF16), hbm(128, 64, **GATHERED))
    with pytest.raises(LimitError, match="trn1"):
        turned(*sides, on="trn1")


def test_the_result_lies_in_sbuf():
    with pytest.raises(SpaceError) as caught:
        turned(hbm(128, 16), hbm(16, 128))
    assert caught.value.code == "dma_transpose.dst"


def test_only_rows_of_an_index_are_skipped():
    turned(tile(128, 16, t=BF16), hbm(16, 128, **GATHERED), oob_mode=oob_mode.skip)
    with pytest.raises(LimitError, match="rows of an index"):
        turned(tile(128, 16, t=BF16), hbm(16, 128), oob_mode=oob_mode.skip)


def index(rows, columns=1, dtype="uint32"):
    return {**GATHERED, "index": IndexForm(columns, -1, rows=rows, dtype=as_dtype(dtype))}


@pytest.mark.parametrize(
    ("given", "fine"),
    [
        (index(128), True), (index(16), True), (index(128, 2), True),
        (index(8), False), (index(40), False), (index(64, 2), False),
        (index(128, dtype="int32"), False), (index(128, dtype="uint16"), False),
    ],
)  # fmt: skip
def test_the_index_of_a_gathered_transpose(given, fine):
    sides = tile(64, 16, t=BF16), hbm(16, 64, **given)
    if fine:
        turned(*sides)
        return
    with pytest.raises(LimitError) as caught:
        turned(*sides)
    assert caught.value.code == "dma_transpose.rules"


@pytest.mark.parametrize("side", ["src", "dst"])
def test_a_copy_gathers_by_one_column(side):
    sides = {"src": hbm(128, 8), "dst": tile(128, 8, t=BF16)}
    if side == "dst":
        sides = {"src": tile(128, 8, t=BF16), "dst": hbm(128, 8)}
    for columns, fine in ((1, True), (2, False)):
        sides[side] = hbm(128, 8, **index(128, columns))
        if fine:
            make(dma_copy, **sides)
            continue
        with pytest.raises(LimitError, match="one column"):
            make(dma_copy, **sides)


@pytest.mark.parametrize("who", list(engine))
@pytest.mark.parametrize("mode", list(dge_mode))
def test_an_engine_is_named_for_hardware_descriptors_only(who, mode):
    fine = who is engine.unknown or (mode is dge_mode.hwdge and who.name in ("sync", "scalar"))
    sides = {"dst": tile(128, 8), "src": hbm(128, 8, t=F32), "dge_mode": mode, "engine": who}
    if fine:
        make(dma_copy, **sides)
        return
    with pytest.raises(LimitError, match="hardware descriptor generation"):
        make(dma_copy, **sides)
