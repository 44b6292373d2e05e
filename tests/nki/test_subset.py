"""Each construct the NKI compiler refuses is found at its line; what it accepts is silent."""

import dataclasses
import importlib.util
import math
import sys
import textwrap

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import explanation
from opentrn.nki.subset import examine
from opentrn.nki.subset_rules import RULES

HEAD = """
import math
from dataclasses import dataclass
from enum import Enum
import numpy as np
import opentrn.nki as nki
import opentrn.nki.isa as nisa
import opentrn.nki.language as nl

"""
REFUSED = {
    "try": ("try:\n        pass\n    except ValueError:\n        pass", 0),
    "raise": ("raise ValueError('no')", 0),
    "with": ("with open(a) as f:\n        pass", 0),
    "lambda": ("f = lambda q: q", 0),
    "comprehension": ("xs = [i for i in range(3)]", 0),
    "walrus": ("if (n := 3) > 2:\n        pass", 0),
    "set": ("s = {1, 2}", 0),
    "global": ("global z", 0),
    "import": ("import os", 0),
    "nested": ("def inner():\n        return 1", 0),
    "del": ("x = 1\n    del x", 1),
    "match": ("match a:\n        case 1:\n            pass", 0),
    "loop_else": ("for i in range(2):\n        pass\n    else:\n        pass", 0),
    "loop_target": ("for i, j in a:\n        pass", 0),
    "is": ("x = a is True", 0),
    "in": ("x = 1 < 2 in a", 0),
    "matmul": ("x = a @ a", 0),
    "star": ("x = max(*a)", 0),
    "dict_key": ("d = {1: 2}", 0),
    "format": ("print(f'{a:.2f}')", 0),
    "number": ("x = 5000000000", 0),
    "builtin": ("x = sorted(a)", 0),
    "library": ("x = np.prod(a)", 0),
    "generator": ("yield a", 0),
}


@pytest.fixture
def kernel_of(tmp_path, monkeypatch):
    """Write a file and return the function `kernel` of it, and the line where `body` begins."""

    def make(body, before=""):
        text = HEAD + before + f"\ndef kernel(a):\n    {body}\n    return a\n"
        path = tmp_path / "sample.py"
        path.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location("subset_sample", path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "subset_sample", module)
        spec.loader.exec_module(module)
        first = text.splitlines().index("def kernel(a):") + 2
        return module.kernel, first

    return make


@pytest.mark.parametrize("rule", REFUSED)
def test_a_construct_is_found_at_its_line(rule, kernel_of):
    body, after = REFUSED[rule]
    kernel, first = kernel_of(body)
    found = examine(kernel)
    assert [(f.code, f.where.line) for f in found] == [(f"nki.python_{rule}", first + after)]
    assert RULES[rule].source in found[0].rule


def test_every_rule_is_explained_with_its_source():
    for name, rule in RULES.items():
        known = explanation(f"nki.python_{name}")
        assert known.rule.endswith(f"[{rule.source}]")
        assert known.fix == rule.fix


ACCEPTED = """
with nl.no_reorder():
        pass
    xs = []
    for i in range(4):
        if i in (1, 2) and xs == [] or a is not None:
            xs.append(i)
    d = {'k': max(1, 2), 'm': math.ceil(1.5)}
    n = 0
    while n < 3:
        n += 1
        if n == 2:
            continue
    lo, hi = divmod(7, 2)
    y = lo if hi else None
    assert isinstance(n, int), f'{n} of {a!r}'
    z: int = len(xs) + abs(-1)
    def body(i):
        print(i)
    nl.fori_loop(0, 3, body)
"""


def test_what_the_compiler_accepts_is_silent(kernel_of):
    kernel, _ = kernel_of(ACCEPTED.strip())
    assert examine(kernel) == []


def test_helpers_are_followed_through_modules_closures_and_methods(kernel_of):
    before = textwrap.dedent("""
        def deep(x):
            return sorted(x)


        def helper(x):
            return deep(x)


        @dataclass
        class Config(nl.NKIObject):
            n: int = 1

            def bad(self):
                return [i for i in range(self.n)]


        class Plain:
            pass


        class Kind(Enum):
            one = 1

    """)
    kernel, _ = kernel_of("helper(a); Config(); Plain(); k = Kind.one", before)
    codes = sorted(f.code for f in examine(kernel))
    assert codes == ["nki.python_builtin", "nki.python_class", "nki.python_comprehension"]


def test_parameters_decorators_and_arguments(kernel_of):
    before = "import functools\n\n\n@functools.cache\ndef helper(*xs, **more):\n    return xs\n"
    kernel, _ = kernel_of("helper(a)", before)
    found = [f.code for f in examine(kernel, [[1, 2]])]
    assert sorted(found) == [
        "nki.python_decorator",
        "nki.python_list_argument",
        "nki.python_varargs",
        "nki.python_varargs",
    ]


def test_classes_of_arguments_are_read():
    @dataclasses.dataclass
    class Odd:
        n: int = 1

    def kernel(c):
        return c

    found = examine(kernel, [Odd()])
    assert [f.code for f in found] == ["nki.python_class"]


def test_local_names_hide_builtins(kernel_of):
    kernel, _ = kernel_of("sorted = a\n    x = sorted")
    assert examine(kernel) == []


def test_our_own_kernels_and_libraries_are_not_followed():
    def kernel(a):
        return math.sqrt(2.0), nki.language.sum(a, 1), np

    assert examine(kernel) == []


def flagged(x, *, flag=True):
    return x if flag is True else None


def test_what_nki_0_3_began_to_refuse_is_told_from_then_on_only():
    told = {"nki.python_is", "nki.python_keyword_only", "nki.python_list_argument"}
    assert {f.code for f in examine(flagged, ([1],))} == told
    for version, codes in (("0.2", set()), ("0.3", told)):
        with nki.use_version(version):
            assert {f.code for f in examine(flagged, ([1],))} == codes
