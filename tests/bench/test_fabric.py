"""bench.fabric: errors by hand, and the promise about nccom-test curves."""

from pathlib import Path

import pytest

from bench import fabric
from opentrn.comm import place, time


@pytest.fixture(scope="module")
def found():
    return {curve.name: curve for curve in fabric.curves()}


def test_errors_are_shares_of_what_was_published(found):
    last = found["trn1.16"].points[-1]
    assert last.nbytes == 2 << 30
    assert last.published == pytest.approx(58487.2e-6)
    ours = time("all_reduce", 2 << 30, place(16, "trn1.32xlarge")).seconds
    assert last.error == pytest.approx(ours / 58487.2e-6 - 1)


@pytest.mark.parametrize("name", ["trn1.2", "trn1.8", "trn1.16", "trn1.32", "trn2.sendrecv"])
def test_nccom_curves_are_within_a_quarter_above_1_mb(found, name):
    assert found[name].counted
    for point in found[name].counted:
        assert abs(point.error) <= 0.25
        assert point.nbytes > 1_000_000


def test_measurements_on_the_host_have_a_launch_added(found):
    point = found["trn2.nki.all_reduce"].points[0]
    bare = time("all_reduce", 512, place(8, "trn2.48xlarge", lnc=1)).seconds
    assert point.predicted == pytest.approx(bare + 120e-6)


def test_the_table_has_a_line_for_each(found):
    curve = found["trn1.8"]
    cells = fabric.line(curve).strip("| ").split(" | ")
    assert cells[:3] == ["trn1.8", "trn1.32xlarge", str(len(curve.counted))]
    assert cells[4] == f"{curve.worst:+.0%}"


def test_the_page_shows_what_a_fresh_run_gives(found):
    page = (Path(__file__).resolve().parents[2] / "docs" / "accuracy.md").read_text("utf-8")
    table = page.partition(fabric.BEGIN)[2].partition(fabric.END)[0]
    assert table.strip().splitlines()[2:-2] == [fabric.line(curve) for curve in found.values()]
    assert fabric.summary(list(found.values())) in table
