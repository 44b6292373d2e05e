"""The table of data types, against ml_dtypes.finfo and numpy.iinfo, and the names it accepts."""

import copy
import json
import pickle
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from opentrn.base import Bug, DType, DtypeError, dtype, dtypes

LIBRARY = [d for d in (*dtypes.FLOATS, dtypes.float8_e8m0fnu) if d is not dtypes.tfloat32]


@pytest.mark.parametrize("each", LIBRARY)
def test_float_limits_agree_with_the_libraries(each):
    info = ml_dtypes.finfo(each.storage)
    assert each.max == float(info.max)
    assert each.smallest_normal == float(info.smallest_normal)
    assert each.mantissa == info.nmant
    assert each.exponent == info.nexp
    assert each.bits == info.bits
    if each.kind == "float":
        assert each.min == float(info.min)
        with np.errstate(all="ignore"):
            huge = np.array([np.inf, np.nan]).astype(each.storage).astype(np.float64)
        assert each.has_inf == np.isinf(huge[0])
        assert each.has_nan == np.isnan(huge[1])
        assert each.bias == 1 - np.log2(float(info.smallest_normal))


@pytest.mark.parametrize("each", dtypes.INTS)
def test_integer_limits_agree_with_numpy(each):
    info = np.iinfo(each.name)
    assert (each.max, each.min, each.bits) == (info.max, info.min, info.bits)
    assert each.carrier == each.storage == np.dtype(each.name)
    assert each.kind == info.kind.replace("i", "int").replace("u", "uint")


def test_tf32_is_float32_with_ten_mantissa_bits():
    tf32 = dtypes.tfloat32
    assert (tf32.mantissa, tf32.exponent, tf32.itemsize) == (10, 8, 4)
    assert tf32.max == (2 - 2.0**-10) * 2.0**127
    assert tf32.storage == tf32.carrier == np.float32


@pytest.mark.parametrize("each", dtypes.ALL)
def test_storage_and_carrier_fit_the_type(each):
    assert each.storage.itemsize == each.itemsize
    assert type(each) is DType
    if each.kind in ("float", "scale") and each.bits <= 32:
        assert each.carrier == np.float32
    if each.kind == "packed":
        assert each.carrier == each.storage
        assert each.bits == 4 * each.element.bits == 8 * each.itemsize
        assert each.lanes == 4
    assert each.on_chip == (each.bits <= 32) == (each in dtypes.ON_CHIP)


@pytest.mark.parametrize("each", dtypes.ALL)
def test_a_type_is_its_name_as_text(each):
    assert isinstance(each, str)
    assert each == each.name
    assert dtype(each.name) is each
    assert dtype(each) is each
    assert pickle.loads(pickle.dumps(each)) is each
    assert copy.deepcopy(each) is each
    assert json.loads(json.dumps({"dtype": each})) == {"dtype": each.name}
    with pytest.raises(Bug, match="attempt to change"):
        each.bits = 3


@pytest.mark.parametrize("each", [d for d in dtypes.ALL if d.kind != "packed"])
def test_numpy_understands_the_types_it_has(each):
    if each is dtypes.tfloat32:
        with pytest.raises(TypeError):
            np.dtype(each)
        return
    dtypes.register()
    assert np.dtype(each) == each.storage
    assert dtype(each.storage) is each
    assert dtype(each.storage.type) is each


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ("bf16", "bfloat16"), ("fp32", "float32"), ("fp16", "float16"), ("tf32", "tfloat32"),
        ("bool_", "bool"), (np.float32, "float32"), (np.bool_, "bool"), (np.dtype("i2"), "int16"),
        (np.dtype(">i2"), "int16"), (ml_dtypes.bfloat16, "bfloat16"),
        (ml_dtypes.float8_e4m3, "float8_e4m3"), (np.str_("int8"), "int8"),
    ],
)  # fmt: skip
def test_names_that_are_understood(given, want):
    assert dtype(given) is dtype(want)
    assert dtype(given) == want


class TorchLike:
    """Looks like a torch dtype: known by its text only."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"torch.{self.name}"


@pytest.mark.parametrize("name", ["bfloat16", "float32", "float8_e4m3fn", "int64", "bool"])
def test_torch_dtypes_are_known_by_their_text(name):
    assert dtype(TorchLike(name)) is dtype(name)


NOT_TYPES = ["float9", "", "torch", None, float, int, bool, 4, np.complex64, TorchLike("qint8"), []]


@pytest.mark.parametrize("given", NOT_TYPES)
def test_anything_else_is_refused_with_the_way_out(given):
    with pytest.raises(DtypeError, match="is not a data type") as caught:
        dtype(given)
    assert isinstance(caught.value, TypeError)
    assert caught.value.code == "base.dtype"
    assert "bfloat16" in caught.value.fix


def test_a_near_miss_names_the_neighbour():
    with pytest.raises(DtypeError) as caught:
        dtype("float8_e4m3fnuz")
    assert caught.value.fix.startswith("known names like it: float8_e4m3fn")


def test_importing_the_room_does_not_import_the_slow_library():
    code = "import sys, opentrn.base; print('ml_dtypes' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
