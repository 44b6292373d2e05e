"""The report page: bars and points where the numbers say, the efficient points, a real browser."""

import math
import re
import xml.etree.ElementTree as xml

import pytest

from opentrn.base import MissingFileError
from opentrn.plan import around, compare, comparison, efficient, page, plan, save_page, scaling
from opentrn.plan.charts import LEFT, Curve, Point, curves, stacked, ticks
from tests.profiler.test_page import SPY, browser, drawn


@pytest.fixture(scope="module")
def found():
    return plan("llama-3.1-8b", "trn2.48xlarge", 4, tokens=1e12)


@pytest.fixture(scope="module")
def scaled():
    return scaling("llama-3.1-8b", "trn2.48xlarge", around(4), tokens=1e12)


def pictures(text):
    return [xml.fromstring(one) for one in re.findall(r"<svg.*?</svg>", text, re.S)]


def test_bars_are_as_long_as_their_numbers():
    text = stacked("t", [("a", {"x": 3.0, "y": 1.0}), ("b", {"x": 2.0, "z": 0.0})], str, limit=5.0)
    (picture,) = pictures(text)
    rects = picture.findall("rect")
    wide = [float(r.get("width")) for r in rects]
    assert len(rects) == 3  # nothing is drawn for nothing
    assert wide[0] / wide[1] == pytest.approx(3, rel=1e-3)
    assert wide[2] / wide[1] == pytest.approx(2, rel=1e-3)
    assert float(rects[1].get("x")) == pytest.approx(LEFT + wide[0], abs=0.02)
    assert rects[0].get("fill") == rects[2].get("fill") != rects[1].get("fill")
    line = picture.find("line")
    assert float(line.get("x1")) - LEFT == pytest.approx(5 * wide[1], rel=1e-3)
    assert [t.text for t in picture.iter("title")] == ["x: 3.0", "y: 1.0", "x: 2.0"]


def test_points_lie_on_logarithmic_axes():
    points = [Point(1, 10), Point(10, 1000), Point(100, 100)]
    (picture,) = pictures(curves("t", [Curve("c", points)], ("x", "y"), (str, str)))
    dots = [(float(c.get("cx")), float(c.get("cy"))) for c in picture.findall("circle")]
    assert dots[1][0] - dots[0][0] == pytest.approx(dots[2][0] - dots[1][0], abs=0.2)
    # Two powers of ten up, one down; y grows downwards.
    assert dots[0][1] - dots[1][1] == pytest.approx(2 * (dots[2][1] - dots[1][1]), abs=0.2)
    assert "nothing to draw" in curves("t", [Curve("c", [])], ("x", "y"), (str, str))


def test_ticks_are_round_and_at_least_three():
    for low, high in ((1, 1e6), (8, 500), (1.6e7, 3.3e7), (0.9, 1.4)):
        found = ticks(low, high)
        assert len(found) >= 3
        assert all(low * 0.999 <= t <= high * 1.001 for t in found)
        assert all(abs(t / 10 ** math.floor(math.log10(t) + 1e-9) * 10 % 1) < 1e-6
                   or abs(t / 10 ** math.floor(math.log10(t) + 1e-9) * 10 % 1 - 1) < 1e-6
                   for t in found)  # fmt: skip


def test_efficient_plans_are_those_nothing_beats(scaled):
    assert [p.count for p in scaled] == [1, 2, 4, 8, 16, 32]
    kept = efficient(scaled)
    for one in scaled:
        beaten = any(
            o.hours <= one.hours and o.cost_usd <= one.cost_usd
            and (o.hours, o.cost_usd) != (one.hours, one.cost_usd)
            for o in scaled
        )  # fmt: skip
        assert (one in kept) is not beaten
    assert [p.hours for p in kept] == sorted(p.hours for p in kept)


def test_counts_on_which_nothing_fits_are_left_out():
    some = scaling("llama-3.1-405b", "trn2.48xlarge", [1, 64], optimizer="adamw")
    assert [p.count for p in some] == [64]


def test_the_page_has_every_plan_part_and_reason_and_asks_nothing(found, scaled):
    text = page(found, scaled, "a <b> title")
    assert "<b>" not in text
    assert "default-src 'none'" in text
    assert not re.search(r"<script|<link|\bsrc=|https?://|@import|url\(", text)
    for one in found.rejected:
        assert one.choice in text
    assert "capacity-block" in text  # the price's basis
    drawings = pictures(text)
    titles = ["Step breakdown", "Memory of a core", "Scaling", "Cost over machines"]
    assert [d.get("aria-label").split(":")[0] for d in drawings] == [*titles, "Time and cost"]
    parts = [t.text for t in drawings[0].iter("title")]
    assert sum(p.startswith("compute: ") for p in parts) == len(found)
    assert len(drawings[3].findall("circle")) == len(scaled)
    assert found._repr_html_().count("<svg") == 2


def test_a_machine_without_price_says_so():
    one = plan("llama-3.1-8b", "trn3-gen2-ultraserver", 1)
    assert "No price of this machine" in page(one, [one.best], "t")


def test_a_comparison_shows_each_machine_and_what_was_refused():
    rows = compare("llama-3.1-405b", ["trn2", "p5", "tpu-v5p", "trn1.2xlarge"], chips=64,
                   optimizer="adamw-bf16")  # fmt: skip
    text = comparison(rows, "t")
    for row in rows:
        assert row.machine in text
    refused = [row for row in rows if row.plan is None]
    assert [row.machine for row in refused] == ["trn1.2xlarge"]
    assert "does not fit" in text
    assert "prices stand on different bases" in text
    step, held, *_ = drawings = pictures(text)
    assert len(drawings) == 4  # step, memory, cost, time and cost
    for bar in held.findall("rect"):  # every memory is drawn as wide as every other: 100 %
        assert float(bar.get("x")) + float(bar.get("width")) <= 860
    assert len(step.findall("rect")) > 3


def test_a_browser_draws_it_without_errors_and_without_a_network(found, scaled, tmp_path):
    program = browser()
    text = page(found, scaled, "t")
    file = save_page(tmp_path / "plan.html", text)
    dom, said, asked = drawn(program, file, tmp_path)
    assert dom.count("<svg") == 5
    assert "CONSOLE" not in said
    assert asked == set()
    watched = tmp_path / "watched.html"  # the page's own policy forbids scripts: take it off
    watched.write_text(re.sub(r"<meta http-equiv[^>]*>", SPY.replace("\\", "\\\\"), text))
    dom, _, asked = drawn(program, watched, tmp_path)
    assert "data-noted" not in re.search(r"<html[^>]*>", dom)[0]
    with pytest.raises(MissingFileError, match="there is no directory"):
        save_page(tmp_path / "none" / "plan.html", text)
