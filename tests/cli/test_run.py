"""`opentrn run`: arguments, targets, errors and exit statuses."""

import json

import numpy as np
import pytest

REFUSED = (
    "from opentrn.base import ShapeError\n\n\ndef kernel():\n"
    "    raise ShapeError('tile too big', code='sample.tile', rule='at most 128', fix='cut it')\n"
    "\n\nkernel()\n"
)


def test_arguments_reach_the_script(opentrn, script):
    path = script("import sys\nprint(sys.argv[1:], __name__)\n")
    result = opentrn("run", "--target", "trn1", path, "--help", "-m", "--target", "x", "--", "y")
    assert (result.status, result.err) == (0, "")
    assert result.out == "['--help', '-m', '--target', 'x', '--', 'y'] __main__\n"


def test_a_module_runs(opentrn, script):
    script("import sys\nprint(sys.argv[1:], __name__)\n", "part_of_user.py")
    result = opentrn("run", "-m", "part_of_user", "1", "-x")
    assert (result.status, result.out) == (0, "['1', '-x'] __main__\n")


def test_a_script_that_imports_nki_runs(opentrn, script):
    path = script("import nki, nki.language as nl, nki.isa as nisa\nprint(nki.__name__)\n")
    result = opentrn("run", path)
    assert (result.status, result.out, result.err) == (0, "opentrn.nki\n", "")


def test_a_refusal_is_five_lines_and_status_1(opentrn, script):
    result = opentrn("run", script(REFUSED))
    assert result.status == 1
    assert result.out == ""
    assert result.err.splitlines() == [
        "tile too big",
        "  at    script.py:5: raise ShapeError('tile too big', code='sample.tile', "
        "rule='at most 128', fix='cut it')",
        "  rule  at most 128",
        "  fix   cut it",
        "  more  opentrn explain sample.tile",
    ]


def test_a_refusal_as_json(opentrn, script):
    path = script(REFUSED)
    result = opentrn("run", "--json", path)
    assert result.status == 1
    told = json.loads(result.err)
    assert (told["code"], told["what"]) == ("sample.tile", "tile too big")
    assert (told["at"]["file"], told["at"]["line"]) == (str(path), 5)


def test_other_errors_keep_their_traceback(opentrn, script):
    path = script("def f():\n    return {}['k']\n\n\nf()\n")
    result = opentrn("run", path)
    assert result.status == 1
    lines = result.err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == f'  File "{path}", line 5, in <module>'
    assert lines[-2] == "KeyError: 'k'"
    assert "opentrn" not in "".join(lines[:-1]).replace(str(path), "")


def test_a_chain_of_errors_is_kept(opentrn, script):
    path = script("try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise ValueError('then')\n")
    result = opentrn("run", path)
    assert "ZeroDivisionError" in result.err
    assert result.err.splitlines()[-2] == "ValueError: then"


def test_a_syntax_error_is_shown_at_its_line(opentrn, script):
    result = opentrn("run", script("x = 1\ny = = 2\n"))
    assert result.status == 1
    assert "  at    script.py:2: y = = 2" in result.err.splitlines()
    assert "runpy" not in result.err


@pytest.mark.parametrize(("code", "status"), [("3", 3), ("0", 0), ("", 0), ("'words'", 1)])
def test_the_scripts_exit_status_is_the_commands(opentrn, script, code, status):
    assert opentrn("run", script(f"import sys\nsys.exit({code})\n")).status == status


def test_a_missing_script_is_refused_on_the_command_line(opentrn):
    result = opentrn("run", "absent.py", "x y")
    assert result.status == 2
    lines = result.err.splitlines()
    assert lines[0] == "cannot run absent.py: there is no such file"
    assert lines[1] == "  at    command line:1: opentrn run absent.py 'x y'"
    assert lines[-1] == "  more  opentrn explain dropin.script"
    assert len(lines) == 5


def test_an_unknown_target_is_refused_before_the_script_runs(opentrn, script):
    result = opentrn("run", "--target", "trn9", script("print('ran')\n"))
    assert (result.status, result.out) == (2, "")
    assert "trn9" in result.err.splitlines()[0]
    assert "opentrn run --target trn9" in result.err
    assert len(result.err.splitlines()) == 5


def test_a_usage_error_of_the_command_has_status_2(opentrn):
    assert opentrn("run").status == 2
    assert opentrn("run", "--nothing", "x.py").status == 2


@pytest.mark.parametrize(
    ("option", "platform", "before", "set_by_script", "expected"),
    [
        ("trn1", "trn3", "trn3", "trn3", 2),
        ("trn1", None, "trn3", None, 2),
        (None, "trn1", "trn3", None, 2),
        (None, None, "trn3", None, 4),
        (None, None, "trn3", "trn1", 2),
        (None, None, None, "gen4", 4),
        (None, None, None, None, 3),
    ],
)
def test_the_target_is_the_option_then_the_kernels_then_the_environments_then_trn2(
    opentrn, script, option, platform, before, set_by_script, expected
):
    text = "import os, nki, numpy as np, nki.isa as nisa\n"
    if set_by_script:
        text += f"os.environ['NEURON_PLATFORM_TARGET_OVERRIDE'] = {set_by_script!r}\n"
    text += f"@nki.jit({f'platform_target={platform!r}' if platform else ''})\n"
    text += "def k(x):\n    print(nisa.get_nc_version().value)\n    return x\n"
    text += "k(np.ones((1, 1), np.float32))\n"
    options = ["--target", option] if option else []
    env = {"NEURON_PLATFORM_TARGET_OVERRIDE": before}
    result = opentrn("run", *options, script(text), env=env)
    assert (result.status, result.out) == (0, f"{expected}\n")
    assert ("nki.migrate.jit" in result.err) == bool(platform)


@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_script_runs_as_written_for_an_older_nki(opentrn, script, by):
    path = script(
        "import nki, numpy as np, nki.isa as nisa, nki.language as nl\n"
        "@nki.jit\n"
        "def k(x):\n"
        "    out = nl.ndarray((2, 4), nl.float32, buffer=nl.shared_hbm)\n"
        "    tile = nl.ndarray((2, 4), nl.float32, buffer='sbuf')\n"
        "    nisa.dma_copy(tile, x)\n"
        "    nisa.dma_copy(out, tile)\n"
        "    return out\n"
        "print(k(np.ones((2, 4), np.float32)).sum())\n"
    )
    options = ["--nki", "0.2"] if by == "option" else []
    result = opentrn("run", *options, path, env={} if options else {"OPENTRN_NKI": "2.28"})
    assert (result.status, result.out) == (0, "8.0\n")
    assert "nki.migrate.ndarray" in result.err
    assert "tile = nl.ndarray((2, 4), nl.float32, buffer='sbuf')" in result.err
    refused = opentrn("run", path)
    assert refused.status == 1
    assert "opentrn explain nki.buffer" in refused.err
    assert opentrn("run", "--nki", "0.9", path).status != 0


@pytest.mark.parametrize(("before", "after"), [(None, "1"), ("0", "0")])
def test_scripts_that_ask_for_the_simulator_find_it(opentrn, script, before, after):
    path = script("import os\nprint(os.environ['NKI_SIMULATOR'])\n")
    assert opentrn("run", path, env={"NKI_SIMULATOR": before}).out == after + "\n"


KERNEL = """
import nki, numpy as np, nki.isa as nisa, nki.language as nl
@nki.jit
def k(x):
    logs = nl.ndarray(x.shape, nl.float32, name="logs")
    nisa.activation(dst=logs, op=nl.log, data=nl.load(x))
    low = nl.ndarray(x.shape, nl.bfloat16, name="low")
    nisa.tensor_copy(dst=low, src=logs)
    nl.store(x, low)
    return x
k(np.zeros((2, 3), np.float32))
"""


def test_the_line_where_infinities_begin_is_named(opentrn, script):
    told = opentrn("run", "--find-nan", script(KERNEL)).err
    assert "activation on scalar gives 6 infinite of 6 elements in `logs`" in told
    assert told.count("nki.nonfinite") == 1
    assert "nki.nonfinite" not in opentrn("run", script(KERNEL)).err


def test_tensors_are_saved_by_name(opentrn, script, tmp_path):
    result = opentrn("run", "--dump", "lo*", script(KERNEL))
    assert result.status == 0
    assert "wrote logs.npy: float32[2, 3]" in result.err
    for name in ("logs", "low"):
        held = np.load(tmp_path / f"{name}.npy")
        assert held.dtype == np.float32
        assert np.isneginf(held).all()


FAULTY = """\
import nki, numpy as np

def helper():
    raise ValueError("mine")

@nki.jit
def kernel(x):
    helper()

kernel(np.zeros((4, 4), np.float32))
"""


def test_errors_of_a_kernel_show_the_scripts_lines_only(opentrn, script):
    path = script(FAULTY)
    shown = opentrn("run", path, env={"OPENTRN_TRACEBACK": None}).err
    places = [line.strip() for line in shown.splitlines() if line.startswith("  File")]
    assert places == [
        f'File "{path}", line 10, in <module>',
        f'File "{path}", line 8, in kernel',
        f'File "{path}", line 4, in helper',
    ]
    assert shown.splitlines()[-2] == "ValueError: mine"
    full = opentrn("run", path, env={"OPENTRN_TRACEBACK": "full"}).err
    assert "launch.py" in full
    assert full.splitlines()[-2] == "ValueError: mine"


@pytest.mark.parametrize("version", ["0.1", "0.2", "0.6"])
def test_calls_that_do_not_fit_are_refused_at_their_line_in_every_version(opentrn, script, version):
    call = "nisa.memset(t, 1, value=2)"
    path = script(
        "import nki, nki.isa as nisa, nki.language as nl, numpy as np\n"
        "@nki.jit\ndef kernel(x):\n"
        "    t = nl.ndarray((4, 4), dtype=nl.float32, buffer=nl.sbuf)\n"
        f"    {call}\n"
        "kernel(np.zeros((4, 4), np.float32))\n"
    )
    told = opentrn("run", "--nki", version, path)
    assert told.status == 1
    assert told.err.splitlines()[1] == f"  at    script.py:5: {call}"
    unknown = script(path.read_text().replace("value=2", "wibble=2"))
    told = opentrn("run", "--nki", version, unknown)
    if version == "0.1":  # which ignored keywords it did not know
        assert "`wibble` is no parameter, and is ignored" in told.err
    else:
        assert told.err.startswith(f"memset has no parameter `wibble` in NKI {version}\n")
