"""What stands behind each instruction: its tests, the grade of its time, measurements beside it.

    python -m bench.status                            the table
    python -m bench.status --update docs/instructions.md     write it into that page

Meaning: the test file of instructions or of the kernel language that names it most often.  Time:
the weakest grade of the facts behind its cost, by chip ("-" where the chip does not have it).
Compared: the families of published measurements (docs/accuracy.md) whose kernels execute it;
"alone" where its own duration is compared.
"""

import argparse
import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from bench import predict
from opentrn import hw
from opentrn.isa import INSTRUCTIONS
from opentrn.isa.reference import sample

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("tests/isa", "tests/nki", "tests/sim")
CHIPS = ("trn1", "trn2", "trn3")
BEGIN, END = "<!-- instructions -->", "<!-- end of instructions -->"
HEAD = (
    f"| instruction | engines | tested in | {' | '.join(CHIPS)} | compared with measurements |\n"
    "|---|---|---|---|---|---|---|"
)


@cache
def sources() -> dict[str, Counter[str]]:
    """How often each word stands in each test file."""
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("test_*.py"))]
    return {
        str(path.relative_to(ROOT)): Counter(re.findall(r"\w+", path.read_text("utf-8")))
        for path in files
    }


def tested(name: str) -> str:
    """The test file that names the instruction most often."""
    most = max(sources().items(), key=lambda item: item[1][name])
    return most[0] if most[1][name] else "nowhere"


def grades(name: str) -> list[str]:
    """The grade of its time on each chip."""
    return [_grade(INSTRUCTIONS[name], hw.chip(chip)) for chip in CHIPS]


def _grade(cls: type, chip) -> str:
    found = sample(cls, chip)
    return "-" if found is None else cls(chip, *found).cost.grade


def compared(cases: Iterable[predict.Case]) -> dict[str, list[str]]:
    """Instruction -> families of measurements, "alone" first."""
    found: dict[str, dict[str, None]] = {}
    for case in cases:
        if case.refused:
            continue
        for one in predict.recorded(case, hw.target(case.target)).instructions():
            families = found.setdefault(one.opcode, {})
            families[case.family] = None
            if one.name == "measured":
                families["alone"] = None
    return {name: sorted(these, key=lambda f: (f != "alone", f)) for name, these in found.items()}


def lines(families: dict[str, list[str]]) -> list[str]:
    """The rows of the table."""
    return [
        f"| {' | '.join([name, ', '.join(cls.engines), tested(name), *grades(name)])} | "
        f"{', '.join(families.get(name, ())) or 'none'} |"
        for name, cls in sorted(INSTRUCTIONS.items())
    ]


def main() -> None:
    """Print the table or write it into a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", type=Path, metavar="PAGE")
    asked = parser.parse_args()
    table = "\n".join([HEAD, *lines(compared(predict.cases()))])
    if asked.update is None:
        print(table)
        return
    before, _, rest = asked.update.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    asked.update.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
