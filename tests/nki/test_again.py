"""Launches that repeat are replayed: the same bits, and never a program that is out of date."""

import enum
import functools
import math
import os
import resource
import threading
import time
import types
from collections import namedtuple
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

from opentrn import nki
from opentrn.base import UnwrittenError, UsageError
from opentrn.nki import again, beta1, reads
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.nki.beta1 import language as ol
from opentrn.sim import Replay, Strict

X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(autouse=True)
def replays(monkeypatch):
    """How many launches were replayed, from an empty memory of launches."""
    monkeypatch.setattr(again, "LAUNCHES", again.Launches())
    count = []
    plain = Replay.__call__
    monkeypatch.setattr(Replay, "__call__", lambda *a: count.append(1) or plain(*a))
    return count


def stored(tile):
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm, name="out")
    nl.store(out, tile)
    return out


FACTOR = 2.0


def by_global(x):
    return stored(nl.multiply(nl.load(x), FACTOR))


def launched(kernel, *args, times=5):
    """What each of some equal launches gives."""
    return [kernel(*args) for _ in range(times)]


# ---------------------------------------------------------------- the same


def test_from_the_third_launch_on_the_program_is_replayed_on_new_values(replays):
    kernel = nki.jit(by_global)
    for n in range(6):
        assert np.array_equal(kernel(X + n), 2 * (X + n))
        assert len(replays) == max(0, n - 1)


def test_a_replayed_run_has_the_program_its_time_and_its_findings(replays):
    @nki.jit
    def half(x):
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.tensor_copy(tile[0:2], nl.load(x)[0:2])
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
        nl.store(out[0:2], tile[0:2])
        return out

    runs = [nki.run(half, X) for _ in range(4)]
    assert len(replays) == 2
    for run in runs[1:]:
        assert run.program.counts() == runs[0].program.counts()
        assert run.timeline().total_ns == runs[0].timeline().total_ns
        assert run.findings == runs[0].findings
        assert [f.code for f in run.findings] == ["sim.partial_output"]
        assert np.array_equal(run.outputs[:2], X[:2])
        assert np.isnan(run.outputs[2]).all()


@pytest.mark.parametrize("seed", range(40))
def test_replayed_launches_have_the_bits_of_traced_ones(seed, replays):
    rng = np.random.default_rng(seed)
    rows, inner, free = (int(rng.integers(1, limit)) for limit in (129, 129, 513))
    dtype = (np.float32, ml_dtypes.bfloat16, np.float16)[seed % 3]
    ops = [(nl.exp, nl.tanh, nl.sigmoid, nl.relu)[int(k)] for k in rng.integers(0, 4, 3)]
    scales = [float(s) for s in rng.normal(size=3)]

    @nki.jit
    def kernel(a, b):
        psum = nl.ndarray((rows, free), nl.float32, buffer=nl.psum)
        left, right = nl.load(a), nl.load(b)
        for _ in range(3):
            nisa.nc_matmul(psum, left, right)
        tile = nl.ndarray((rows, free), nl.float32)
        nisa.tensor_copy(tile, psum)
        for op, scale in zip(ops, scales, strict=True):
            nisa.activation(dst=tile, op=op, data=tile, scale=scale)
            nisa.tensor_tensor(tile, tile, psum, nl.add)
        total = nl.ndarray((rows, 1), nl.float32)
        nisa.tensor_reduce(total, nl.add, tile, axis=1)
        return stored(tile), stored(total)

    def drawn():
        return [(rng.normal(size=s) / 8).astype(dtype) for s in ((inner, rows), (inner, free))]

    for _ in range(2):
        kernel(*drawn())
    for _ in range(2):
        given = drawn()
        found = kernel(*given)
        with again.tracing():
            wanted = kernel(*given)
        for mine, theirs in zip(found, wanted, strict=True):
            assert mine.dtype == theirs.dtype
            assert mine.tobytes() == theirs.tobytes()
    assert len(replays) == 2


def test_results_keep_their_nesting_and_kind(replays):
    torch = pytest.importorskip("torch")

    @nki.jit
    def nested(x, y):
        return [stored(nl.load(x)), (stored(nl.load(y)), None)], None

    x, y = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3), torch.ones(3, 2)
    for _ in range(4):
        (first, (second, nothing)), last = nested(x, y)
        assert nothing is None
        assert last is None
        assert first.dtype is torch.bfloat16
        assert torch.equal(first, x)
        assert torch.equal(second, y)
    assert len(replays) == 2


def test_earlier_results_are_not_overwritten_by_later_launches(replays):
    kernel = nki.jit(by_global)
    found = [kernel(X + n) for n in range(6)]
    assert all(np.array_equal(out, 2 * (X + n)) for n, out in enumerate(found))
    assert replays


def test_inputs_written_in_place_are_written_back(replays):
    @nki.jit
    def in_place(x):
        tile = nl.load(x)
        nisa.tensor_scalar(tile, tile, nl.add, 1.0)
        nl.store(x, tile)
        return x

    held = X.copy()
    for n in range(1, 6):
        out = in_place(held)
        assert np.array_equal(held, X + n)
        assert np.array_equal(out, X + n)
    assert len(replays) == 3
    held.flags.writeable = False
    for _ in range(3):
        run = nki.run(in_place, held)
        assert "nki.read_only" in [f.code for f in run.findings]
        assert np.array_equal(held, X + 5)


def test_the_older_api_is_replayed_too(replays):
    @beta1.jit
    def tiled(x):
        out = ol.ndarray(x.shape, dtype=x.dtype, buffer=ol.shared_hbm)
        i, j = ol.arange(3)[:, None], ol.arange(4)[None, :]
        ol.store(out[i, j], ol.exp(ol.load(x[i, j])))
        return out

    def written(x, out):
        i, j = ol.arange(3)[:, None], ol.arange(4)[None, :]
        ol.store(out[i, j + 4 * ol.program_id(0)], ol.load(x[i, j]) + ol.program_id(0))

    two = beta1.jit(written, kernel_return=False)[2]
    for n in range(4):
        assert np.allclose(tiled(X / 8 + n), np.exp(X / 8 + n), rtol=1e-5)
        out = np.zeros((3, 8), np.float32)
        beta1.simulate_kernel(two, X + n, out)
        assert np.array_equal(out, np.hstack([X + n, X + n + 1]))
    assert len(replays) == 4


# ---------------------------------------------------------------- what changes is seen


def test_changed_globals_closures_defaults_and_code_are_seen(replays):
    global FACTOR
    kernel = nki.jit(by_global)
    assert np.array_equal(launched(kernel, X)[-1], 2 * X)
    FACTOR = 3.0
    try:
        assert np.array_equal(kernel(X), 3 * X)
    finally:
        FACTOR = 2.0
    assert np.array_equal(kernel(X), 2 * X)

    factor = 5.0

    def by_closure(x, more=1.0):
        return stored(nl.add(nl.multiply(nl.load(x), factor), more))

    kernel = nki.jit(by_closure)
    assert np.array_equal(launched(kernel, X)[-1], 5 * X + 1)
    factor = 6.0
    assert np.array_equal(kernel(X), 6 * X + 1)
    by_closure.__defaults__ = (2.0,)
    assert np.array_equal(kernel(X), 6 * X + 2)
    assert np.array_equal(launched(kernel, X)[-1], 6 * X + 2)
    by_closure.__code__ = (lambda x, more=1.0: stored(nl.load(x)) if factor else None).__code__
    assert np.array_equal(kernel(X), X)
    assert replays


class Config:
    scale = 2.0

    def __init__(self):
        self.shift = 1.0

    @property
    def both(self):
        return self.scale + self.shift


@dataclass
class Fields:
    tile: int
    scales: list


class Mode(enum.Enum):
    TWICE = 2.0
    THRICE = 3.0

    def factor(self):
        return self.value * MODE_EXTRA

    def _hidden(self):
        return MODE_EXTRA


class Slotted:
    __slots__ = ("a",)


class Special(nl.NKIObject if hasattr(nl, "NKIObject") else nki.NKIObject):
    def __init__(self, scale):
        self.scale = scale


MODE_EXTRA = 1.0
Pair = namedtuple("Pair", "a b")
module = types.ModuleType("somebodys_kernels")


def helped(value):
    return value * HELP


HELP = 2.0


def changes():
    """(what is read, how it changes, factor before and after)"""
    config, fields = Config(), Fields(4, [1.0, 2.0])
    table, listed, array = {"k": 2.0}, [1.0, [2.0]], np.array([2.0, 3.0])
    nested = {"inner": Pair(2.0, [1.0])}
    module.factor, module.call = 2.0, lambda: module.factor
    slotted, special = Slotted(), Special(2.0)
    slotted.a = 2.0

    def new_method(self):
        return 7.0

    return {
        "instance": (lambda: config.shift + 1, lambda: setattr(config, "shift", 2.0), 2, 3),
        "property": (lambda: config.both, lambda: setattr(config, "shift", 2.0), 3, 4),
        "method": (lambda: Mode.TWICE.factor(), lambda: globals().update(MODE_EXTRA=2.0), 2, 4),
        "class": (lambda: Config.scale, lambda: setattr(Config, "scale", 4.0), 2, 4),
        "property of a class": (
            lambda: config.both, lambda: setattr(Config, "both", property(new_method)), 3, 7,
        ),
        "field": (lambda: fields.scales[1], lambda: fields.scales.append(fields.scales.pop() + 1),
                  2, 3),
        "dict": (lambda: table["k"], lambda: table.update(k=3.0), 2, 3),
        "list": (lambda: listed[1][0], lambda: listed[1].__setitem__(0, 3.0), 2, 3),
        "array": (lambda: float(array[0]), lambda: array.__setitem__(0, 3.0), 2, 3),
        "nested": (lambda: nested["inner"].b[0] + 1, lambda: nested["inner"].b.append(0), 2, 2),
        "module": (lambda: module.factor, lambda: setattr(module, "factor", 3.0), 2, 3),
        "in a module": (lambda: module.call(), lambda: setattr(module, "call", lambda: 3.0), 2, 3),
        "help": (lambda: helped(1.0), lambda: globals().update(HELP=3.0), 2, 3),
        "partial": (functools.partial(lambda a: a[0], listed),
                    lambda: listed.__setitem__(0, 3.0), 1, 3),
        "object of nki": (lambda: special.scale, lambda: setattr(special, "scale", 3.0), 2, 3),
        "length": (lambda: len(nested), lambda: nested.update(more=1), 1, 2),
        "enum": (lambda: Mode.TWICE.factor(), lambda: setattr(Mode.TWICE, "_value_", 5.0), 2, 5),
        "enum's own": (
            lambda: Mode.TWICE._hidden(), lambda: globals().update(MODE_EXTRA=2.0), 1, 2,
        ),
        "slots": (lambda: slotted.a, lambda: setattr(slotted, "a", 3.0), 2, 3),
        "negative zero": (lambda: math.copysign(1.0, table["z"]), None, 1, -1),
    }  # fmt: skip


@pytest.mark.parametrize("what", [*changes()])
def test_a_change_of_anything_the_kernel_reads_is_seen(what, replays):
    kept = {name: getattr(Config, name) for name in ("scale", "both")}
    before = {"MODE_EXTRA": MODE_EXTRA, "HELP": HELP}
    read, change, first, second = changes()[what]
    if change is None:
        table = {"z": 0.0}
        read, change = (lambda: math.copysign(1.0, table["z"])), (lambda: table.update(z=-0.0))

    @nki.jit
    def kernel(x):
        return stored(nl.multiply(nl.load(x), float(read())))

    value = Mode.TWICE._value_
    try:
        for out in launched(kernel, X):
            assert np.array_equal(out, first * X)
        assert len(replays) == 3, "this can be replayed"
        change()
        for out in launched(kernel, X):
            assert np.array_equal(out, second * X)
    finally:
        globals().update(before)
        Mode.TWICE._value_ = value
        for name, value in kept.items():
            setattr(Config, name, value)


def test_arguments_other_than_arrays_are_part_of_what_is_seen(replays):
    @nki.jit
    def scaled(x, by, op=np.multiply, flags=()):
        tile = nl.load(x)
        for flag in flags:
            nisa.tensor_scalar(tile, tile, nl.add, float(flag))
        return stored(nl.multiply(tile, by) if op is np.multiply else nl.add(tile, by))

    for _ in range(4):
        assert np.array_equal(scaled(X, 2), 2 * X)
        assert np.array_equal(scaled(X, 3.0), 3 * X)
        assert np.array_equal(scaled(X, True), X)
        assert np.array_equal(scaled(X, 1.0, np.add), X + 1)
        assert np.array_equal(scaled(X, 2, flags=[1, 2]), 2 * (X + 3))
        assert np.array_equal(scaled(X[:, :2], 2), 2 * X[:, :2])
        assert np.array_equal(scaled(X.astype(np.float16), 2), 2 * X)
    assert len(replays) == 14


def test_target_version_and_checks_are_part_of_what_is_seen(replays):
    @nki.jit
    def tiled(x):
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.tensor_copy(tile, nl.load(x))
        return stored(nl.add(tile, float(nl.tile_size.psum_fmax)))

    @nki.jit
    def partial_output(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out[0:1], nl.load(x)[0:1])
        return out

    for target in ("trn1", "trn2", "trn3", "trn2"):
        with nki.use_target(target):
            for _ in range(3):
                run = nki.run(tiled, X)
                assert run.chip.name == run.program.target == target
    for _ in range(4):
        partial_output(X)
    with nki.use_strict(Strict(partial_output="error")), pytest.raises(UnwrittenError):
        partial_output(X)
    with nki.use_version("0.2"):
        assert nki.run(tiled, X).outputs.shape == X.shape
    assert replays


# ---------------------------------------------------------------- what is noticed


def test_inputs_outside_an_activations_range_are_noticed_at_any_launch(replays):
    @nki.jit
    def rooted(x):
        tile = nl.ndarray(x.shape, nl.float32)
        nisa.activation(dst=tile, op=nl.rsqrt, data=nl.load(x))
        return stored(tile)

    good, bad = X + 1, X - 3
    for given in (good, good, good, bad, good, bad, bad, good):
        run = nki.run(rooted, given)
        codes = [f.code for f in run.findings]
        assert ("sim.activation_range" in codes) == (given is bad)
        if given is good:
            assert np.allclose(run.outputs, 1 / np.sqrt(given), rtol=1e-5)
    assert replays
    with nki.use_strict(Strict(activation_range="error")):
        launched(rooted, good)
        with pytest.raises(UsageError):
            rooted(bad)


def test_who_looks_on_sees_every_instruction(replays):
    kernel = nki.jit(by_global)
    launched(kernel, X)
    assert replays
    before = len(replays)
    with nki.find_nonfinite() as found:
        kernel(X + np.inf)
    assert [f.code for f in found] == ["nki.nonfinite"]
    assert len(replays) == before


def test_findings_of_imports_and_decorators_come_with_the_next_launch(replays):
    kernel = nki.jit(by_global)
    launched(kernel, X)
    nki.jit(platform_target="trn2")(by_global)
    codes = [[f.code for f in nki.run(kernel, X).findings] for _ in range(2)]
    assert codes == [["nki.migrate.jit"], []]
    assert len(replays) == 5


# ---------------------------------------------------------------- memory and threads


def test_kept_launches_hold_little_more_memory_than_their_tiles(replays):
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    if not os.path.exists("/proc/self/statm"):
        pytest.skip("/proc tells the memory of a process")

    @nki.jit
    def scaled(x, by):
        return stored(nl.multiply(nl.load(x), float(by)))

    wide = np.ones((128, 256), np.float32)  # tiles of 128 KiB, which come in pieces of 32 MiB
    launched(scaled, wide, 0, times=3)
    before = resident()
    for by in range(1, 101):
        launched(scaled, wide, by, times=3)
    kept = again.LAUNCHES.kept
    assert len(kept) == 101
    assert sum(one.size for one in kept.values()) < 101 * 6 * wide.nbytes
    assert resident() - before < 200 * 6 * wide.nbytes


def test_what_is_kept_is_bounded(replays, monkeypatch):
    monkeypatch.setattr(again, "BYTES", 400_000)
    kernel = nki.jit(by_global)
    wide = np.ones((128, 80), np.float32)
    for rows in range(100, 128):
        launched(kernel, wide[:rows], times=3)
    kept = again.LAUNCHES.kept.values()
    assert 0 < sum(one.size for one in kept) <= 400_000
    assert len(kept) < 10
    large = np.ones((128, 2000), np.float32)
    before = len(replays)
    launched(kernel, large)
    assert len(replays) == before, "a launch that needs a quarter of all is traced"


def test_what_would_take_long_to_read_is_not_read(replays):
    table = dict.fromkeys(range(100_000), 2.0)

    @nki.jit
    def looked_up(x):
        return stored(nl.multiply(nl.load(x), table[7]))

    launched(looked_up, X)
    table[7] = 3.0
    start = time.perf_counter()
    with pytest.raises(reads.Opaque):
        reads.key_of(looked_up, ())
    assert time.perf_counter() - start < 0.1
    assert np.array_equal(looked_up(X), 3 * X)
    assert not replays


def test_a_tensor_of_another_launch_is_not_taken_for_a_constant(replays):
    kept = []

    @nki.jit
    def first(x):
        kept.append(nl.load(x))
        return stored(kept[-1])

    first(X)
    with pytest.raises(reads.Opaque):
        reads.key_of(lambda: kept, ())


def test_threads_do_not_mix_their_launches(replays):
    kernel, wrong = nki.jit(by_global), []

    def work(n):
        for k in range(30):
            given = X + n * 100 + k
            if not np.array_equal(kernel(given), 2 * given):
                wrong.append((n, k))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong
    assert replays


def test_repeated_launches_on_several_cores_give_the_same():
    @nki.jit
    def both(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        if nl.program_id(0) == 0:
            nl.store(out, nl.load(x))
        return out

    for _ in range(4):
        assert np.array_equal(both[2](X), X)
