"""The golden pages: `python -m tests.profiler.golden` writes them anew (then read the diff)."""

from pathlib import Path

from opentrn.profiler import compare, report, summarize
from tests.profiler import traces

FOLDER = Path(__file__).parents[1] / "golden" / "profiler"


def pages():
    """Name -> text."""
    page = summarize(traces.page(), "trn2")
    return {
        "report.txt": report(page),
        "report_issue.txt": report(summarize(traces.issue_bound(), "trn2")),
        "compare.txt": compare(summarize(traces.issue_bound(), "trn2"), page),
    }


if __name__ == "__main__":
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
