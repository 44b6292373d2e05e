"""Make forms of Vector Engine instructions by name, and run them on plain arrays."""

import numpy as np
import pytest

from opentrn.base import TrnError, numerics
from opentrn.base.dtypes import dtype
from opentrn.hw import chip
from opentrn.isa.define import form
from opentrn.isa.operands import ImmediateForm, OperandForm

NUMBER = ImmediateForm()
BF16, F32 = "bfloat16", "float32"


def tile(*shape, t=F32, space="sbuf", **more):
    """An operand form; bfloat16, float32 and others by name."""
    return OperandForm(space, shape, dtype(t), **more)


def make(cls, on="trn2", **given):
    """The form of `cls` with operands and flags by name, defaults for the rest."""
    operands = tuple(
        given.pop(n) if n in given else _default(n, o)
        for n, o in cls.operands.items()
    )
    flags = tuple(given.pop(n) if n in given else f.default for n, f in cls.flags.items())
    if given:
        raise TypeError(f"{cls.__name__} has no {sorted(given)}")
    return form(cls, chip(on), operands, flags)


def _default(name, operand):
    if isinstance(operand.default, float):
        return NUMBER
    if operand.optional:
        return None
    raise TypeError(f"give `{name}`")


def stored(i, name, value):
    """What the operand's memory holds after the instruction wrote `value` to it."""
    operand = getattr(i, name)
    cell = np.empty(operand.shape, operand.dtype.carrier)
    value = np.asarray(value)
    fits = value if value.shape in ((), (1,)) else value.reshape(operand.shape)
    numerics.store(cell, fits, None, operand.dtype)
    return cell


def carrier(x, t=F32):
    """An array as the carrier of a type, rounded to it."""
    to = dtype(t)
    out = np.empty(np.shape(x), to.carrier)
    numerics.store(out, np.asarray(x), None, to)
    return out


def cycles(i):
    """Cycles the instruction occupies its engine."""
    return i.cost.busy_ns * getattr(i.chip, i.engine_name).clock / 1e9


def visible(i):
    """Nanoseconds from start until the result can be read."""
    return i.cost.busy_ns + i.cost.latency_ns


def refuse(kind, code, make_form):
    """The text of the refusal `make_form` must raise: of this kind, with this code."""
    with pytest.raises(kind) as caught:
        make_form()
    assert isinstance(caught.value, TrnError)
    assert caught.value.code == code
    return str(caught.value)
