"""The report page: one HTML file with its style, its script and its data, that asks no network.

Put together by plain replacement: four marks in `assets/page.html`.  A template language would add
a dependency and a second syntax to escape, and the page has no loop: its script builds it from the
data.
"""

import html
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from opentrn.base import seconds_text, write_whole
from opentrn.profiler.page_data import packed
from opentrn.profiler.profile import Profile

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("words.js", "data.js", "timeline.js", "memory.js", "charts.js", "source.js", "page.js")
"""In this order, in one script: each uses what those before it define."""


def page_pieces(profiles: Sequence[Profile]) -> Iterator[str]:
    """The text of the page, in pieces; one profile can be chosen at a time."""
    before, after = _asset("page.html").split("<!--data-->")
    script = "\n".join(_asset(name) for name in SCRIPTS)
    names = [one.summary.program or "program" for one in profiles]
    title = f"{', '.join(dict.fromkeys(names)) or 'nothing'} · OpenTrn profile"
    yield before.replace("<!--title-->", html.escape(title)).replace(
        "/*style*/", _asset("page.css")
    )
    for one in profiles:
        name = f"{one.summary.program or 'program'} on {one.summary.target}"
        about = json.dumps([name, seconds_text(one.summary["total_time"])])
        yield f'<script type="application/x-opentrn" data-about="{html.escape(about)}">'
        yield packed(one)
        yield "</script>\n"
    yield after.replace("/*script*/", script)


def save_page(profiles: Sequence[Profile], path: str | os.PathLike) -> Path:
    """Write the page, whole or not at all; raises what `base.write_whole` raises."""
    return write_whole(path, page_pieces(profiles))


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


__all__ = ["page_pieces", "save_page"]
