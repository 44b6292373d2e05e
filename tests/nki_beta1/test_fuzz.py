"""Random and hostile kernels of the older API end in a value or a refusal at their line.

Every kernel is made from a seed, which a failure names.  `SEEDS` bounds how many are tried.
"""

import re
from inspect import isfunction

import numpy as np
import pytest

from opentrn.base import TrnError
from opentrn.nki import beta1 as nki
from opentrn.nki import use_target
from opentrn.nki.beta1 import isa as nisa
from opentrn.nki.beta1 import language as nl
from tests.nki.test_fuzz import CALL, Draw
from tests.nki.test_fuzz import no_hang as no_hang  # a fixture of this module too

SEEDS = 100  # times 5 kernels
# Python's own words about an operator between things that have none; they are clear.
OPERATOR = re.compile("unsupported operand|not supported between|can't multiply sequence")
X = np.arange(128, dtype=np.float32).reshape(16, 8)


def ends(kernel, *arrays, target="trn2"):
    """What a kernel returns, or its refusal: five lines at its line, or Python's own words."""
    found = None
    with use_target(target):
        try:
            return nki.jit(kernel)(*arrays)
        except (TrnError, TypeError) as error:
            found = error
    if isinstance(found, TrnError):
        assert all([found.code, found.rule, found.fix, found.at]), found
    else:
        words = str(found)
        assert CALL.search(words) or OPERATOR.search(words), f"{type(found).__name__}: {found}"
    return found


def drawn_grid(draw):
    """An index grid, or something that is none."""
    n = draw.number
    return draw.one(
        [
            lambda: nl.arange(draw.size())[:, None],
            lambda: nl.arange(draw.size())[None, :] + n(),
            lambda: nl.arange(n()) * n(),
            lambda: nl.mgrid[0 : draw.size(), 0 : draw.size()],
            lambda: nl.ds(n(), n()),
            lambda: slice(n(), n(), n()),
            lambda: nl.arange(4)[:, None] // n(),
            n,
        ]
    )()


def drawn_mask(draw):
    """A condition on grids, or something that is none."""
    i, j = nl.mgrid[0:16, 0:8]
    return draw.one(
        [
            lambda: i < draw.number(),
            lambda: (i < 3) & (j < draw.number()),
            lambda: i + j < 9,
            lambda: (i < 3) & draw.number(),
            lambda: draw.number(),
            lambda: None,
        ]
    )()


def drawn_operand(draw, made):
    """A tile, often; else what is none."""
    others = [draw.number(), draw.dtype(), np.add, nl.exp, "add", np.ones(3)]
    return draw.one([*made, *made, *made, draw.one(others)])


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("what", ["index", "assign", "instruct", "compute"])
def test_hostile_kernels_end_in_a_refusal_or_a_value(seed, what):
    draw = Draw([seed, len(what), ord(what[0])])

    def kernel(x):
        made = [x, nl.load(x), nl.zeros((16, 8), nl.float32, buffer=nl.psum)]
        made.append(nl.full((16, 1), 1, nl.int32))
        if what == "index":
            part = draw.one(made)[
                draw.one([drawn_grid(draw), (drawn_grid(draw), drawn_grid(draw))])
            ]
            nl.store(nl.ndarray((16, 8), nl.float32, buffer=nl.shared_hbm), part)
        elif what == "assign":
            tile = nl.ndarray((draw.size(), nl.par_dim(16), 8), nl.float32, buffer=nl.sbuf)
            tile[draw.one([0, draw.number(), drawn_grid(draw)])] = drawn_operand(draw, made)
            made[1][drawn_grid(draw)] += drawn_operand(draw, made)
        elif what == "instruct":
            name = draw.one([n for n in nisa.__all__ if isfunction(getattr(nisa, n))])
            given = [drawn_operand(draw, made) for _ in range(draw.one([1, 2, 3, 4]))]
            getattr(nisa, name)(*given, **draw.one([{}, {"mask": drawn_mask(draw)}]))
        else:
            names = sorted(n for n in nl.__all__ if isfunction(getattr(nl, n)))
            given = [drawn_operand(draw, made) for _ in range(draw.one([1, 2, 2, 3]))]
            getattr(nl, draw.one(names))(*given, **draw.one([{}, {"mask": drawn_mask(draw)}]))
        return x

    ends(kernel, X.copy(), target=draw.one(["trn1", "trn2"]))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_masked_copies_give_the_values_of_numpy(seed):
    draw = Draw([seed, 5])
    rows, columns = int(draw.rng.integers(1, 129)), int(draw.rng.integers(1, 40))
    cut, start = int(draw.rng.integers(0, columns + 1)), int(draw.rng.integers(0, columns))
    step = int(draw.one([1, 2, 3]))
    x = draw.rng.random((rows, columns)).astype(np.float32)
    count = -(-(columns - start) // step)

    @nki.jit
    def kernel(x):
        out = nl.ndarray((rows, count), x.dtype, buffer=nl.shared_hbm)
        i, j = nl.arange(rows)[:, None], nl.arange(count)[None, :]
        tile = nl.zeros((rows, count), x.dtype)
        place = start + step * j
        tile[i, j] = nl.load(x[i, place], mask=(place < cut))
        nl.store(out[i, j], value=tile[i, j])
        return out

    chosen = np.arange(start, columns, step)
    wanted = np.where(chosen < cut, x[:, chosen], 0)
    np.testing.assert_array_equal(kernel(x), wanted)


def itself(x):
    return itself(x)


DANGERS = {
    "nki.recursion": itself,
    "sim.sbuf_capacity": lambda x: nl.ndarray((nl.par_dim(128), 2**50), nl.float32),
    "nki.hbm_capacity": lambda x: nl.ndarray((2**40, 2**40), nl.float32, buffer=nl.shared_hbm),
    "beta1.index": lambda x: nl.load(x)[::-1],
}


@pytest.mark.parametrize("code", DANGERS)
def test_known_dangers_are_refused_with_their_code(code):
    found = ends(DANGERS[code], X.copy())
    assert isinstance(found, TrnError), found
    assert found.code == code
    assert found.at.file == __file__
