"""Registers: 32-bit two's complement, loads, stores, alloc."""

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import TrnError
from opentrn.isa import RegisterForm
from opentrn.isa.registers import register_load, register_move, register_store, wrapped
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from tests.isa.vector_forms import NUMBER, make, refuse, tile

REGISTER = RegisterForm()

WORDS = [0, 1, -1, 2**31 - 1, -(2**31), 2**31, 2**32 - 1, 2**32, -(2**31) - 1, 12345678901]


@pytest.mark.parametrize("value", WORDS)
def test_values_wrap_as_32_bit_words(value):
    wanted = int(np.array(value % 2**32, np.uint32).view(np.int32))
    assert wrapped(value) == wanted
    assert make(register_move, dst=REGISTER, src=NUMBER).run(src=value)["dst"] == wanted


@pytest.mark.parametrize("kind", [np.int32, np.uint32])
def test_a_tiles_element_goes_through_a_register_and_back(kind):
    def kernel(x):
        out = nl.ndarray((1, 4), x.dtype, buffer=nl.shared_hbm)
        t, u = nl.load(x), nl.ndarray((1, 4), x.dtype)
        for n in range(4):
            register, copied = nisa.register_alloc(t[:, n]), nisa.register_alloc()
            nisa.register_move(copied, register)
            nisa.register_store(u[:, 3 - n], copied)
        nl.store(out, u)
        return out

    x = np.array([[0, 7, 2**31 - 1, np.iinfo(kind).max]], kind)
    assert nki.run(kernel, x).outputs.tolist() == x[:, ::-1].tolist()


def test_registers_hold_numbers_python_can_read_while_the_kernel_runs():
    seen = []

    def kernel(x):
        register = nisa.register_alloc(5)
        seen.extend([int(register), bool(register), [10, 20, 30, 40, 50, 60][register]])
        nisa.register_move(register, -3)
        seen.append(int(register))
        return x

    nki.run(kernel, np.ones((1, 1), np.float32))
    assert seen == [5, True, 60, -3]


def test_what_a_register_can_load():
    refuse(
        TrnError,
        "register_load.F",
        lambda: make(register_load, dst=REGISTER, src=tile(1, 2, t="int32")),
    )
    refuse(
        TrnError,
        "register_load.P",
        lambda: make(register_load, dst=REGISTER, src=tile(2, 1, t="int32")),
    )
    refuse(
        TrnError,
        "register_load.src.dtype",
        lambda: make(register_load, dst=REGISTER, src=tile(1, 1)),
    )
    refuse(
        TrnError,
        "register_load.src",
        lambda: make(register_load, dst=REGISTER, src=tile(1, 1, t="int32", space="psum")),
    )
    refuse(
        TrnError,
        "register_store.dst.dtype",
        lambda: make(register_store, dst=tile(1, 1), src=NUMBER),
    )


def test_they_run_on_the_sequencer_without_flops():
    form = make(register_move, dst=REGISTER, src=NUMBER)
    assert form.engine_name == "sync"
    assert form.flops() == 0
    assert form.cost.busy_ns > 0
    assert form.cost.grade == "assumed"


@pytest.mark.parametrize("number", [1.5, 3.0, float("nan"), 2**32, -(2**31) - 1, 10**30])
@pytest.mark.parametrize("call", ["register_alloc", "register_move", "register_store"])
def test_numbers_no_register_holds(number, call):
    """Neither cut to an integer nor wrapped in silence."""

    def kernel(x):
        if call == "register_alloc":
            nisa.register_alloc(number)
        elif call == "register_move":
            nisa.register_move(nisa.register_alloc(), number)
        else:
            nisa.register_store(nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf), number)
        return x

    with pytest.raises(TrnError, match="a whole number of 32 bits") as caught:
        nki.run(kernel, np.ones((1, 1), np.float32))
    assert caught.value.code in ("register_move.src", "register_store.src")


@pytest.mark.parametrize("given", [None, 3, "tile"])
def test_what_is_no_register_is_not_set(given):
    def kernel(x):
        nisa.register_move(nl.load(x) if given == "tile" else given, 3)
        return x

    with pytest.raises(TrnError) as caught:
        nki.run(kernel, np.ones((1, 1), np.float32))
    assert caught.value.code == "register_move.dst"
