"""A script sees what `python script.py` would show it, plus the names."""

import os
import sys

import pytest

from opentrn.base import FileFormatError, MissingFileError, TrnError, hide_frames
from opentrn.dropin import run_script


@pytest.fixture
def script(tmp_path):
    def write(text, name="script.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


@pytest.fixture(autouse=True)
def same_state_after():
    before = sys.argv, sys.path[:], sys.modules["__main__"], os.getcwd()
    yield
    assert (sys.argv, sys.path, sys.modules["__main__"], os.getcwd()) == before


def test_arguments_path_and_name(script):
    script("VALUE = 7\n", "neighbour.py")
    path = script(
        "import sys\nimport neighbour\nargs, first, name = sys.argv, sys.path[0], __name__\n"
        "value, file = neighbour.VALUE, __file__\n"
        "main = sys.modules['__main__'].__dict__ is globals()\n"
    )
    seen = run_script(path, ["-m", "--help", "x y"])
    sys.modules.pop("neighbour")
    assert seen["args"] == [path, "-m", "--help", "x y"]
    assert seen["first"] == os.path.dirname(path)
    assert (seen["name"], seen["value"], seen["file"], seen["main"]) == ("__main__", 7, path, True)


def test_the_names_are_installed(script):
    import opentrn.nki

    path = script("import nki, nki.language as nl, nki.isa as nisa\n")
    seen = run_script(path, target="trn2")
    assert seen["nki"] is opentrn.nki
    assert seen["nl"] is opentrn.nki.language
    assert seen["nisa"] is opentrn.nki.isa


def test_a_module_runs_from_the_current_directory(script, tmp_path, monkeypatch):
    script("", "package_of_test/__init__.py")
    script("import sys\nargs, name = sys.argv[1:], __name__\n", "package_of_test/part.py")
    monkeypatch.chdir(tmp_path)
    seen = run_script("package_of_test.part", ["1"], module=True)
    sys.modules.pop("package_of_test")
    assert (seen["args"], seen["name"]) == (["1"], "__main__")


@pytest.mark.parametrize("status", [0, 3, "words"])
def test_exit_goes_through(script, status):
    with pytest.raises(SystemExit) as caught:
        run_script(script(f"import sys\nsys.exit({status!r})\n"))
    assert caught.value.code == status


def test_errors_go_through_with_the_scripts_own_traceback(script):
    path = script("def f():\n    raise KeyError('k')\n\n\nf()\n")
    with pytest.raises(KeyError) as caught:
        run_script(path)
    hide_frames(caught.value.with_traceback(caught.value.__traceback__.tb_next))
    trace = caught.value.__traceback__
    lines = []
    while trace is not None:
        lines.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    assert lines == [(path, 5), (path, 2)]


def test_a_file_that_is_no_python_is_refused_at_its_line(script):
    path = script("x = 1\nx = = 1\n")
    with pytest.raises(FileFormatError, match="is no Python: invalid syntax") as caught:
        run_script(path)
    assert (caught.value.at.file, caught.value.at.line) == (path, 2)
    assert caught.value.code == "dropin.python"


def test_a_syntax_error_that_a_script_raises_goes_through(script):
    with pytest.raises(SyntaxError) as caught:
        run_script(script("compile('x = =', 'made', 'exec')\n"))
    assert caught.value.filename == "made"


def test_missing_scripts_directories_and_modules_are_refused(tmp_path):
    with pytest.raises(MissingFileError, match="no such file") as caught:
        run_script(str(tmp_path / "absent.py"))
    assert caught.value.code == "dropin.script"
    with pytest.raises(FileNotFoundError, match="directory"):
        run_script(str(tmp_path))
    for name in ("absent_module", "absent_package.part", "json.absent"):
        with pytest.raises(MissingFileError) as caught:
            run_script(name, module=True)
        assert caught.value.code == "dropin.module"


def test_a_failing_import_inside_a_module_is_not_taken_for_a_missing_module(
    script, tmp_path, monkeypatch
):
    script("import absent_of_package\n", "package_with_fault/__init__.py")
    script("", "package_with_fault/part.py")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModuleNotFoundError) as caught:
        run_script("package_with_fault.part", module=True)
    assert caught.value.name == "absent_of_package"


def test_an_unknown_target_runs_nothing(script, tmp_path):
    path = script(f"open({str(tmp_path / 'mark')!r}, 'w').close()\n")
    with pytest.raises(TrnError):
        run_script(path, target="trn9")
    assert not (tmp_path / "mark").exists()
