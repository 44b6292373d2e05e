"""The bar that commands show while they think."""

import io
import sys
import time

import pytest

from opentrn.commands.waiting import waiting


def console(terminal):
    rich = pytest.importorskip("rich.console", reason="rich is not installed")
    return rich.Console(file=io.StringIO(), force_terminal=terminal, width=80)


def test_a_bar_is_shown_only_after_a_while_and_taken_away():
    shown = console(True)
    with waiting("planning", shown, patience=0.05):
        assert shown.file.getvalue() == ""
        time.sleep(0.6)
        assert "planning" in shown.file.getvalue()
    assert shown.file.getvalue().endswith("\x1b[1A\x1b[2K")  # the line is erased
    after = shown.file.getvalue()
    time.sleep(0.2)
    assert shown.file.getvalue() == after


def test_nothing_is_shown_for_short_work_or_where_there_is_no_terminal():
    quick, piped = console(True), console(False)
    with waiting("planning", quick, patience=0.3):
        pass
    time.sleep(0.5)
    assert quick.file.getvalue() == ""
    with waiting("planning", piped, patience=0.0):
        time.sleep(0.3)
    assert "planning" not in piped.file.getvalue()


def test_errors_and_standard_output_pass_through(capsys):
    def fail():
        with waiting("planning", console(True), patience=0.0):
            time.sleep(0.2)
            print("kept", file=sys.stdout)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert capsys.readouterr().out == "kept\n"
