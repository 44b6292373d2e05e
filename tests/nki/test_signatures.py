"""The public functions have exactly the parameters and defaults of NKI 0.6 (signatures.txt)."""

import inspect
from pathlib import Path

import pytest

from opentrn.base import NotBuiltError
from opentrn.isa import INSTRUCTIONS, signature
from opentrn.nki import collectives as ncc
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl

MODULES = {"nl": nl, "nisa": nisa, "ncc": ncc}
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
    if name in getattr(MODULES[module], "NOT_BUILT", ()):
        with pytest.raises(NotBuiltError) as caught:
            getattr(MODULES[module], name)
        assert caught.value.code == "nki.not_built"
        return
    function = getattr(MODULES[module], name)
    ours = [(p.name, p.default) for p in inspect.signature(function).parameters.values()]
    theirs = parameters(text)
    assert [n for n, _ in ours] == [n for n, _ in theirs]
    for (name, mine), (_, wanted) in zip(ours, theirs, strict=True):
        assert same(mine, wanted), f"{name}: {mine!r} instead of {wanted!r}"


def test_the_list_is_the_whole_interface():
    assert sum(line.startswith("nl.") for line in LINES) == 103
    assert sum(line.startswith("nisa.") for line in LINES) == 52
    assert sum(line.startswith("ncc.") for line in LINES) == 11
    listed = {line.split("(")[0].split(".")[1] for line in LINES if not line.startswith("nl.")}
    assert set(INSTRUCTIONS) <= listed


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_each_instruction_has_its_function_with_its_signature_and_docstring(name):
    cls = INSTRUCTIONS[name]
    function = getattr({"nki.isa": nisa, "nki.collectives": ncc}[cls.module], name)
    assert inspect.signature(function) == signature(cls)
    assert function.__doc__ == cls.__doc__
    assert function.__name__ == name


def test_names_that_do_not_exist_are_attribute_errors():
    for module in MODULES.values():
        with pytest.raises(AttributeError):
            getattr(module, "no_such_function")  # noqa: B009
