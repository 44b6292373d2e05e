"""The conformance page tells which public names are built."""

import re

import pytest

from opentrn.nki import collectives, isa, language
from tests.house.rules import ROOT

PAGE = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")


def line(module):
    """(functions, built, names not built) of a module in the table."""
    cells = re.search(rf"^\| `{re.escape(module)}` \|(.*)\|$", PAGE, flags=re.MULTILINE)[1]
    functions, built, missing = (cell.strip() for cell in cells.split("|"))
    return int(functions), int(built), re.findall(r"`(\w+)`", missing)


@pytest.mark.parametrize(
    ("module", "ours"), [("nki.isa", isa), ("nki.language", language)], ids=["isa", "language"]
)
def test_names_that_are_not_built_are_listed(module, ours):
    functions, built, missing = line(module)
    assert missing == list(ours.NOT_BUILT)
    assert functions - built == len(missing)


def test_all_functions_of_a_module_are_built():
    functions, built, missing = line("nki.collectives")
    names = [name for name in collectives.__all__ if name != "ReplicaGroup"]
    assert functions == built == len(names) == 11
    assert missing == []
