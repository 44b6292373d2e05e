"""The conformance page tells which public names are built."""

import re

import pytest

from tests.house.rules import ROOT

PAGE = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")


def line(module):
    """(functions, built, names not built) of a module in the table."""
    cells = re.search(rf"^\| `{re.escape(module)}` \|(.*)\|$", PAGE, flags=re.MULTILINE)[1]
    functions, built, missing = (cell.strip() for cell in cells.split("|"))
    return int(functions), int(built), re.findall(r"`(\w+)`", missing)


@pytest.mark.parametrize("module", ["nki.isa", "nki.language", "nki.collectives"])
def test_the_table_counts_what_the_signature_test_reads(module):
    short = {"nki.isa": "nisa.", "nki.language": "nl.", "nki.collectives": "ncc."}[module]
    listed = (ROOT / "tests" / "nki" / "signatures.txt").read_text().splitlines()
    functions, built, missing = line(module)
    assert functions == built == sum(row.startswith(short) for row in listed)
    assert missing == []
