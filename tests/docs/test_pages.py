"""What is written is run: the blocks of the README and of the pages under docs."""

import pytest

from tests.docs import pages
from tests.house.rules import ROOT

PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md")))
]


@pytest.mark.parametrize("name", PAGES)
def test_every_block_is_decided(name):
    assert pages.undecided((ROOT / name).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("name", PAGES)
def test_the_blocks_of_a_page_run(name, tmp_path):
    pages.run_page((ROOT / name).read_text(encoding="utf-8"), tmp_path, ROOT)


def test_the_readme_runs_something():
    found = pages.blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    assert sum(block.runs for block in found) >= 2


def page(*parts):
    """A page from (first line after the fence, text) pairs."""
    return "# Page\n\n" + "\n\n".join(f"```{info}\n{text}```" for info, text in parts)


def run(tmp_path, *parts):
    return pages.run_page(page(*parts), tmp_path, tmp_path)


def test_blocks_share_a_page_and_are_compared(tmp_path):
    count = run(
        tmp_path,
        ("python run", "x = 2\nprint('first')\n"),
        ("text output", "first\n"),
        ("python run", "print(x + 1)\n"),
        ("text output", "3\n"),
        ("console run", "$ echo one; echo two\none\n...\n$ touch made\n"),
        ("sh run", "test -e made\n"),
        ("python no-run: needs a chip", "raise SystemExit(1)\n"),
        ("text", "not compared\n"),
    )
    assert count == 4


@pytest.mark.parametrize(
    "parts",
    [
        [("python run", "raise ValueError('x')\n")],
        [("python run", "print(1)\n"), ("text output", "2\n")],
        [("python run", "print(1)\n"), ("python run", "print(2)\n"), ("text output", "1\n2\n")],
        [("console run", "$ echo one\ntwo\n")],
        [("console run", "$ false\n")],
        [("console run", "$ true\n$ echo one\none\none\n")],
        [("sh run", "false\ntrue\n")],
    ],
)
def test_a_wrong_page_fails(tmp_path, parts):
    with pytest.raises(AssertionError, match=r"^line \d+: "):
        run(tmp_path, *parts)


@pytest.mark.parametrize(
    ("info", "count"),
    [
        ("python", 1),
        ("sh no-run", 1),
        ("console no-run: ", 1),
        ("python run", 0),
        ("sh no-run: needs the network", 0),
        ("text", 0),
        ("toml", 0),
    ],
)
def test_blocks_must_say_whether_they_run(info, count):
    assert len(pages.undecided(page((info, "x\n")))) == count


def test_a_block_that_never_ends_is_an_error():
    with pytest.raises(ValueError, match="line 3: the block is never closed"):
        pages.blocks("# Page\n\n```python run\nx = 1\n")


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("a 12 b\n", "a ... b\n", True),
        ("a\nb\nc\n", "a\n...\nc\n", True),
        ("a\nc\n", "a\n...\nc\n", True),
        ("a\nb\n", "a\n", False),
        ("a\n", "a\nb\n", False),
        ("ab\n", "a\n", False),
        ("a.c\n", "abc\n", False),
    ],
)
def test_dots_stand_for_any_text(printed, expected, same):
    assert pages.matches(printed, expected) is same
