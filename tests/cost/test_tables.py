"""Tables of text: aligned, whole in a file, folded on a narrow terminal and never cut."""

import re

from opentrn.cost import table_text
from opentrn.cost import tables as module

HEAD = ("machine", "split", "time")
ROWS = [("trn1.32xlarge", "TP4 DP32 ZeRO-1 [bold] micro-batch 1", 1.5), ("p5", "TP8", 22.0)]


def test_columns_are_aligned_and_markup_is_text():
    lines = table_text(HEAD, ROWS, left=(0, 1)).splitlines()
    assert len(lines) == 4  # head, rule, two rows
    assert "[bold]" in lines[2]
    ends = {len(line) for line in (lines[0], *lines[2:])}
    assert len(ends) == 1  # numbers end in one column
    assert lines[2].index("TP4") == lines[3].index("TP8")


def test_a_narrow_terminal_folds_words_and_cuts_none(monkeypatch):
    monkeypatch.setattr(module.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    lines = table_text(HEAD, ROWS, left=(0, 1)).splitlines()
    assert max(map(len, lines)) <= 40
    assert "…" not in "".join(lines)
    assert "trn1.32xlarge" in lines[2]
    said = re.sub(r"\s+", " ", " ".join(line[13:34] for line in lines[2:-1]))
    assert all(word in said for word in ("TP4", "DP32", "ZeRO-1", "micro-batch"))
