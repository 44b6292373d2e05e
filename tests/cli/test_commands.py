"""`opentrn` itself, `show`, `explain` and `doctor`."""

import json
import subprocess
import sys
import time

import click
import pytest

import opentrn as package
from opentrn.cli import main
from opentrn.commands.doctor import EXTRAS
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
    assert (result.status, result.out) == (2, "")
    assert "trn9" in result.err.splitlines()[0]
    assert "  at    command line:1: opentrn show trn9" in result.err.splitlines()


def test_explain_a_declared_code(opentrn):
    result = opentrn("explain", "dropin.script")
    assert result.status == 0
    lines = result.out.splitlines()
    assert lines[0] == "dropin.script"
    assert lines[1] == "  The script to run does not exist, or is not a file."
    assert lines[2].startswith("  rule  a script is a Python file")
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
    lines = result.out.splitlines()
    assert lines[0] == "NCC_EVRF051"
    assert "exists from trn3 on" in lines[1]
    assert "  here  isa.fp8_format" in lines
    assert "isa.fp8_format  (NCC_EVRF051)" in lines


@pytest.mark.parametrize("word", ["NRT_EXEC_OOB", "1006", "NRT_OOB", "NRT_EXEC_OOB 1006"])
def test_explain_a_status_of_the_runtime(opentrn, word):
    result = opentrn("explain", word)
    assert result.status == 0
    assert result.out.startswith("NRT_EXEC_OOB  (1006)\n")
    assert "sim.dynamic_bounds" in result.out


def test_explain_a_neuron_code_that_nothing_here_refuses(opentrn):
    (told,) = json.loads(opentrn("explain", "NRT_EXEC_UNIT_UNRECOVERABLE", "--json").out)
    assert (told["neuron"], told["ours"]) == ("NRT_EXEC_UNIT_UNRECOVERABLE 101", [])
    assert "every later call fails" in told["meaning"]
    assert "nrt_status.h" in told["source"]


def test_explain_an_instruction_lists_its_codes(opentrn):
    listed = {line.split()[0] for line in opentrn("explain", "nc_matmul").out.splitlines()}
    assert {"nc_matmul.N", "nc_matmul.moving", "nc_matmul.moving.dtype"} <= listed
    assert all(code.startswith("nc_matmul.") for code in listed)


def test_explain_knows_every_neuron_code_in_the_sources():
    import re

    from opentrn.commands.neuron_codes import named, neuron_codes

    known = neuron_codes()
    used = {}
    for file in rules.package_files():
        for code in re.findall(r"\bN(?:CC|RT)_[A-Z0-9_]{4,}\b", file.read_text(encoding="utf-8")):
            used[code] = file.name
    assert {"NCC_EMOD025", "NCC_EVRF035", "NRT_RESOURCE"} <= set(used)
    assert {code: file for code, file in used.items() if named(code) not in known} == {}
    searched = "EOOM001 EOOM002 EVRF009 EBVF030 EVRF007 EVRF001 EVRF005 EARG001 EVRF013 EBIR023"
    assert {named(code) for code in searched.split()} <= set(known)
    numbers = [1, 2, 3, 4, 5, 6, 7, 9, 10, 13, 14, 101, *range(1002, 1007), *range(1200, 1207)]
    assert {named(str(number)) for number in numbers} <= set(known)


def test_what_neuron_codes_point_to_is_there():
    from opentrn import base, isa
    from opentrn.commands.neuron_codes import neuron_codes
    from tests.house.test_definitions import import_everything

    import_everything()
    for found in neuron_codes().values():
        assert found.meaning.endswith(".")
        for ours in found.ours:
            assert base.explanation(ours) or isa.explain(ours), (found.code, ours)


def test_explain_without_a_code_lists_them(opentrn):
    result = opentrn("explain")
    listed = [line.split()[0] for line in result.out.splitlines()]
    assert result.status == 0
    neuron = [code for code in listed if code.isupper()]
    assert listed == [*sorted(set(listed) - set(neuron)), *neuron]
    assert {"dropin.script", "cli.code", "base.dtype", "NCC_EOOM001", "NRT_TIMEOUT"} <= set(listed)


def test_explain_lists_every_code_that_any_module_declares():
    from opentrn import base
    from opentrn.commands.explain import _declared
    from tests.house.test_definitions import import_everything

    import_everything()
    assert set(_declared(None)) == set(base.codes())


def test_the_codes_of_frameworks_are_read_and_not_imported():
    code = (
        "import sys\nfrom opentrn.commands.explain import _declared\n"
        "found = _declared(None)['frameworks.leaf']\n"
        "print('torch' in sys.modules, 'jax' in sys.modules, found.meaning)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    from opentrn import base
    from opentrn.frameworks.torch import nesting

    meaning = base.explanation(nesting.LEAF).meaning
    assert done.stdout == f"False False {meaning}\n"


def test_explain_refuses_an_unknown_code_with_the_nearest(opentrn):
    result = opentrn("explain", "dropin.scrpt")
    assert result.status == 2
    lines = result.err.splitlines()
    assert lines[0].startswith("there is no error code dropin.scrpt; did you mean dropin.script")
    assert lines[1] == "  at    command line:1: opentrn explain dropin.scrpt"
    assert lines[-1] == "  more  opentrn explain cli.code"
    assert opentrn("explain", "NCC_NOTHING").status == 2


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


def test_variables_of_the_sdk_that_mean_nothing_are_named(opentrn, script):
    script("print('ran')")
    told = {"NEURON_CC_FLAGS": "-O1", "NEURON_RT_NUM_CORES": "2", "NKI_PRECISE_FP": "1"}
    result = opentrn("run", "script.py", env=told)
    assert (result.status, result.out) == (0, "ran\n")
    assert "note: NEURON_CC_FLAGS, NEURON_RT_NUM_CORES mean nothing here" in result.err
    report = json.loads(opentrn("doctor", "--json", env=told).out)
    assert report["ignored_variables"] == ["NEURON_CC_FLAGS", "NEURON_RT_NUM_CORES"]
    assert "NKI_PRECISE_FP" in report["variables"]
    assert opentrn("run", "script.py").err == ""


def test_doctor_knows_exactly_the_projects_extras(opentrn):
    assert set(EXTRAS) == set(rules.project()["optional-dependencies"])
    text = opentrn("doctor").out
    for name in EXTRAS:
        assert f"\n  {name} " in text


def test_doctor_reports_a_missing_requirement(monkeypatch):
    from click.testing import CliRunner

    doctor = sys.modules["opentrn.commands.doctor"]  # the package has the command of this name
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "rich" else real(name))
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 1
    assert "rich is missing: pip install rich" in result.output


def test_a_bug_is_not_dressed_as_a_refusal(monkeypatch):
    from click.testing import CliRunner

    def broken():
        raise KeyError("ours")

    monkeypatch.setattr(sys.modules["opentrn.commands.doctor"], "examine", broken)
    result = CliRunner().invoke(main, ["doctor"])
    assert isinstance(result.exception, KeyError)


def test_a_usage_error_of_a_room_has_status_2():
    from click.testing import CliRunner

    from opentrn.base import UsageError
    from opentrn.commands.ending import Command, command_line

    def body():
        raise UsageError("cannot mean anything", code="sample.usage", at=command_line())

    group = click.Group(commands={"x": Command("x", callback=body)})
    result = CliRunner().invoke(group, ["x"])
    assert result.exit_code == 2
    assert result.output.startswith("cannot mean anything\n")
