"""The report page: what is packed into it, and that a browser draws it without a network."""

import base64
import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import opentrn.nki as nki
import opentrn.nki.isa as nisa
import opentrn.nki.language as nl
from opentrn.profiler import page_pieces, profile, save_page
from opentrn.profiler.page import ASSETS, SCRIPTS
from opentrn.profiler.page_data import REASONS, packed, unpacked
from tests.profiler import pairs

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--enable-logging=stderr", "--virtual-time-budget=8000",
)  # fmt: skip
# Put before the page's own script: notes every error and every attempt to reach a network.
SPY = """<script>
window.noted = [];
const note = (what) => { window.noted.push(String(what)); document.documentElement.dataset.noted = JSON.stringify(window.noted); };
addEventListener("error", (event) => note(event.message));
addEventListener("unhandledrejection", (event) => note(event.reason));
addEventListener("securitypolicyviolation", (event) => note(`blocked ${event.blockedURI}`));
for (const kind of ["error", "warn"]) { const old = console[kind]; console[kind] = (...said) => { note(said.join(" ")); old(...said); }; }
new PerformanceObserver((list) => list.getEntries().forEach((entry) => note(`asked for ${entry.name}`))).observe({ type: "resource", buffered: true });
</script>
"""  # noqa: E501
LAST = """<script>
addEventListener("load", () => setTimeout(() => {
  const canvas = document.getElementById("lanes");
  const seen = new Set(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data);
  document.documentElement.dataset.colours = seen.size;
  const box = canvas.getBoundingClientRect();
  const at = (x, y) => ({ clientX: box.left + x, clientY: box.top + y, pointerId: 1, bubbles: true });
  let tip = "";
  for (let y = 50; y < canvas.clientHeight && !tip; y += 6) for (let x = 110; x < canvas.clientWidth - 12 && !tip; x += 8) {
    canvas.dispatchEvent(new PointerEvent("pointermove", at(x, y)));
    const words = document.getElementById("tip");
    if (!words.hidden && words.textContent.includes("waited for")) tip = words.textContent;
  }
  document.documentElement.dataset.tip = tip;
  dispatchEvent(new KeyboardEvent("keydown", { key: "w" }));
  document.getElementById("theme").click();
  document.documentElement.dataset.done = "yes";
}, 1500));
</script>
"""  # noqa: E501


@pytest.fixture(scope="module")
def profiles():
    first = nki.run(pairs.product, pairs.numbers(256, 256), pairs.numbers(256, 512))
    second = nki.run(pairs.one_tile_for_all, pairs.numbers(512, 256))
    return [profile(first.timeline()), profile(second.timeline())]


@pytest.fixture(scope="module")
def text(profiles):
    return "".join(page_pieces(profiles))


def held(text):
    return re.findall(
        r'<script type="application/x-opentrn" data-about="(.*?)">(.*?)</script>', text
    )


def test_every_event_and_tile_is_in_the_page(profiles, text):
    found = held(text)
    assert len(found) == 2
    for one, (about, data) in zip(profiles, found, strict=True):
        header, column = unpacked(data)
        assert json.loads(html.unescape(about))[0] == f"{one.summary.program} on trn2"
        order = column["row"]
        assert sorted(order.tolist()) == list(range(len(one.trace)))
        tick = header["tick"]
        for name in ("start", "end"):
            given = one.trace.column(name)[order]
            assert np.abs(column[name] * tick - given).max() <= 0.5 * tick + 1e-9
        names = [header["names"][n].removesuffix(" (issue)") for n in column["name"].tolist()]
        assert names == [one.trace.column("name")[row] for row in order.tolist()]
        places = [header["places"][n] for n in column["place"].tolist()]
        wheres = [one.trace.column("where")[row] for row in order.tolist()]
        assert [place[:2] for place in places] == [[w.file, w.line] for w in wheres]
        assert column["read"].sum() == one.trace.column("bytes_read").sum()
        assert len(column["tile_begin"]) == len(one.tiles)
        assert header["summary"]["metrics"]["total_time"]["value"] == one.summary["total_time"]
        # On each track the events follow one another.
        for track in range(len(header["tracks"])):
            on = column["track"] == track
            assert (column["start"][on][1:] + 1 >= column["end"][on][:-1]).all()


def test_waits_point_at_the_event_that_was_waited_for(profiles):
    header, column = unpacked(packed(profiles[1]))
    waits = profiles[1].trace.column("waited_for")
    rows, names = column["row"].tolist(), header["names"]
    checked = 0
    for n, before in enumerate(column["before"].tolist()):
        said = waits[rows[n]]
        if said:
            assert REASONS[column["reason"][n]] == said.partition(":")[0]
            assert names[column["name"][before]] == said.split()[1]
            checked += 1
    assert checked > 10


def test_the_page_needs_nothing_but_itself(text):
    own = re.sub(r'<script type="application/x-opentrn".*?</script>', "", text, flags=re.S)
    assert "default-src 'none'" in own
    assert not re.search(
        r"\b(src|srcset|action)=|<link|@import|url\(|fetch\(|XMLHttp|import\(", own
    )
    assert set(re.findall(r"https?://[^\"'\s]+", own)) == {"http://www.w3.org/2000/svg"}
    assert "/*" + "style*/" not in own
    assert "<!--data-->" not in own
    assert own.count('"use strict"') == 1


def test_names_cannot_break_out_of_the_page(profiles):
    one = profiles[1]
    evil = "</script><b>x"
    renamed = type(one)(one.timed, one.trace, type(one.summary)(
        **{**vars(one.summary), "program": evil}))  # fmt: skip
    made = "".join(page_pieces([renamed]))
    assert evil not in made
    ((about, data),) = held(made)
    assert unpacked(data)[0]["program"] == evil
    assert html.unescape(about).startswith('["</script><b>x')


def test_the_scripts_words_for_reasons_are_the_profilers():
    line = re.search(r"const REASONS = \[(.*?)\];", (ASSETS / "timeline.js").read_text())
    assert len(json.loads(f"[{line[1]}]")) == len(REASONS)
    assert {path.name for path in ASSETS.iterdir()} == {*SCRIPTS, "page.css", "page.html"}


def browser():
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no chromium is installed: the page is not drawn, only taken apart")
    return found


def drawn(program, page, folder):
    """The document after the page's scripts ran, what was logged, addresses the page asked for."""
    log = folder / f"{page.stem}-net.json"
    done = subprocess.run(
        [program, *FLAGS, f"--user-data-dir={folder / page.stem}", f"--log-net-log={log}",
         "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    events = [event.get("params", {}) for event in json.loads(log.read_text())["events"]]
    # The browser's own requests are from "not an origin", those of a page on disk from "null".
    pages = [
        e["url"] for e in events if e.get("initiator", "not an") not in ("not an origin", "not an")
    ]
    return done.stdout, done.stderr, set(pages)


def test_a_browser_draws_it_without_errors_and_without_a_network(text, tmp_path):
    program = browser()
    page = tmp_path / "page.html"
    watched = text.replace("<style>", SPY.replace("\\", "\\\\") + "<style>", 1)
    page.write_text(watched.replace("</body>", LAST + "</body>"), encoding="utf-8")
    dom, said, asked = drawn(program, page, tmp_path)
    root = re.search(r"<html[^>]*>", dom)[0]
    assert 'data-ready="0"' in root
    assert 'data-done="yes"' in root
    assert "data-noted" not in root, html.unescape(root)
    assert "CONSOLE" not in said
    assert int(re.search(r'data-colours="(\d+)"', root)[1]) > 20
    assert "waited for" in html.unescape(re.search(r'data-tip="(.*?)"', root)[1])
    assert re.search(r'<h1 id="name">product</h1>', dom)
    for piece in ("Bound by", "hbm_reload_bytes", "<polyline", "tiles alive at", "pairs.py"):
        assert piece in dom
    assert asked == set()


@nki.jit
def beside(x):
    out = nl.ndarray((128, 512), x.dtype, buffer=nl.shared_hbm)
    for n in (0, 32, 64, 96):
        part = nl.ndarray((32, 512), x.dtype, buffer=nl.sbuf, address=(n, 0))
        nisa.dma_copy(dst=part, src=x[n : n + 32, :])
        nisa.dma_copy(dst=out[n : n + 32, :], src=part)
    return out


COUNT = """<script>
const drawn = [];
const fill = CanvasRenderingContext2D.prototype.fillRect;
CanvasRenderingContext2D.prototype.fillRect = function (x, y, wide, high) {
  if (this.canvas.id === "sbuf" && this.globalAlpha === 0.72) drawn.push([x, y, wide, high]);
  document.documentElement.dataset.drawn = JSON.stringify(drawn);
  return fill.call(this, x, y, wide, high);
};
</script>
"""


def test_tiles_beside_each_other_are_not_drawn_on_each_other(tmp_path):
    program = browser()
    run = nki.run(beside, pairs.numbers(128, 512, dtype=np.float32))
    made = "".join(page_pieces([profile(run.timeline())]))
    page = tmp_path / "beside.html"
    page.write_text(made.replace("<style>", COUNT + "<style>", 1), encoding="utf-8")
    dom, _, _ = drawn(program, page, tmp_path)
    boxes = json.loads(html.unescape(re.search(r'data-drawn="(.*?)"', dom)[1]))[:4]
    tops = sorted(y for _, y, _, _ in boxes)
    assert len(boxes) == 4
    assert all(b - a > boxes[0][3] for a, b in zip(tops, tops[1:], strict=False))
    assert re.search(r"<td[^>]*>(0 to 31|32 to 63|64 to 95|96 to 127)</td>", dom)


def test_the_browser_test_would_see_a_request(tmp_path):
    program = browser()
    page = tmp_path / "asks.html"
    page.write_text("<!doctype html><img src='http://127.0.0.1:9/x.png'>", encoding="utf-8")
    assert drawn(program, page, tmp_path)[2] == {"http://127.0.0.1:9/x.png"}


def test_a_folder_that_is_not_there_is_refused(profiles, tmp_path):
    from opentrn.base import MissingFileError

    with pytest.raises(MissingFileError, match="there is no directory"):
        save_page(profiles, tmp_path / "none" / "page.html")
    made = save_page(profiles, tmp_path / "page.html")
    assert Path(made).stat().st_size < 300_000
    assert base64.b64decode(held(made.read_text(encoding="utf-8"))[0][1])
