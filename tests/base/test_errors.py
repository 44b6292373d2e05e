"""Errors: their five lines, their place, their codes and their JSON form."""

import contextlib
import inspect
import os
import pickle

import pytest

import opentrn
from opentrn.base import Where, errors, numerics, units
from opentrn.base.errors import Bug, ShapeError, TrnError, user_line

PACKAGE = os.path.dirname(os.path.abspath(opentrn.__file__))
HERE = os.path.abspath(__file__)

KINDS = {
    "ShapeError": ValueError, "DtypeError": TypeError, "SpaceError": ValueError,
    "LimitError": ValueError, "CapacityError": MemoryError, "OrderError": RuntimeError,
    "UnwrittenError": ValueError, "BoundsError": IndexError,
    "NotBuiltError": NotImplementedError, "UnknownNameError": LookupError,
    "UsageError": ValueError, "FactError": ValueError, "FileFormatError": ValueError,
    "MissingFileError": FileNotFoundError, "UnsupportedError": ValueError,
}  # fmt: skip


def a_refusal(**more):
    fields = {"code": "tests.example", "rule": "N ≤ 512", "fix": "cut N in two"}
    return ShapeError("`moving` is too big", **fields | more)


def test_five_lines(tmp_path):
    file = tmp_path / "my_kernel.py"
    file.write_text("import nki\n    nisa.nc_matmul(dst=acc)   \n")
    where = Where(str(file), 2, "kernel")
    assert str(a_refusal(at=where, neuron="NCC_EXAMPLE01")).splitlines() == [
        "`moving` is too big",
        "  at    my_kernel.py:2: nisa.nc_matmul(dst=acc)",
        "  rule  N ≤ 512",
        "  fix   cut N in two",
        "  more  opentrn explain tests.example  (NCC_EXAMPLE01)",
    ]


def test_parts_that_are_not_known_have_no_line():
    error = TrnError("no", code="tests.bare", at=Where("gone.py", 3, "f"))
    assert str(error) == "no\n  at    gone.py:3 in f\n  more  opentrn explain tests.bare"


def test_json_says_the_same():
    error = a_refusal(at=Where("gone.py", 3), neuron="NRT_X")
    assert error.json() == {
        "kind": "ShapeError",
        "what": "`moving` is too big",
        "at": {"file": "gone.py", "line": 3, "text": ""},
        "rule": "N ≤ 512",
        "fix": "cut N in two",
        "code": "tests.example",
        "neuron": "NRT_X",
        "fault": "",
    }


def test_the_place_is_the_line_of_the_user():
    error = a_refusal()
    line = inspect.currentframe().f_lineno - 1
    # a_refusal is in this file, so its own line is the innermost one of the user
    assert error.at.file == HERE
    assert error.at.line < line
    assert error.at.text == 'return ShapeError("`moving` is too big", **fields | more)'
    with pytest.raises(errors.FactError) as caught:
        units.parse("5 parsecs")
    assert caught.value.at.text == 'units.parse("5 parsecs")'
    assert f"test_errors.py:{caught.value.at.line}: units.parse" in str(caught.value)


def call_from(filename, function):
    """Call `function` from code that claims to lie in `filename`."""
    scope = {}
    exec(compile("def call(f):\n    return f()\n", filename, "exec"), scope)
    return scope["call"](function)


def test_frames_of_the_package_are_passed_over_but_kernels_are_user_code():
    inner = os.path.join(PACKAGE, "sim", "machine.py")
    kernel = os.path.join(PACKAGE, "nki", "kernels", "matmul.py")
    assert call_from(inner, user_line).file == HERE
    assert call_from(inner, user_line).function == "call_from"
    assert call_from(kernel, user_line) == Where(kernel, 2, "call")
    assert call_from(os.path.join(PACKAGE, "nki", "kernels_of_mine.py"), user_line).file == HERE
    assert call_from(kernel, lambda: call_from(inner, user_line)).file == HERE


def test_frames_of_the_standard_library_are_passed_over():
    @contextlib.contextmanager
    def ours():
        yield user_line()

    inner = os.path.join(PACKAGE, "sim", "machine.py")
    runner = os.path.join("x", "site-packages", "click", "core.py")
    assert call_from(runner, user_line).file == HERE
    assert call_from(os.path.join("x", "bin", "opentrn"), user_line).file == HERE
    assert call_from(contextlib.__file__, user_line).file == HERE
    assert call_from(inner, lambda: call_from(contextlib.__file__, user_line)).file == HERE
    with ours() as where:
        assert where.file == HERE


def test_methods_written_for_dataclasses_are_passed_over():
    from opentrn.cost import Training

    with pytest.raises(TrnError) as caught:
        Training(batch=0, sequence=1)
    assert caught.value.at.file == HERE
    assert caught.value.at.function == "test_methods_written_for_dataclasses_are_passed_over"
    scope = {"user_line": user_line}
    exec("def f():\n    return user_line()\n", scope)
    assert scope["f"]() == Where("<string>", 2, "f")  # as of `python -c`: that is the user's


def test_two_lines_of_one_function_have_two_places():
    first = user_line()
    second = user_line()
    again = [user_line() for _ in range(2)]
    assert second.line == first.line + 1
    assert again[0] is again[1]


def test_two_functions_from_the_same_text_do_not_share_places():
    one = call_from("<one>", user_line)
    two = call_from("<two>", user_line)
    assert (one.file, two.file) == ("<one>", "<two>")
    for number in range(50):  # short-lived code objects must not inherit a dead one's place
        assert call_from(f"<{number}>", user_line).file == f"<{number}>"


@pytest.mark.parametrize(("name", "builtin"), list(KINDS.items()))
def test_each_kind_is_the_builtin_exception_too(name, builtin):
    kind = getattr(errors, name)
    assert issubclass(kind, TrnError)
    assert issubclass(kind, builtin)
    error = kind("no", code="tests.kind", fix="do", at=Where("a.py", 1))
    assert str(error).startswith("no\n  at    a.py:1")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert again.json() == error.json()
    assert error.args == ("no",)


def test_declared_codes_fill_what_is_missing():
    code = errors.declare("tests.filled", "An example.", "the rule", "the fix", "NCC_A1")
    error = TrnError("no", code=code)
    assert (error.rule, error.fix, error.neuron) == ("the rule", "the fix", "NCC_A1")
    assert TrnError("no", code=code, rule="closer").rule == "closer"
    assert errors.explanation(code).meaning == "An example."
    assert code in errors.codes()
    assert errors.codes() == sorted(set(errors.codes()))


def test_a_code_is_declared_once_and_dotted():
    errors.declare("tests.once", "An example.")
    with pytest.raises(Bug, match="declared twice"):
        errors.declare("tests.once", "Another.")
    with pytest.raises(Bug, match="needs the form"):
        errors.declare("once", "No dot.")
    assert errors.explanation("tests.never") is None


@pytest.mark.parametrize("code", ["base.dtype", "base.unit", "base.clock"])
def test_the_codes_of_this_room_say_rule_and_fix(code):
    declared = errors.explanation(code)
    assert declared.meaning
    assert declared.rule
    assert declared.fix


def test_a_bug_asks_for_a_report():
    with pytest.raises(Bug, match="please report it"):
        numerics.round_to([1.0], opentrn.base.dtypes.int8)


def test_nearest_names():
    assert errors.nearest("trn22", ["trn1", "trn2", "inf2", "gpu"])[0] == "trn2"
    assert errors.nearest("GIB", ["GiB", "s"]) == ["GiB"]
    assert errors.nearest("zzz", ["trn1"]) == []
