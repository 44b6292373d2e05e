"""Codes of instructions are explained from their classes."""

import pytest

from opentrn.isa import INSTRUCTIONS, explain


def test_a_dimension_is_explained_by_its_law():
    found = explain("nc_matmul.N")
    assert found.code == "nc_matmul.N"
    assert INSTRUCTIONS["nc_matmul"].dims["N"].why in found.rule
    assert "tensor" in found.meaning


def test_an_operand_by_its_space_and_an_operand_dtype_by_its_list():
    assert "sbuf" in explain("nc_matmul.moving").rule
    assert "float8_e4m3" in explain("nc_matmul.moving.dtype").rule
    assert "float16" in explain("nc_matmul.stationary.dtype").rule


def test_a_flag_by_its_reason_and_a_common_law():
    assert explain("nc_matmul.accumulate").rule == INSTRUCTIONS["nc_matmul"].flags["accumulate"].why
    assert "0, 32, 64 or 96" in explain("nc_transpose.start_partition").rule


@pytest.mark.parametrize(
    "code", ["nc_matmul", "nc_matmul.", "nc_matmul.nothing", "nothing.N", "nc_matmul.N.dtype", ""]
)
def test_what_does_not_exist_is_not_explained(code):
    assert explain(code) is None


def test_every_part_of_every_instruction_is_explained():
    for name, kind in INSTRUCTIONS.items():
        for part in [*kind.dims, *kind.parameters, "start_partition", "generation", "rules"]:
            found = explain(f"{name}.{part}")
            assert found is not None, f"{name}.{part}"
            assert found.rule, f"{name}.{part}"
