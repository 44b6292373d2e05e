"""Classes of service of DMA transfers: which there are, and where."""

import pytest

from opentrn.base import LimitError
from opentrn.isa.dma import dma_copy, dma_transpose
from tests.isa.vector_forms import make, refuse, tile

TILES = {"dst": tile(64, 64, t="bfloat16"), "src": tile(64, 64, t="bfloat16", space="hbm")}
BOTH = pytest.mark.parametrize("cls", [dma_copy, dma_transpose])


@BOTH
@pytest.mark.parametrize("priority", [None, 0, 1, 2, 3])
def test_trn3_has_four_classes(cls, priority):
    made = make(cls, on="trn3", priority=priority, **TILES)
    assert made.priority == priority
    assert made.move == make(cls, on="trn3", **TILES).move


@BOTH
@pytest.mark.parametrize("priority", [-1, 4, 0.5])
def test_other_classes_are_refused(cls, priority):
    code = f"{cls.__name__}.rules"
    text = refuse(LimitError, code, lambda: make(cls, on="trn3", priority=priority, **TILES))
    assert "0 (highest) to 3" in text


@BOTH
@pytest.mark.parametrize("on", ["trn1", "trn2"])
def test_older_chips_have_none(cls, on):
    text = refuse(
        LimitError, f"{cls.__name__}.rules", lambda: make(cls, on=on, priority=0, **TILES)
    )
    assert "NeuronCore-v4" in text
