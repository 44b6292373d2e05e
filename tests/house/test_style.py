"""Sizes, names, lint: the limits are enforced, and the tools that enforce them are switched on."""

import subprocess
import sys

import pytest

from tests.house import rules


def ruff(*arguments, text=None):
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=concise"]
    return subprocess.run(
        [*command, *arguments], cwd=rules.ROOT, input=text, capture_output=True, text=True
    )


def test_files_and_functions_keep_their_size():
    assert rules.size_findings(rules.python_files()) == []


def test_nothing_is_called_utils():
    assert rules.name_findings(rules.python_files()) == []


def test_ruff_finds_nothing():
    result = ruff(*map(str, rules.python_files()))
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_environment_is_read_on_the_roof_only():
    assert rules.environment_findings() == []


def test_only_numerics_rounds():
    assert rules.rounding_findings() == []


def test_long_files_and_functions_are_found(sample):
    body = "def f():\n" + "    x = 1\n" * 60
    root = sample({"a.py": "x = 1\n" * 601, "b.py": body, "c.py": "x = 1\n" * 600})
    assert rules.size_findings(sorted(root.glob("*.py")), root) == [
        "a.py: 601 lines, at most 600",
        "b.py:1: f has 61 lines, at most 60",
    ]


def test_drawers_without_a_word_are_found(sample):
    root = sample({"sim/utils.py": "", "common/a.py": "", "nki/core_barrier.py": ""})
    assert sorted(rules.name_findings(sorted(root.rglob("*.py")), root)) == [
        "common/a: nothing is called common here",
        "sim/utils: nothing is called utils here",
    ]


BRANCHES = '"""M."""\n\n\ndef f(x):\n    """F."""\n' + "".join(
    f"    if x == {n}:\n        x += 1\n" for n in range(10)
)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("C901", BRANCHES),
        ("S101", '"""M."""\n\n\ndef _f(x):\n    assert x\n'),
        ("D103", '"""M."""\n\n\ndef f(x):\n    return x\n'),
        ("D100", "x = 1\n"),
        ("F403", '"""M."""\n\nfrom numpy import *\n'),
        ("E722", '"""M."""\n\ntry:\n    x = 1\nexcept:\n    x = 2\n'),
        ("E702", '"""M."""\n\nx = 1; y = 2\n'),
        ("E501", '"""M."""\n\nx = "' + "x" * 100 + '"\n'),
        ("TID252", '"""M."""\n\nfrom . import errors\n'),
    ],
)
def test_the_linter_is_alive(rule, text):
    result = ruff("--stdin-filename", "opentrn/base/sample.py", "-", text=text)
    assert result.returncode == 1
    assert f" {rule} " in result.stdout


def test_nine_branches_are_within_the_limit():
    text = BRANCHES.rsplit("    if", 1)[0]
    assert ruff("--stdin-filename", "opentrn/base/sample.py", "-", text=text).returncode == 0


def test_environment_reads_are_found(sample):
    package = sample(
        {
            "sim/a.py": "import os\nx = os.environ['A']\n",
            "sim/b.py": "from os import path\nimport os\ny = os.getenv('A')\n",
            "nki/target.py": "import os\nx = os.environ.get('A')\n",
        }
    )
    assert rules.environment_findings(package) == [
        "opentrn/sim/a.py:2: reads the environment",
        "opentrn/sim/b.py:3: reads the environment",
    ]


def test_rounding_elsewhere_is_found(sample):
    package = sample(
        {
            "base/numerics.py": "import ml_dtypes\n",
            "sim/a.py": "import ml_dtypes\n",
            "sim/b.py": "import numpy as np\nx = np.float16(1)\ny = x.astype(np.float16)\n",
            "sim/c.py": "import numpy as np\nx = np.zeros(3).astype(np.float32)\n",
        }
    )
    assert rules.rounding_findings(package) == [
        "opentrn/sim/a.py:1: rounds; base.numerics does",
        "opentrn/sim/b.py:2: rounds; base.numerics does",
        "opentrn/sim/b.py:3: rounds; base.numerics does",
    ]
