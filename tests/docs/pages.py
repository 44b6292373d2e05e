"""Read the code blocks of a Markdown page, and run those that say they run.

A block's first line says what happens to it:

    ```python run            run after the page's earlier `python run` blocks, in one process
    ```console run           lines after `$ ` are commands, those below each what it prints
    ```sh run                the whole block is one shell script, which must succeed
    ```text output           what the block above printed
    ```python no-run: why    shown only, for the reason given

In expected output `...` stands for any text within a line, and alone on a line for any lines.
A `python`, `console` or `sh` block that says neither is a finding: what is written is run.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

RUNNABLE = ("python", "console", "sh")
# Runs blocks in one namespace, each from a file of its own so that its source can be read.
PYTHON = """
import json, sys
space = {"__name__": "__main__"}
for line in sys.stdin:
    path, mark = json.loads(line)
    exec(compile(open(path, encoding="utf-8").read(), path, "exec"), space)
    print(mark, flush=True)
"""
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^`]*)$")


@dataclass(frozen=True)
class Block:
    """A fenced block: language, what its first line says after it, where it starts, its text."""

    language: str
    words: str
    line: int
    text: str

    @property
    def runs(self) -> bool:
        """Whether the block says that it runs."""
        return self.language in RUNNABLE and self.words == "run"


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found, start, info, body, indent = [], 0, "", [], ""
    for number, line in enumerate(page.splitlines(), 1):
        fence = FENCE.match(line)
        if fence and not start:
            start, info, body, indent = number, fence["info"].strip(), [], fence["indent"]
        elif fence and not fence["info"].strip():
            language, _, words = info.partition(" ")
            text = "".join(f"{x}\n" for x in body)
            found.append(Block(language, words.strip(), start, text))
            start = 0
        elif start:
            body.append(line.removeprefix(indent))
    if start:
        raise ValueError(f"line {start}: the block is never closed")
    return found


def undecided(page: str) -> list[str]:
    """Blocks of a runnable language that neither run nor say why they do not."""
    found = []
    for block in blocks(page):
        excused = re.fullmatch(r"no-run: \w.+", block.words)
        if block.language in RUNNABLE and not block.runs and not excused:
            found.append(f"line {block.line}: say `{block.language} run` or `no-run: <reason>`")
    return found


def matches(printed: str, expected: str) -> bool:
    """Whether output is as expected; `...` stands for any text, alone on a line for any lines."""
    pattern = ""
    for line in expected.rstrip().splitlines():
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*?".join(map(re.escape, line.rstrip().split("..."))) + r"[ \t]*\n"
    return re.fullmatch(pattern, printed.rstrip() + "\n") is not None


class Runner:
    """Runs the blocks of one page, in order, in one empty directory."""

    def __init__(self, directory: Path, root: Path) -> None:
        self.directory = directory
        self.python: subprocess.Popen[str] | None = None
        # `opentrn` and `python` on the page mean the ones under test.
        scripts = os.path.dirname(sys.executable)
        self.streams = {
            "cwd": directory,
            "env": {**os.environ, "PATH": scripts + os.pathsep + os.environ["PATH"]},
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "text": True,
        }
        if (root / "examples").is_dir() and not (directory / "examples").exists():
            (directory / "examples").symlink_to(root / "examples")

    def run(self, block: Block, expected: str | None) -> None:
        """Run a block; AssertionError when it fails or prints something else."""
        if block.language == "console":
            self._console(block)
            return
        printed = self._python(block) if block.language == "python" else self._sh(block.text, block)
        if expected is not None and not matches(printed, expected):
            raise AssertionError(f"line {block.line}: expected\n{expected}printed\n{printed}")

    def _python(self, block: Block) -> str:
        """Run a block in the page's Python process and return what it printed."""
        if self.python is None:
            self.python = subprocess.Popen([sys.executable, "-u", "-c", PYTHON], **self.streams)
        path, mark = self.directory / f"line_{block.line}.py", f"<<end of line {block.line}>>"
        path.write_text(block.text, encoding="utf-8")
        self.python.stdin.write(json.dumps([str(path), mark]) + "\n")
        self.python.stdin.flush()
        printed = []
        for line in self.python.stdout:
            if line == f"{mark}\n":
                return "".join(printed)
            printed.append(line)
        told = f"line {block.line}: exit status {self.python.wait()}"
        raise AssertionError(f"{told}\n{block.text}printed\n{''.join(printed)}")

    def close(self) -> None:
        """End the page's Python process."""
        if self.python is not None:
            self.python.stdin.close()
            self.python.stdout.close()
            self.python.wait()

    def _sh(self, text: str, block: Block) -> str:
        return self._process(["sh", "-e", "-c", text], block)

    def _console(self, block: Block) -> None:
        """Run each `$ command` and compare the lines below it; none below means any output."""
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            printed = self._sh(command, block)
            if expected.strip() and not matches(printed, expected):
                told = f"line {block.line}: $ {command}"
                raise AssertionError(f"{told}\nexpected\n{expected}printed\n{printed}")

    def _process(self, command: list[str], block: Block) -> str:
        done = subprocess.run(command, **{**self.streams, "stdin": subprocess.DEVNULL})
        if done.returncode:
            told = f"line {block.line}: exit status {done.returncode}"
            raise AssertionError(f"{told}\n{block.text}printed\n{done.stdout}")
        return done.stdout


def run_page(page: str, directory: Path, root: Path) -> int:
    """Run every block of a page that says it runs; return how many there were."""
    runner, found = Runner(directory, root), blocks(page)
    try:
        for place, block in enumerate(found):
            after = found[place + 1] if place + 1 < len(found) else block
            follows = (after.language, after.words) == ("text", "output")
            if block.runs:
                runner.run(block, after.text if follows else None)
    finally:
        runner.close()
    return sum(block.runs for block in found)
