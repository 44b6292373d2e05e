"""One rule for the exit status of every command: 0 done, 1 refused, 2 a wrong command line."""

import json

import numpy as np
import pytest

from opentrn.cli import main

KERNEL = """
import nki, numpy as np, nki.isa as nisa, nki.language as nl

@nki.jit
def good(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x))
    return out

@nki.jit
def wide(x):
    return nl.ndarray((256, 4), nl.float32, buffer=nl.sbuf)

"""
GOOD = KERNEL + "if __name__ == '__main__': good(np.ones((4, 4), np.float32))\n"
FILES = {
    "good.py": GOOD,
    "wide.py": KERNEL + "if __name__ == '__main__': wide(np.ones((4, 4), np.float32))\n",
    "noise.py": "x = = 1\n",
    "raises.py": "raise KeyError('k')\n",
    "table.csv": "program,latency\ngood.py,3 GB\n",
    "config.json": '{"model_type": "llama"}',
    "mlp.mlir": "module { broken",
    "trace.csv": "arrival,prompt,answer\n1,2\n",
    "model.py": "import torch\ndef build(): return torch.nn.Linear(8, 4), (torch.ones(2, 8),)\n"
                "class Odd(torch.nn.Module):\n"
                "    def forward(self, x): return torch.linalg.eigvalsh(x)\n"
                "def odd(): return Odd(), (torch.eye(4),)\n",
}  # fmt: skip

# command: (arguments it refuses, arguments that are no command line); None where nothing can be.
ENDS = {
    "run": (["wide.py"], ["nowhere.py"]),
    "check": (["wide.py", "--arg", "x=float32[4,4]"], ["good.py", "--arg", "x=float32[0,4]"]),
    "compile": (["model.py:odd"], ["model.py:nothing"]),
    "analyze": (["model.py:odd"], ["model.py"]),
    "diff": (["model.py:odd"], ["nowhere.py:build"]),
    "profile": (["wide.py"], ["good.py", "--set", "trn2.hbm_bandwidth=4apples"]),
    "calibrate": (["table.csv"], ["table.csv", "--target", "trn9"]),
    "plan": (["config.json"], ["llama-3.1-8b", "--batch", "0"]),
    "compare": (["--job", "config.json", "trn2"], ["--job", "llama-9", "trn2"]),
    "simulate": (["llama-3.1-8b", "--serve", "--trace", "trace.csv"],
                 ["llama-3.1-8b", "--set", "4apples", "--time", "1d"]),
    "nccom-test": (None, ["allr", "-r", "4", "-n", "-1"]),
    "claims": (None, ["B01"]),
    "show": (None, ["trn9"]),
    "explain": (None, ["nki.nothing"]),
    "doctor": (None, ["--nothing"]),
}  # fmt: skip


def five(text):
    """The lines of a refusal, by their words."""
    lines = text.rstrip("\n").splitlines()
    assert [line[:6] for line in lines[1:]] == ["  at  ", "  rule", "  fix ", "  more"], text
    return lines


@pytest.fixture
def files(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)


def test_the_table_has_every_command():
    assert set(ENDS) == set(main.commands)


@pytest.mark.parametrize("command", ENDS)
def test_a_wrong_command_line_ends_with_2_in_five_lines(opentrn, files, command):
    result = opentrn(command, *ENDS[command][1])
    assert result.status == 2, result
    assert five(result.err)[1].startswith(f"  at    command line:1: opentrn {command} ")


@pytest.mark.parametrize("command", [name for name, (refused, _) in ENDS.items() if refused])
def test_what_is_refused_ends_with_1(opentrn, files, command):
    if "model.py:odd" in ENDS[command][0]:
        pytest.importorskip("torch", reason="the extra `torch` is not installed")
    result = opentrn(command, *ENDS[command][0])
    assert result.status == 1, result
    assert "Traceback" not in result.err
    if command not in ("check", "analyze"):  # which report on standard output
        five(result.err)


@pytest.mark.parametrize("command", sorted(set(ENDS) - {"profile"}))  # which passes it on
def test_an_unknown_option_is_told_in_five_lines(opentrn, command):
    result = opentrn(command, "--wibble")
    assert result.status == 2
    lines = five(result.err)
    assert lines[1] == f"  at    command line:1: opentrn {command} --wibble"
    assert "--help" in lines[3]


def test_an_unknown_command_or_option_before_it(opentrn):
    assert five(opentrn("dance").err)[0] == "no such command 'dance'"
    assert five(opentrn("--wibble", "show").err)[0] == "no such option '--wibble'"


@pytest.mark.parametrize("arguments", [
    ("run", "no.py"), ("check", "no.py"), ("compile", "no.py:build"), ("compile", "no.onnx"),
    ("analyze", "no.mlir"), ("diff", "no.py:build"), ("profile", "no.py"), ("profile", "no.trn"),
    ("calibrate", "no.csv"), ("plan", "no.json"), ("compare", "--job", "no.json", "trn2"),
    ("simulate", "no.json", "--time", "1d"),
], ids=" ".join)  # fmt: skip
def test_a_file_that_is_not_there_is_a_wrong_command_line(opentrn, arguments):
    result = opentrn(*arguments)
    assert result.status == 2
    lines = five(result.err)
    assert lines[1].startswith("  at    command line:1: opentrn ")
    assert not lines[2].startswith("  rule  `opentrn ")  # of another command


def test_a_value_that_is_none_is_told_with_what_the_option_is_for(opentrn):
    lines = five(opentrn("simulate", "llama-3.1-8b", "--set", "4apples", "--time", "1d").err)
    assert lines[0] == "invalid value for --set: '4apples' is not NAME=NUMBER"
    assert lines[2].startswith("  rule  --set: Seconds: detect, replace,")


def test_a_missing_argument_as_json(opentrn):
    result = opentrn("compile", "--json")
    assert result.status == 2
    told = json.loads(result.err)
    assert (told["kind"], told["code"]) == ("UsageError", "cli.usage")
    assert told["at"]["text"] == "opentrn compile --json"


def test_a_refusal_of_a_call_in_a_kernel_is_no_wrong_command_line(opentrn, script):
    path = script(GOOD.replace("nl.load(x))", "nl.load(x, wibble=1))"))
    result = opentrn("run", path)
    assert result.status == 1
    assert five(result.err)[1].startswith("  at    script.py:")


# --------------------------------------------------------------------- where results would go

OUTPUTS = [
    ("compile", "slow.py:build", "-o"), ("profile", "slow.py", "--report"),
    ("profile", "slow.py", "--out"), ("profile", "slow.py", "--format", "csv", "-o"),
    ("plan", "slow.json", "--page"), ("compare", "--job", "slow.json", "trn2", "--page"),
    ("simulate", "slow.json", "--page"),
]  # fmt: skip


@pytest.mark.parametrize("arguments", OUTPUTS, ids=" ".join)
@pytest.mark.parametrize("place", ["no/a.html", "file/a", "slow.py"])
def test_where_results_go_is_tried_before_any_work(opentrn, script, tmp_path, arguments, place):
    """The job itself is wrong: were it looked at first, its refusal would be told."""
    script("print('ran')\nraise SystemExit(5)\n", "slow.py")
    script("{}", "slow.json")
    script("", "file")
    before = sorted(path.name for path in tmp_path.iterdir())
    if arguments[-1] == "--out" and place == "no/a.html":
        return  # directories are made
    result = opentrn(*arguments, place)
    assert result.status == 2, result
    assert "opentrn explain base." in five(result.err)[-1]
    assert "ran" not in result.out
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_device_is_not_replaced(opentrn, script):
    script(GOOD, "good.py")
    result = opentrn("profile", "good.py", "--format", "csv", "-o", "/dev/null")
    assert (result.status, "it is a device" in result.err) == (2, True)


def test_an_output_without_a_format_is_refused(opentrn, script):
    result = opentrn("profile", script(GOOD), "-o", "x.csv")
    assert result.status == 2
    assert "none is given" in five(result.err)[0]


# ------------------------------------------------------------------------- files of users


@pytest.mark.parametrize("command", ["run", "check", "profile", "compile"])
@pytest.mark.parametrize(
    ("content", "line"),
    [(b"x = 1\ny = = 2\n", 2), (bytes(range(256)), 1), (b"x = 1\n\0", 1), (b"s = '\xff'\n", 1)],
)
def test_a_file_that_is_no_python_is_refused_in_five_lines(opentrn, tmp_path, command, content,
                                                           line):  # fmt: skip
    (tmp_path / "noise.py").write_bytes(content)
    result = opentrn(command, "noise.py:build" if command == "compile" else "noise.py")
    assert result.status == 1
    lines = five(result.err)
    assert lines[0].startswith("noise.py is no Python: ")
    assert lines[1].startswith(f"  at    noise.py:{line}")
    assert lines[4] == "  more  opentrn explain dropin.python"


@pytest.mark.parametrize("command", ["run", "check", "profile", "compile"])
@pytest.mark.parametrize(
    ("text", "last"),
    [("x = {}\nx['k']\n", "KeyError: 'k'"), ("import noise\n", "SyntaxError: invalid syntax"),
     ("compile('x = =', 'made', 'exec')\n", "SyntaxError: invalid syntax"),
     ("raise ValueError('source code string cannot contain null bytes')\n",
      "ValueError: source code string cannot contain null bytes")],
)  # fmt: skip
def test_what_a_script_raises_keeps_pythons_text_and_is_closed(opentrn, script, command, text,
                                                               last):  # fmt: skip
    script("x = = 1\n", "noise.py")
    script(text, "mine.py")
    result = opentrn(command, "mine.py:build" if command == "compile" else "mine.py")
    assert result.status == 1
    lines = result.err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "mine.py" in lines[1]
    assert lines[-2] == last
    kind = last.partition(":")[0]
    assert lines[-1].startswith(f"opentrn: the script's own {kind}; ")
    assert lines[-1].endswith("(exit status 1)")
    assert "site-packages" not in result.err


def test_a_fault_of_ours_is_not_called_the_scripts(opentrn, script):
    path = script(
        "from opentrn.base import units\n"
        "units.UNITS = None\n"
        "units.parse('3 GB')\n"
    )  # fmt: skip
    result = opentrn("run", path)
    assert result.status == 1
    assert result.err.splitlines()[-1].startswith("opentrn: AttributeError inside OpenTrn")


PACKAGES = "/env/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("files", "ours"),
    [
        (["mine/script.py"], False),
        (["mine/script.py", f"{PACKAGES}/opentrn/base/units.py"], True),
        (["mine/script.py", f"{PACKAGES}/opentrn/a.py", f"{PACKAGES}/numpy/b.py"], True),
        (["mine/script.py", f"{PACKAGES}/numpy/b.py"], False),
        ([f"{PACKAGES}/opentrn/nki/jit.py", "mine/kernel.py"], False),
    ],
)
def test_whose_a_fault_is_where_this_package_is_one_of_those_installed(files, ours, monkeypatch):
    """`files` are those of the frames, the outermost first."""
    from opentrn.commands import ending

    monkeypatch.setattr(ending, "_PACKAGE", f"{PACKAGES}/opentrn/")
    steps = [compile("1 / 0" if n == len(files) - 1 else "exec(steps.pop(0))", file, "exec")
             for n, file in enumerate(files)]  # fmt: skip
    with pytest.raises(ZeroDivisionError) as caught:
        exec(steps.pop(0), {"steps": steps})
    error = caught.value
    assert ending._is_ours(error.with_traceback(error.__traceback__.tb_next)) is ours


# ---------------------------------------------------------------------------------------- run


def test_options_after_the_script_are_said_to_go_to_it(opentrn, script):
    path = script("import sys\nprint(sys.argv[1:])\n")
    result = opentrn("run", path, "--target", "trn1")
    assert (result.status, result.out) == (0, "['--target', 'trn1']\n")
    assert f"note: --target stands after {path}" in result.err
    assert f"note: --numerics stands after {path}" in opentrn("run", path, "--numerics=fast").err
    assert opentrn("run", "--numerics", "fast", path, "--numerics", "x").err == ""
    assert opentrn("run", "--target", "trn1", path, "--target", "x").err == ""
    own = script("import argparse\np = argparse.ArgumentParser()\np.add_argument('--target')\n"
                 "print(p.parse_args().target)\n", "own.py")  # fmt: skip
    assert opentrn("run", own, "--target", "trn1") == (0, "trn1\n", "")


def test_a_dump_of_nothing_is_said(opentrn, script, tmp_path):
    result = opentrn("run", "--dump", "zz*", "--dump", "x", script(GOOD.replace(
        "if __name__ == '__main__': ", "")))  # fmt: skip
    assert result.status == 0
    assert "note: --dump zz*: no kernel wrote a tensor of that name" in result.err
    assert "--dump x:" not in result.err
    assert np.load(tmp_path / "x.npy").shape == (4, 4)
