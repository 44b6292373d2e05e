"""What a kernel reads of which nobody can tell whether it is the same again: always traced."""

import collections
import contextlib
import enum
import functools
import itertools
import operator
import random
import time
import types
from dataclasses import dataclass, field

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import numerics
from opentrn.nki import again, reads
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from tests.nki.test_again import X, launched, module, stored
from tests.nki.test_again import replays as replays  # a fixture of this module too

STATE, LOG = {"calls": 0}, []


def printing(x):
    print("hello")
    return stored(nl.load(x))


def clock(x):
    return stored(nl.multiply(nl.load(x), time.time()))


def dice(x):
    return stored(nl.multiply(nl.load(x), random.random()))


def numpys_dice(x):
    return stored(nl.multiply(nl.load(x), float(np.random.rand())))


def imports(x):
    import os

    return stored(nl.multiply(nl.load(x), float(len(os.environ))))


def counts(x):
    STATE["calls"] += 1
    return stored(nl.multiply(nl.load(x), float(STATE["calls"])))


def logs(x):
    LOG.append(1)
    return stored(nl.load(x))


def shows(x):
    tile = nl.load(x)
    nl.device_print("tile", tile)
    return stored(tile)


def looks(x):
    tile = nl.load(x)
    return stored(nl.multiply(tile, float(tile.numpy()[0, 0])))


LINES = iter([1.0] * 100)


def drains(x):
    return stored(nl.multiply(nl.load(x), next(LINES)))


OPAQUE = (
    printing, clock, dice, numpys_dice, imports, counts, logs, shows, looks, drains,
)  # fmt: skip


@pytest.mark.parametrize("kernel", OPAQUE, ids=lambda k: k.__name__)
def test_kernels_that_may_differ_each_time_are_traced_each_time(kernel, replays, capsys):
    made = nki.jit(kernel)
    for _ in range(5):
        made(X + 1)
    assert not replays


def test_state_of_python_goes_on_changing():
    STATE["calls"] = 0
    made = nki.jit(counts)
    assert [float(made(X + 1)[0, 0]) for _ in range(5)] == [1, 2, 3, 4, 5]


def test_printing_happens_at_every_launch(capsys):
    made = nki.jit(printing)
    launched(made, X)
    assert capsys.readouterr().out == "hello\n" * 5


def test_a_function_that_wraps_one_of_numpy_is_read_as_what_it_is(replays):
    @functools.wraps(np.sum)
    def draws():
        return random.random()

    @nki.jit
    def kernel(x):
        return stored(nl.multiply(nl.load(x), draws()))

    assert len({float(out[1, 1]) for out in launched(kernel, X)}) == 5
    assert not replays


def test_values_that_decide_are_never_replayed(replays):
    @nki.jit
    def gathered(x, indices):
        tile, rows = nl.load(x), nl.load(indices)
        out = nl.ndarray(x.shape, x.dtype)
        nisa.nc_n_gather(dst=out, data=tile, indices=rows)
        return stored(out)

    @nki.jit
    def counted(x, n):
        register = nisa.register_alloc(0)
        nisa.register_load(register, nl.load(n))
        tile = nl.load(x)
        for _ in nl.dynamic_range(0, register):
            nisa.tensor_scalar(tile, tile, nl.add, 1.0)
        return stored(tile)

    for n in range(5):
        found = counted(X, np.array([[n]], np.int32))
        assert np.array_equal(found, X + n)
    assert not replays


class Reading:
    """A kernel that adds what `read` gives, and how that changes from launch to launch."""

    def __init__(self, read, change=lambda: None, given=None):
        self.read, self.change, self.given = read, change, given

    def sequence(self):
        """What six launches add."""
        read = self.read  # alone: what changes it is nothing the kernel sees

        @nki.jit
        def kernel(x, given):
            return stored(nl.add(nl.load(x), float(read(given) if given else read())))

        found = []
        for _ in range(6):
            found.append(float(kernel(np.zeros((2, 2), np.float32), self.given)[0, 0]))
            self.change()
        return found


def bumped():
    module.v += 1


TEXT = "{.v}"


class Holder:
    def __init__(self):
        self.module = module


@functools.lru_cache
def remembered():
    return float(STATE["calls"])


def forget():
    STATE["calls"] += 1
    if STATE["calls"] % 3 == 0:
        remembered.cache_clear()


def hidden_states():
    """State that does not show in what a kernel's code and objects hold."""
    numbers, line, around = itertools.count(), collections.deque([1, 2, 3]), itertools.cycle([4, 5])
    other = collections.defaultdict(float, a=1.0)
    holder, proxy = Holder(), types.MappingProxyType(STATE)
    picks, grid = [operator.itemgetter(0)], np.array([[1.0]]).view(np.recarray)

    def picked():
        picks[0] = operator.itemgetter((len(picks) + 1) % 3)
        picks.append(0)

    def count():
        STATE["calls"] += 1

    def through(given):
        return given.v

    return {
        "count": Reading(lambda: next(numbers)),
        "deque": Reading(lambda: line[0], lambda: line.rotate(1)),
        "cycle": Reading(lambda: next(around)),
        "defaultdict": Reading(lambda: other["a"], lambda: other.update(a=other["a"] + 1)),
        "itemgetter": Reading(lambda: picks[0]((1, 2, 3)), picked),
        "proxy": Reading(lambda: proxy["calls"], count),
        "module in a call": Reading(lambda: through(module), bumped),
        "module in an object": Reading(lambda: holder.module.v, bumped),
        "module in a list": Reading(lambda: [module][0].v, bumped),
        "module as argument": Reading(through, bumped, module),
        "module in an argument": Reading(lambda given: given[0].v, bumped, [module]),
        "module by default": Reading(lambda m=module: m.v, bumped),
        "names of a module": Reading(lambda: module.__dict__["v"], bumped),
        "text of a module": Reading(lambda: TEXT.format(module), bumped),
        "attrgetter": Reading(lambda: operator.attrgetter("v")(module), bumped),
        "remembered": Reading(remembered, forget),
        "recarray": Reading(lambda: grid[0, 0], lambda: np.add(grid, 1, out=grid)),
        "ufunc": Reading(lambda: frompy(1.0), bumped),
        "state of numpy": Reading(
            lambda: np.get_printoptions()["precision"],
            lambda: np.set_printoptions(precision=np.get_printoptions()["precision"] % 8 + 1),
        ),
    }


frompy = np.frompyfunc(lambda x: x + module.v, 1, 1)


@pytest.mark.parametrize("what", [*hidden_states()])
def test_hidden_state_gives_what_traced_launches_give(what, replays):
    found = []
    for way in (again.tracing, contextlib.nullcontext):
        STATE["calls"], module.v = 0, 0.0
        remembered.cache_clear()
        np.set_printoptions(precision=8)
        with way():
            found.append(hidden_states()[what].sequence())
    assert found[0] == found[1]
    assert len(set(found[0])) > 1, "the state must change for this to show anything"


@dataclass
class Made:
    """Its default is made anew by every call of the class."""

    v: float = field(default_factory=lambda: module.v)


class Bits(enum.IntFlag):
    ONE = 1


WRITTEN: dict = {"dataclass": dataclass, "module": module}
exec("@dataclass\nclass Typed:\n    w: int = 0\n    def get(self): return module.v", WRITTEN)
exec("from numpy import datetime64, memmap", WRITTEN)


def _with_default(value):
    @dataclass(slots=True)
    class Again:
        v: float = value

    return Again


def _shared():
    held = 1.0

    def add(more):
        nonlocal held
        held += more

    return add, lambda: held


def alike_states():
    """States that are equal in Python, or hidden in what a library wrote, and not the same."""
    held = {"range": range(0, 3, 2), "zero": 0j, "flag": Bits(8), "class": _with_default(1.0)}
    held["dtype"] = np.dtype("f4", metadata={"v": 0.0})
    held["order"] = np.arange(6.0).reshape(2, 3)
    typed = WRITTEN["Typed"]
    whole, (add, get), (_, other) = np.ones(2), _shared(), _shared()
    pair, gets = [whole[:1], whole[1:]], [get]
    others = itertools.cycle([whole[:1], whole[1:]])

    def turned():
        return np.array(held["order"], order="CF"[held["order"].flags.c_contiguous])

    def other_view():
        pair[1] = next(others)

    def put(name, new):
        return lambda: held.update({name: new()})

    def through_pair():
        pair[0][0] += 2
        found = float(pair[1][0])
        pair[0][0] -= 2
        return found

    def through_cell():
        add(2.0)
        found = gets[0]()
        add(-2.0)
        return found

    return {
        "range": Reading(
            lambda: held["range"].stop, put("range", lambda: range(0, 7 - held["range"].stop, 2))
        ),
        "sign of zero": Reading(
            lambda: str(held["zero"]).count("-"), put("zero", lambda: -held["zero"])
        ),
        "flag": Reading(
            lambda: held["flag"]._value_, put("flag", lambda: Bits(held["flag"]._value_ * 2))
        ),
        "metadata": Reading(
            lambda: held["dtype"].metadata["v"],
            put("dtype", lambda: np.dtype("f4", metadata={"v": held["dtype"].metadata["v"] + 1})),
        ),
        "order": Reading(
            lambda: held["order"].ravel(order="K")[1],
            put("order", turned),
        ),
        "views of one array": Reading(through_pair, other_view),
        "one variable": Reading(
            through_cell, lambda: gets.__setitem__(0, other if gets[0] is get else get)
        ),
        "default made anew": Reading(lambda: Made().v, bumped),
        "default of a slot": Reading(
            lambda: held["class"]().v, put("class", lambda: _with_default(held["class"]().v + 1))
        ),
        "method of a typed class": Reading(lambda: typed().get(), bumped),
    }  # fmt: skip


@pytest.mark.parametrize("what", [*alike_states()])
def test_what_is_equal_and_not_the_same_gives_what_traced_launches_give(what):
    found = []
    for way in (again.tracing, contextlib.nullcontext):
        module.v = 0.0
        with way():
            found.append(alike_states()[what].sequence())
    assert found[0] == found[1]
    assert len(set(found[0])) > 1, "the state must change for this to show anything"


@pytest.mark.parametrize("name", ["datetime64", "memmap"])
def test_a_clock_or_a_file_is_not_read_by_its_bare_name(name):
    bare = WRITTEN[name]
    with pytest.raises(reads.Opaque, match=name):
        reads.key_of(lambda: bare, ())


def test_arrays_are_read_up_to_so_many_bytes_together():
    tables = [np.zeros(reads.LARGEST_ARRAYS // 16) for _ in range(2)]
    assert reads.key_of(lambda: tables, ())
    tables.append(np.zeros(1))
    with pytest.raises(reads.Opaque, match="large"):
        reads.key_of(lambda: tables, ())


def test_rounding_by_chance_draws_at_every_launch(replays):
    @nki.jit
    def rounded(x):
        tile = nl.ndarray(x.shape, nl.bfloat16)
        nisa.activation(dst=tile, op=nl.copy, data=nl.load(x))
        return stored(tile)

    given = np.full((128, 64), 1 + 2.0**-9, np.float32)
    launched(rounded, given, times=3)
    draws = np.random.default_rng(0)
    with numerics.stochastic(lambda n: draws.integers(0, 2**32, n, dtype=np.uint32)):
        found = {rounded(given).tobytes() for _ in range(4)}
    assert len(found) == 4
    assert np.array_equal(rounded(given), np.ones_like(given))


def test_two_names_of_one_list_are_told_from_two_lists(replays):
    one, two = [1.0], [1.0]
    pair = [one, two]

    @nki.jit
    def kernel(x):
        pair[0].append(2.0)
        total = sum(pair[1])
        pair[0].pop()
        return stored(nl.multiply(nl.load(x), total))

    assert all(np.array_equal(out, X) for out in launched(kernel, X))
    pair[1] = one
    assert np.array_equal(kernel(X), 3 * X)
