"""Where `.indirect()` views may stand, and every way a form of one is refused."""

import pytest

from opentrn.base import LimitError, dtypes
from opentrn.isa import INSTRUCTIONS, Buffer, operand_form, view_of
from opentrn.isa.operands import IndexForm
from opentrn.isa.scalar import activation
from opentrn.isa.tensor import nc_matmul
from opentrn.isa.vector import tensor_copy, tensor_scalar
from tests.isa.vector_forms import NUMBER, make, refuse, tile

# Which operands the API reference (NKI 0.6, "Tensor indirection") allows; the rest allow none.
ALLOWED = {
    "activate2": {"dst", "data"},
    "activation": {"dst", "data"},
    "activation_reduce": {"dst", "data"},
    "exponential": {"dst", "src"},
    "nc_matmul": {"dst", "stationary", "moving"},
    "nc_matmul_mx": {"dst", "stationary", "moving", "stationary_scale", "moving_scale"},
    "tensor_copy": {"dst", "src"},
    "tensor_copy_predicated": {"dst", "predicate"},
    "tensor_reduce": {"dst", "data"},
    "tensor_scalar": {"dst", "data"},
    "tensor_scalar_cumulative": {"dst", "src"},
    "tensor_scalar_reduce": {"dst", "data"},
    "tensor_tensor": {"dst", "data1"},
}


def test_the_operands_are_the_documented_ones():
    found = {name: set(cls.gathers) for name, cls in INSTRUCTIONS.items() if cls.gathers}
    assert found == ALLOWED


def test_the_form_of_a_view_knows_its_index():
    data = Buffer(0, "sbuf", (128, 64), dtypes.bfloat16)
    index = Buffer(5, "sbuf", (128, 4), dtypes.uint32)
    view = view_of(data).indirect(view_of(index)[:, 1:3], 20)
    form = operand_form(view)
    assert form.indirect == "tensor"
    assert form.index == IndexForm(2, -1, (5, 1))
    placed = Buffer(0, "sbuf", (64, 64), dtypes.bfloat16, address=0, partition=64)
    index = Buffer(5, "sbuf", (64, 4), dtypes.uint32, address=256, partition=32)
    assert operand_form(view_of(placed).indirect(view_of(index), 9)).index.partition == 32


def gathered(*shape, columns=4, begins=-1, **more):
    index = IndexForm(columns, begins, (9, 0))
    return tile(*shape, indirect="tensor", index=index, **more)


def copy(src, dst=None, **more):
    return make(tensor_copy, on="trn3", dst=dst or tile(*src.shape), src=src, **more)


def test_the_group_bounds_the_offsets():
    assert copy(gathered(128, 64)).F == 64
    text = refuse(LimitError, "tensor_copy.rules", lambda: copy(gathered(128, 65)))
    assert "hold 64 offsets" in text
    text = refuse(LimitError, "tensor_copy.rules", lambda: copy(gathered(24, 8)))
    assert "multiple of 16" in text


def matmul(k=64, on="trn3", out="bfloat16", **more):
    given = {
        "dst": tile(32, 128, t=out, space="psum"),
        "stationary": tile(k, 32, t="bfloat16"),
        "moving": tile(k, 128, t="bfloat16"),
    }
    return make(nc_matmul, on=on, **(given | more))


def test_the_tensor_engine_reads_offsets_of_32_partitions():
    assert matmul(moving=gathered(64, 128, t="bfloat16")).N == 128
    text = refuse(
        LimitError,
        "nc_matmul.rules",
        lambda: matmul(moving=gathered(64, 128, columns=3, t="bfloat16")),
    )
    assert "hold 96 offsets" in text
    text = refuse(
        LimitError,
        "nc_matmul.rules",
        lambda: matmul(k=48, moving=gathered(48, 128, t="bfloat16")),
    )
    assert "multiple of 32" in text


@pytest.mark.parametrize(
    "more",
    [
        {"moving": gathered(64, 128, t="bfloat16"), "is_transpose": True},
        {
            "moving": gathered(64, 128, t="bfloat16"),
            "tile_position": (64, 0),
            "tile_size": (64, 128),
        },
        {"dst": gathered(32, 128, space="psum")},
        {"on": "trn2", "out": "float32", "moving": gathered(64, 128, t="bfloat16")},
    ],
)
def test_what_an_indirect_matmul_refuses(more):
    refuse(LimitError, "nc_matmul.rules", lambda: matmul(**more))


def test_base_partitions_of_placed_tiles():
    def at(first, begins, **more):
        return gathered(32, 8, begins=begins, partition=first, **more)

    assert copy(at(32, 32)).P == 32
    text = refuse(LimitError, "tensor_copy.rules", lambda: copy(at(32, 48)))
    assert "multiple of 32" in text
    text = refuse(LimitError, "tensor_copy.rules", lambda: copy(at(32, 64)))
    assert "begin together" in text
    flat = tile(32, 8, partition=32)
    assert copy(flat, at(0, 32)).P == 32
    refuse(LimitError, "tensor_copy.rules", lambda: copy(flat, at(0, 0)))
    # a stream from PSUM counts by its index, if it has one
    assert copy(tile(32, 8, partition=32, space="psum"), at(0, 0)).P == 32
    assert copy(at(64, 64, space="psum"), at(0, 64)).P == 32
    refuse(LimitError, "tensor_copy.rules", lambda: copy(at(64, 64, space="psum"), at(0, 0)))


def test_the_scalar_engine_does_not_scatter_into_psum():
    refuse(
        LimitError,
        "activation.rules",
        lambda: make(
            activation,
            on="trn3",
            dst=gathered(32, 8, space="psum"),
            op="exp",
            data=tile(32, 8),
            scale=NUMBER,
        ),
    )


def test_address_arithmetic_is_not_indirect():
    def scaled(t):
        return make(
            tensor_scalar,
            on="trn3",
            dst=tile(32, 8, t=t),
            data=gathered(32, 8, t=t),
            op0="add",
            operand0=NUMBER,
        )

    assert scaled("float32").F == 8
    text = refuse(LimitError, "tensor_scalar.rules", lambda: scaled("uint32"))
    assert "address arithmetic" in text
