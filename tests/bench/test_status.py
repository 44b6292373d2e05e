"""The page of instructions is complete, its grades are fresh, and its tests exist."""

import re

from bench import predict, status
from opentrn.base import FAULTS, GRADES
from opentrn.isa import INSTRUCTIONS
from tests.house.rules import ROOT

PAGE = (ROOT / "docs" / "instructions.md").read_text(encoding="utf-8")
ROWS = {
    cells[0]: cells
    for cells in (
        [cell.strip() for cell in line.strip("| ").split(" | ")]
        for line in PAGE.partition(status.BEGIN)[2].partition(status.END)[0].splitlines()[3:]
    )
    if len(cells) > 1
}


def test_every_instruction_has_a_row_with_its_engines_and_grades():
    assert list(ROWS) == sorted(INSTRUCTIONS)
    for name, (_, engines, _, *rest) in ROWS.items():
        assert engines == ", ".join(INSTRUCTIONS[name].engines)
        assert rest[:3] == status.grades(name), f"{name}: python -m bench.status --update …"
        assert set(rest[:3]) <= {*GRADES, "-"}


def test_every_instruction_is_tested_where_the_page_says():
    for name, (_, _, where, *_) in ROWS.items():
        text = (ROOT / where).read_text(encoding="utf-8")
        assert re.search(rf"\b{name}\b", text), f"{where} does not name {name}"


def test_what_quick_cases_execute_is_listed():
    for name, families in status.compared(c for c in predict.cases() if c.quick).items():
        assert set(families) <= set(ROWS[name][6].split(", ")), name


def test_the_page_has_the_words_for_findings():
    for word, meaning in FAULTS.items():
        assert f"| {word} | {meaning} |" in PAGE
