"""What one kernel call made is refused in the next: tiles, tensors, registers, indices, results."""

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import UsageError
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl

X = np.ones((16, 8), np.float32)

MAKE = {
    "tile": lambda x: nl.load(x),
    "psum": lambda x: nl.zeros((16, 8), nl.float32, nl.psum),
    "output": lambda x: nl.ndarray((16, 8), nl.float32, nl.shared_hbm, name="kept"),
    "input": lambda x: x,
    "register": lambda x: nisa.register_alloc(0),
}
USE = {
    "read": (("tile", "psum"), lambda x, kept: nisa.tensor_copy(nl.load(x), kept)),
    "written": (("tile", "psum"), lambda x, kept: nisa.memset(kept, 1.0)),
    "view": (("tile", "psum"), lambda x, kept: nisa.memset(kept[0:8, 0:2], 1.0)),
    "transfer": (("output", "input"), lambda x, kept: nisa.dma_copy(kept, x)),
    "index": (("register",), lambda x, kept: nl.load(x[nl.ds(kept, 2)])),
    "operand": (("register",), lambda x, kept: nisa.register_move(nisa.register_alloc(1), kept)),
    "returned": (("tile", "output", "input"), lambda x, kept: kept),
}


@pytest.mark.parametrize("use", USE)
def test_what_another_call_made_is_refused(use):
    made, body = USE[use]
    for name in made:
        held = []

        @nki.jit
        def first(x, name=name, held=held):
            held.append(MAKE[name](x))
            return x

        @nki.jit
        def second(x, held=held):
            return body(x, held[0]) if use == "returned" else (body(x, held[0]), x)[1]

        first(X)
        with pytest.raises(UsageError) as caught:
            second(X)
        assert caught.value.code == "nki.other_call"
        assert caught.value.at.file == __file__


def test_a_tile_of_an_outer_kernel_may_be_used_in_one_it_calls():
    """A kernel called inside another is part of that call."""

    @nki.jit
    def inner(tile):
        nisa.tensor_scalar(tile, tile, nl.add, 1.0)

    @nki.jit
    def outer(x):
        tile = nl.load(x)
        inner(tile)
        out = nl.ndarray((16, 8), nl.float32, nl.shared_hbm)
        nl.store(out, tile)
        return out

    assert np.array_equal(outer(X), X + 1)
    assert np.array_equal(outer(X), X + 1)
