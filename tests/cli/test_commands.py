"""`opentrn` itself, `show`, `explain` and `doctor`."""

import json
import subprocess
import sys
import time

import click
import pytest

import opentrn as package
from opentrn.cli import EXTRAS, main
from tests.house import rules


def seconds(*arguments):
    """The shortest of three runs: the others measure the machine."""
    took = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        took.append(time.perf_counter() - start)
    return min(took)


def test_help_and_import_are_quick():
    limit = 3 * 0.5  # the promise is half a second on an idle machine; this one may be busy
    assert seconds("-m", "opentrn", "--help") < limit
    assert seconds("-c", "import opentrn") < limit


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom opentrn.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'numpy', 'ml_dtypes', 'rich', 'torch'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_command_is_listed_with_its_help(opentrn):
    text = opentrn("--help").out
    for name, command in main.commands.items():
        assert f"  {name} " in text
        assert command.help
    assert opentrn("--version").out.split()[-1] == package.__version__


def test_an_unknown_command_has_status_2(opentrn):
    result = opentrn("dance")
    assert result.status == 2
    assert "dance" in result.err


@pytest.mark.parametrize("name", ["trn1", "trn2", "trn3", "inf2", "trn2.48xlarge"])
def test_show_gives_a_page(opentrn, name):
    result = opentrn("show", name)
    assert (result.status, result.err) == (0, "")
    assert name in result.out
    assert any(unit in result.out for unit in ("GiB", "GB", "MiB"))


def test_show_without_a_name_lists_the_machines(opentrn):
    result = opentrn("show")
    assert result.status == 0
    assert {"trn1", "trn2", "trn3", "inf2"} <= set(result.out.replace(",", " ").split())


def test_show_refuses_an_unknown_name(opentrn):
    result = opentrn("show", "trn9")
    assert (result.status, result.out) == (1, "")
    assert "trn9" in result.err.splitlines()[0]
    assert "  at    command line:1: opentrn show trn9" in result.err.splitlines()


def test_explain_a_declared_code(opentrn):
    result = opentrn("explain", "dropin.script")
    assert result.status == 0
    lines = result.out.splitlines()
    assert lines[0] == "dropin.script"
    assert lines[1] == "  The script to run does not exist, or is not a file."
    assert lines[2].startswith("  rule  `opentrn run` takes a Python file")
    assert lines[3].startswith("  fix   check the path")
    told = json.loads(opentrn("explain", "--json", "dropin.script").out)
    assert [each["code"] for each in told] == ["dropin.script"]


def test_explain_a_limit_of_an_instruction(opentrn):
    result = opentrn("explain", "nc_matmul.N")
    assert result.status == 0
    assert "PSUM" in result.out


def test_explain_a_code_of_the_neuron_tools(opentrn):
    result = opentrn("explain", "NCC_EVRF051")
    assert result.status == 0
    assert "isa.fp8_format  (NCC_EVRF051)" in result.out.splitlines()


def test_explain_without_a_code_lists_them(opentrn):
    result = opentrn("explain")
    listed = [line.split()[0] for line in result.out.splitlines()]
    assert result.status == 0
    assert listed == sorted(listed)
    assert {"dropin.script", "cli.code", "base.dtype"} <= set(listed)


def test_explain_refuses_an_unknown_code_with_the_nearest(opentrn):
    result = opentrn("explain", "dropin.scrpt")
    assert result.status == 1
    lines = result.err.splitlines()
    assert lines[0].startswith("there is no error code dropin.scrpt; did you mean dropin.script")
    assert lines[1] == "  at    command line:1: opentrn explain dropin.scrpt"
    assert lines[-1] == "  more  opentrn explain cli.code"
    assert opentrn("explain", "NCC_NOTHING").status == 1


def test_doctor_tells_versions_and_extras(opentrn):
    report = json.loads(opentrn("doctor", "--json").out)
    import numpy

    assert report["opentrn"] == package.__version__
    assert report["core"]["numpy"] == numpy.__version__
    assert set(report["core"]) == rules.CORE_PACKAGES
    assert report["memory_bytes"] > 2**28
    assert report["disk_free_bytes"] > 0
    assert report["cores"] >= 1
    assert report["extras"]["test"]["packages"]["pytest"] == pytest.__version__


def test_doctor_tells_the_blas_threads(opentrn):
    told = {"OPENBLAS_NUM_THREADS": "3", "MKL_NUM_THREADS": None, "OMP_NUM_THREADS": "5"}
    assert json.loads(opentrn("doctor", "--json", env=told).out)["blas"]["threads"] == 3
    assert "3 threads" in opentrn("doctor", env=told).out
    told["OPENBLAS_NUM_THREADS"] = told["OMP_NUM_THREADS"] = None
    assert json.loads(opentrn("doctor", "--json", env=told).out)["blas"]["threads"] is None


def test_doctor_knows_exactly_the_projects_extras(opentrn):
    assert set(EXTRAS) == set(rules.project()["optional-dependencies"])
    text = opentrn("doctor").out
    for name in EXTRAS:
        assert f"\n  {name} " in text


def test_doctor_reports_a_missing_requirement(monkeypatch):
    from click.testing import CliRunner

    from opentrn import cli

    real = cli._version
    monkeypatch.setattr(cli, "_version", lambda name: None if name == "rich" else real(name))
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 1
    assert "rich is missing: pip install rich" in result.output


def test_a_bug_is_not_dressed_as_a_refusal(monkeypatch):
    from click.testing import CliRunner

    from opentrn import cli

    def broken():
        raise KeyError("ours")

    monkeypatch.setattr(cli, "examine", broken)
    result = CliRunner().invoke(main, ["doctor"])
    assert isinstance(result.exception, KeyError)


def test_a_usage_error_of_a_room_has_status_2():
    from click.testing import CliRunner

    from opentrn.base import UsageError
    from opentrn.cli import _Command

    def body():
        raise UsageError("cannot mean anything", code="sample.usage")

    group = click.Group(commands={"x": _Command("x", callback=body)})
    result = CliRunner().invoke(group, ["x"])
    assert result.exit_code == 2
    assert result.output.startswith("cannot mean anything\n")
