"""The public functions have exactly the parameters and defaults of NKI 0.6 (signatures.txt)."""

import inspect
from pathlib import Path

import pytest

from opentrn import nki
from opentrn.isa import INSTRUCTIONS, signature
from opentrn.nki import collectives as ncc
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl

MODULES = {"nl": nl, "nisa": nisa, "ncc": ncc, "tensor": nl.NkiTensor, "nki": nki}
LINES = [
    line
    for line in Path(__file__).with_name("signatures.txt").read_text().splitlines()
    if not line.startswith("#")
]
# Defaults the reference writes by their bare names.
NAMES = {
    "uint8": nl.uint8, "sbuf": nl.sbuf, "equal": nl.equal, "maximum": nl.maximum,
    "oob_mode": nisa.oob_mode, "dge_mode": nisa.dge_mode, "engine": nisa.engine,
    "matmul_perf_mode": nisa.matmul_perf_mode, "reduce_cmd": nisa.reduce_cmd,
    "dma_engine": nisa.dma_engine,
}  # fmt: skip

# What simulate takes beyond the public signature: several ranks at once.
OWN = ("ranks", "nodes")


def parameters(text):
    """[(name, default or empty)] of the text between the parentheses."""
    scope = {}
    exec(f"def made({text}): pass", dict(NAMES), scope)
    return [(p.name, p.default) for p in inspect.signature(scope["made"]).parameters.values()]


def same(ours, theirs):
    """Equal defaults; an operator may be given by its function or its name."""
    if ours is inspect.Parameter.empty or theirs is inspect.Parameter.empty:
        return ours is theirs
    if hasattr(theirs, "nki_op"):
        return theirs.nki_op == getattr(ours, "nki_op", str(ours))
    if theirs is ...:  # the lowest float32, written in the prose of the reference
        return ours is ... or ours == -3.4028234663852886e38 or ours is None
    return ours == theirs and type(ours) is type(theirs)


@pytest.mark.parametrize("line", LINES)
def test_parameters_and_defaults_are_the_public_ones(line):
    module, _, rest = line.partition(".")
    name, _, text = rest.rstrip(")").partition("(")
    function = getattr(MODULES[module], name)
    ours = [(p.name, p.default) for p in inspect.signature(function).parameters.values()]
    if (module, name) == ("nki", "simulate"):
        ours = [p for p in ours if p[0] not in OWN]
    theirs = parameters(text)
    assert [n for n, _ in ours] == [n for n, _ in theirs]
    for (name, mine), (_, wanted) in zip(ours, theirs, strict=True):
        assert same(mine, wanted), f"{name}: {mine!r} instead of {wanted!r}"


def test_the_list_is_the_whole_interface():
    assert sum(line.startswith("nl.") for line in LINES) == 103
    assert sum(line.startswith("nisa.") for line in LINES) == 52
    assert sum(line.startswith("ncc.") for line in LINES) == 11
    assert sum(line.startswith("tensor.") for line in LINES) == 20
    listed = {line.split("(")[0].split(".")[1] for line in LINES if not line.startswith("nl.")}
    assert set(INSTRUCTIONS) <= listed


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_each_instruction_has_its_function_with_its_signature_and_docstring(name):
    cls = INSTRUCTIONS[name]
    function = getattr({"nki.isa": nisa, "nki.collectives": ncc}[cls.module], name)
    assert inspect.signature(function) == signature(cls)
    assert function.__doc__ == cls.__doc__
    assert function.__name__ == name


CONSTANTS = [
    *("bool_", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32"),
    *("bfloat16", "tfloat32", "float8_e4m3", "float8_e4m3fn", "float8_e5m2", "float8_e5m2_x4"),
    *("float8_e4m3fn_x4", "float8_e8m0fnu", "float4_e2m1fn_x4", "sbuf", "psum", "hbm"),
    *("private_hbm", "shared_hbm", "tile_size", "average", "prelu", "bypass", "DType"),
    *("MemoryRegion", "NKIObject"),
]
MEMBERS = {
    "engine": {
        "tensor": 1, "vector": 5, "scalar": 2, "gpsimd": 3, "dma": 4, "sync": 6, "unknown": 0,
    },
    "reduce_cmd": {"idle": 0, "reset": 1, "reduce": 2, "reset_reduce": 3, "load_reduce": 4},
    "dge_mode": {"unknown": 0, "swdge": 1, "hwdge": 2, "none": 3},
    "oob_mode": {"error": 0, "skip": 1},
    "matmul_perf_mode": {"none": "none", "double_row": "double_row"},
    "nc_version": {"gen2": 2, "gen3": 3, "gen4": 4},
    "dma_engine": {"dma": 1, "gpsimd_dma": 2},
}  # fmt: skip


def test_constants_and_attributes_are_the_public_ones():
    assert [name for name in CONSTANTS if not hasattr(nl, name)] == []
    for name in ("shape", "strides", "offset", "name", "dtype", "buffer", "ndim", "size"):
        assert isinstance(getattr(nl.NkiTensor, name), property)


@pytest.mark.parametrize("name", MEMBERS)
def test_enumerations_have_the_public_members_and_values(name):
    assert {m.name: m.value for m in getattr(nisa, name)} == MEMBERS[name]


def test_names_that_do_not_exist_are_attribute_errors():
    for module in (nl, nisa, ncc):
        with pytest.raises(AttributeError):
            getattr(module, "no_such_function")  # noqa: B009
