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


def test_every_nccom_row_above_1_mb_whose_machine_is_known_is_within_a_quarter(found):
    rows = [
        (curve.name, point) for name, curve in found.items() for point in curve.counted
        if name.startswith("trn1.") or name in ("trn2.sendrecv", "trn2.nccom.8 best")
    ]  # fmt: skip
    assert len(rows) == 66
    assert [(name, point.nbytes) for name, point in rows if abs(point.error) > 0.25] == []


def test_a_launch_is_added_or_hidden_behind_the_device(found):
    # torch.distributed waits for each call: 281.7 us for 4 KB
    point = found["trn2.torch.16"].points[0]
    bare = time("all_reduce", 1 << 27, place(16, "trn2.48xlarge")).seconds
    assert point.predicted == pytest.approx(bare + 281.7e-6)
    # queued calls of a kernel: 13.5 + 1.7 us of begin and end, 2 copies at half of 2.9 TB/s / 8
    small, large = (found["trn2.nki.all_reduce"].points[k] for k in (0, -1))
    assert small.predicted == pytest.approx(99.1e-6)
    bare = time("all_reduce", 1 << 27, place(8, "trn2.48xlarge", lnc=1)).seconds
    copies = 2 * (1 << 27) * 2 / (2.9e12 / 8)
    assert large.predicted == pytest.approx(bare + 15.2e-6 + copies)


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
