"""The machinery of instruction classes: what a class must have, what it gives, forms."""

import inspect

import numpy as np
import pytest

from opentrn.base import LimitError, ShapeError, UnknownNameError, dtypes
from opentrn.hw import chip
from opentrn.isa.define import (
    INSTRUCTIONS,
    Instr,
    form,
    freeze,
    instruction_class,
    legal_starts,
    signature,
)
from opentrn.isa.operands import (
    CostLaw,
    Cycles,
    Dim,
    Flag,
    In,
    Out,
    RegIn,
    Value,
    assumed,
    derived,
    fitted,
    stated,
)
from opentrn.isa.tensor import nc_matmul
from opentrn.isa.vector import tensor_scalar
from tests.isa.vector_forms import make, refuse, tile

COST = assumed("for the test", lambda i, chip: Cycles(10, latency=4, background=2))


def parts(**more):
    """The body of a whole instruction class."""
    body = {
        "__doc__": "dst = src.",
        "engines": ("vector",),
        "dst": Out("sbuf", "P F"),
        "src": In("sbuf", "P F", dtypes.float32),
        "scale": Flag(1, "a flag"),
        "seed": Value(0, "a value"),
        "P": Dim(128, "lanes"),
        "F": Dim(lambda i, chip: 64, "a limit", multiple=4),
        "run": lambda i, src, seed: {"dst": src},
        "cycles": COST,
    }
    return {name: part for name, part in (body | more).items() if part is not None}


@pytest.fixture
def sample():
    """A whole instruction class, taken out of the register afterwards."""
    made = type("sample_instruction", (Instr,), parts())
    yield made
    del INSTRUCTIONS["sample_instruction"]


@pytest.mark.parametrize(
    ("without", "named"),
    [("__doc__", "a docstring"), ("engines", "engines"), ("run", "run"),
     ("cycles", "cycles or transfer"), ("F", "F")],
)  # fmt: skip
def test_a_class_that_lacks_a_part_does_not_import(without, named):
    with pytest.raises(TypeError, match=f"define {named}"):
        type("lacking", (Instr,), parts(**{without: None}))
    assert "lacking" not in INSTRUCTIONS


def test_a_class_gives_its_signature_in_the_order_of_its_body(sample):
    text = str(signature(sample))
    assert text == "(dst, src, scale=1, seed=0, name=None)"
    assert instruction_class("sample_instruction") is sample


def test_forms_are_made_once_and_priced(sample):
    one = make(sample, dst=tile(8, 12), src=tile(8, 12))
    assert make(sample, dst=tile(8, 12), src=tile(8, 12)) is one
    assert make(sample, dst=tile(8, 12), src=tile(8, 12), scale=2) is not one
    assert (one.P, one.F) == (8, 12)
    clock = chip("trn2").vector.clock
    wanted = tuple(n * 1e9 / clock for n in (10, 4, 2))
    assert one.cost[:3] == pytest.approx(wanted)
    assert one.cost.grade == "assumed"


def test_equal_flags_of_different_types_are_different_forms(sample):
    kinds = [
        make(sample, dst=tile(8, 12), src=tile(8, 12), scale=s) for s in (1, 1.0, True, -0.0, 0.0)
    ]
    assert len({id(one) for one in kinds}) == 5


def test_sizes_are_checked_with_reasons(sample):
    text = refuse(
        LimitError, "sample_instruction.F", lambda: make(sample, dst=tile(8, 100), src=tile(8, 100))
    )
    assert "F = 100, at most 64" in text
    assert "cut F into 2 tiles of at most 64" in text
    refuse(LimitError, "sample_instruction.F", lambda: make(sample, dst=tile(8, 6), src=tile(8, 6)))
    refuse(
        ShapeError, "sample_instruction.src", lambda: make(sample, dst=tile(8, 12), src=tile(8, 8))
    )
    assert make(sample, dst=tile(8, 12), src=tile(8, 3, 4)).F == 12


@pytest.mark.parametrize(
    ("count", "starts"), [(1, (0, 32, 64, 96)), (32, (0, 32, 64, 96)), (33, (0, 64)),
                          (64, (0, 64)), (65, (0,)), (128, (0,))],
)  # fmt: skip
def test_legal_start_partitions(count, starts):
    assert legal_starts(count) == starts


def test_strided_partitions_are_refused():
    refuse(
        LimitError,
        "tensor_scalar.start_partition",
        lambda: make(
            tensor_scalar,
            dst=tile(4, 8),
            data=tile(4, 8, partition_step=2),
            op0="add",
            operand0=None,
        ),
    )


def test_unknown_instructions_name_their_nearest():
    with pytest.raises(UnknownNameError) as caught:
        instruction_class("nc_matmull")
    assert "nc_matmul" in caught.value.fix
    assert instruction_class("nc_matmul") is nc_matmul


def test_lists_freeze_deeply():
    assert freeze([1, [2, (3, [4])]]) == (1, (2, (3, (4,))))


def test_cost_laws_say_their_grade():
    for make_law, grade in (
        (stated, "stated"), (fitted, "fitted"), (derived, "derived"), (assumed, "assumed"),
    ):  # fmt: skip
        assert make_law("s", None) == CostLaw(grade, "s", None)


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_every_instruction_is_priced_with_a_source(name):
    cls = INSTRUCTIONS[name]
    law = getattr(cls, "cycles", None) or cls.transfer
    assert law.grade in ("stated", "fitted", "derived", "assumed")
    assert len(law.source) > 10
    assert all(dim.why for dim in cls.dims.values())
    assert all(flag.why for flag in cls.flags.values())
    registers = [o for o in cls.operands.values() if isinstance(o, RegIn)]
    assert all(r.why for r in registers)
    assert inspect.getdoc(cls)[0] != " "


def test_generations_are_checked():
    refuse(
        TypeError,
        "nc_matmul.stationary.dtype",
        lambda: make(
            nc_matmul,
            dst=tile(8, 8, space="psum"),
            stationary=tile(8, 8, t="float8_e4m3fn"),
            moving=tile(8, 8, t="float8_e4m3fn"),
        ),
    )


def test_a_form_needs_one_operand_for_each_declared():
    with pytest.raises(ValueError):
        form(nc_matmul, chip("trn2"), (tile(8, 8),), ())
    assert np.isfinite(
        make(tensor_scalar, dst=tile(4, 8), data=tile(4, 8), op0="abs", operand0=None).cost.busy_ns
    )
