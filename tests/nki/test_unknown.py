"""Tiles and registers in Python operators: refused with numbers, left alone with anything else."""

import math
import operator
import os

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import UsageError
from opentrn.nki import beta1
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.nki.beta1 import language as ol

X = np.ones((4, 4), np.float32)
COMPARISONS = [getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")]
ARITHMETIC = [
    getattr(operator, name)
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
        *("and_", "or_", "xor", "lshift", "rshift"),
    )
]


def refused(body, code):
    """The refusal of a kernel that asks `body(tile, register)`, at the line of its question."""

    @nki.jit
    def kernel(x):
        body(nl.load(x), nisa.register_alloc(3))
        return x

    with pytest.raises(UsageError) as caught:
        kernel(X)
    assert caught.value.code == code
    assert os.path.basename(caught.value.at.file) == "test_unknown.py"
    assert caught.value.at.line == body.__code__.co_firstlineno
    return caught.value


@pytest.mark.parametrize("other", [1, 1.0, True, np.float32(1), np.ones(3)], ids=repr)
@pytest.mark.parametrize("ask", COMPARISONS, ids=lambda ask: ask.__name__)
def test_comparisons_with_numbers_are_refused_on_both_sides(ask, other):
    refused(lambda tile, reg: ask(tile, other), "nki.compare")
    refused(lambda tile, reg: ask(other, tile), "nki.compare")
    refused(lambda tile, reg: ask(reg, other), "nki.compare")
    refused(lambda tile, reg: ask(other, reg), "nki.compare")
    refused(lambda tile, reg: ask(tile[0:1], reg), "nki.compare")


@pytest.mark.parametrize("ask", ARITHMETIC, ids=lambda ask: ask.__name__)
def test_arithmetic_is_refused_on_both_sides(ask):
    refused(lambda tile, reg: ask(tile, 2), "nki.arithmetic")
    refused(lambda tile, reg: ask(np.float32(2), tile), "nki.arithmetic")
    refused(lambda tile, reg: ask(reg, 2), "nki.arithmetic")
    refused(lambda tile, reg: ask(2, reg), "nki.arithmetic")
    refused(lambda tile, reg: ask(tile, tile[0:1]), "nki.arithmetic")


ALONE = [operator.neg, operator.pos, operator.invert, abs, round, math.floor, math.ceil]


@pytest.mark.parametrize("ask", ALONE, ids=lambda ask: ask.__name__)
def test_operators_of_one_tile_are_refused(ask):
    refused(lambda tile, reg: ask(tile), "nki.arithmetic")
    refused(lambda tile, reg: ask(reg), "nki.arithmetic")


def test_products_and_functions_of_numpy_are_refused():
    refused(lambda tile, reg: tile @ tile, "nki.arithmetic")
    refused(lambda tile, reg: X @ tile, "nki.arithmetic")
    refused(lambda tile, reg: divmod(tile, 2), "nki.arithmetic")
    refused(lambda tile, reg: divmod(7, reg), "nki.arithmetic")
    assert "nl.exp makes" in refused(lambda tile, reg: np.exp(tile), "nki.arithmetic").fix
    assert "nl.mod makes" in refused(lambda tile, reg: np.remainder(tile, 2), "nki.arithmetic").fix
    assert "nl.less makes" in refused(lambda tile, reg: np.less(1, tile), "nki.compare").fix
    refused(lambda tile, reg: np.add.reduce(tile), "nki.arithmetic")


VALUES = [float, int, complex, math.sqrt, len, range, np.asarray, "{:.2f}".format]


@pytest.mark.parametrize("ask", VALUES, ids=lambda ask: ask.__name__)
def test_a_tile_is_no_number_no_length_and_no_array(ask):
    refused(lambda tile, reg: ask(tile), "nki.number")

    @beta1.jit
    def older(x):
        ask(ol.load(x))

    with pytest.raises(UsageError) as caught:
        older(X)
    assert caught.value.code == "nki.number"
    assert caught.value.at.text == "ask(ol.load(x))"
    assert isinstance(caught.value, TypeError)


def test_a_tile_is_printed_and_its_rows_are_walked():
    said = []

    @nki.jit
    def kernel(x):
        tile = nl.load(x)
        said.append((f"{tile}" == str(tile), [row.shape for row in tile[0:2]]))
        return x

    kernel(X)
    assert said == [(True, [(1, 4)] * 2)]


def test_the_fix_names_the_function_that_compares_tiles():
    assert "nl.less_equal makes" in refused(lambda tile, reg: tile <= 1.0, "nki.compare").fix
    assert "nl.subtract makes" in refused(lambda tile, reg: 1 - tile, "nki.arithmetic").fix
    assert "nl.static_range" in refused(lambda tile, reg: reg == 3, "nki.compare").fix


def test_other_tiles_and_searches_among_them_are_refused():
    refused(lambda tile, reg: tile == tile[0:1], "nki.compare")
    refused(lambda tile, reg: reg != nisa.register_alloc(4), "nki.compare")
    refused(lambda tile, reg: 3 in [reg], "nki.compare")


@pytest.mark.parametrize("ask", [operator.eq, operator.ne], ids=lambda ask: ask.__name__)
def test_the_counter_of_a_device_loop_is_refused(ask):
    @nki.jit
    def kernel(x):
        tile = nl.load(x)
        for i in nl.dynamic_range(0, 5):
            if ask(i, 2):
                nisa.memset(tile, 0.0)
        return x

    with pytest.raises(UsageError) as caught:
        kernel(X)
    assert caught.value.code == "nki.compare"
    assert caught.value.at.line == kernel.func.__code__.co_firstlineno + 4
    checked = nki.check(kernel, "trn2", {"x": X})
    assert [error.code for error in checked.refusals] == ["nki.compare"]


def test_none_words_and_dtypes_differ_and_identity_holds():
    """What kernels ask of optional arguments and keep in dictionaries goes on as in Python."""
    said = []

    @nki.jit
    def kernel(x):
        tile, reg = nl.load(x), nisa.register_alloc(3)
        for one in (tile, reg):
            said.append((one == None, one != None, one == "words", one == nl.float32))  # noqa: E711
            said.append((one in [None, one], {one: 7}[one], one is one))
        return x

    kernel(X)
    assert said == [(False, True, False, False), (True, 7, True)] * 2


def test_views_by_different_registers_differ():
    """Programs compare views; the registers in them are compared by identity, not refused."""
    said = []

    @nki.jit
    def kernel(x):
        first, second = nisa.register_alloc(1), nisa.register_alloc(1)
        views = [x[nl.ds(r, 2)]._view for r in (first, second, first)]
        said.append((views[0] == views[1], views[0] == views[2], len(set(views))))
        return x

    kernel(X)
    assert said == [(False, True, 2)]
