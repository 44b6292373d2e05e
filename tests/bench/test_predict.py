"""The kernels of bench compute what they claim, and the accuracy page shows a fresh run."""

import dataclasses
import importlib
import re

import numpy as np
import pytest

from bench import predict
from opentrn import dropin, nki
from opentrn.base.units import parse
from tests.house.rules import ROOT

CASES = list(predict.cases())
PAGE = ROOT / "docs" / "accuracy.md"


def kernel(name, target="trn2"):
    module, _, function = name.partition(".")
    with dropin.install(target):
        return getattr(importlib.import_module(f"bench.kernels.{module}"), function)


def test_published_rows_are_complete_and_named_once():
    names = [(case.name, row["measure"]) for case in CASES for row in case.rows]
    assert len(set(names)) == len(names) > 60
    for case in CASES:
        assert case.source
        assert case.conditions
        assert kernel(case.kernel)
        for row in case.rows:
            assert set(row) == {"measure", "published", "grade", "use"}
            assert row["grade"] in ("A", "B", "C")
            assert row["use"] in predict.USES
            assert parse(row["published"]).value > 0
            assert row["measure"] in predict.MEASURES


@pytest.fixture(scope="module")
def quick():
    return [row for case in CASES if case.quick for row in predict.run(case)]


def test_the_page_shows_what_the_quick_cases_give_today(quick):
    text = PAGE.read_text(encoding="utf-8")
    assert predict.update(text, quick) == text, (
        "a predicted number moved: run `python -m bench.predict --update docs/accuracy.md`, and "
        "say so in CHANGELOG.md under Numbers"
    )


def test_the_page_has_a_line_for_every_published_row():
    text = PAGE.read_text(encoding="utf-8")
    table = text.partition(predict.BEGIN)[2].partition(predict.END)[0]
    listed = re.findall(r"^\| (\S+ [a-z ]+?) \|", table, flags=re.MULTILINE)
    assert [x for x in listed if x != "measurement"] == [
        f"{case.name} {row['measure']}" for case in CASES for row in case.rows
    ]


def test_nothing_is_faster_than_the_engines_and_the_memory_allow(quick):
    # trn2: 16 DMA engines of 27.2 GB/s at most; 128 x 128 x 2 x 2.4 GHz on the Tensor Engine.
    limits = {"byte/s": 16 * 27.2e9, "flop/s": 128 * 128 * 2 * 2.4e9, "1": 1.0}
    for row in quick:
        if row.dimension in limits:
            assert row.predicted <= limits[row.dimension] * 1.0001, row.id


# ------------------------------------------------------------------------------------- kernels


def matrices(K, M, N):
    rng = np.random.default_rng(7)
    return (
        rng.standard_normal((K, M)).astype(np.float32),
        rng.standard_normal((K, N)).astype(np.float32),
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tiled", {}),
        ("hoisted", {}),
        ("blocked", {"m_tiles": 2, "n_tiles": 2}),
        ("row_blocked", {"m_tiles": 2, "n_tiles": 2}),
        ("fully_blocked", {"m_tiles": 2, "n_tiles": 1, "k_tiles": 2}),
    ],
)
def test_products(name, options):
    a, b = matrices(512, 256, 1024)
    found = kernel(f"matmul.{name}")(a, b, **options)
    assert np.abs(found - a.T.astype(np.float64) @ b).max() < 1e-3


def test_the_transposing_product():
    a, b = matrices(256, 128, 512)
    found = kernel("matmul.transposing")(np.ascontiguousarray(a.T), b)
    assert np.abs(found - a.T.astype(np.float64) @ b).max() < 1e-3


def test_repeated_products_accumulate():
    a, b = matrices(128, 128, 512)
    found = kernel("matmul.repeated")(a, b, [(32, 128, 512), (128, 64, 512)], count=3)
    wanted = 3 * (a.T.astype(np.float64) @ b)[:64]
    assert np.abs(found[:64] - wanted).max() < 1e-3


def test_additions():
    a, b = np.arange(512, dtype=np.float32), np.full(512, 0.5, np.float32)
    column = kernel("vectors.add_rows")(a.reshape(512, 1), b.reshape(512, 1), rows=64)
    assert np.array_equal(column.ravel(), a + b)
    tiles = kernel("vectors.add_tiles")(a.reshape(128, 4), b.reshape(128, 4), width=2)
    assert np.array_equal(tiles.ravel(), a + b)


def test_silu():
    x = np.linspace(-6, 6, 128 * 8, dtype=np.float32).reshape(128, 8)
    wanted = x / (1 + np.exp(-x.astype(np.float64)))
    assert np.abs(kernel("vectors.silu")(x, width=4) - wanted).max() < 1e-5


@pytest.mark.parametrize(("name", "options"), [("reloading", {}), ("keeping", {"piece": 8})])
def test_the_state_space_layer(name, options):
    rng = np.random.default_rng(3)
    delta, u = rng.random((2, 128, 16)).astype(np.float32)
    A, B, C = -rng.random((128, 4)), rng.random((4, 16)), rng.random((4, 16))
    wanted = np.zeros((128, 16))
    for s in range(4):
        state = np.zeros(128)
        for t in range(16):
            state = np.exp(delta[:, t] * A[:, s]) * state + delta[:, t] * u[:, t] * B[s, t]
            wanted[:, t] += state * C[s, t]
    given = [x.astype(np.float32) for x in (delta, u, A, B, C)]
    assert np.abs(kernel(f"mamba.{name}")(*given, **options) - wanted).max() < 1e-4


def test_streams_copy():
    x = np.arange(128 * 8, dtype=np.float32).reshape(128, 8)
    assert np.array_equal(kernel("transfers.stream")(x, width=4), x)


# ------------------------------------------------------------------------------------- arithmetic


def test_intervals_count_once():
    begin, end = np.array([10.0, 0.0, 2.0, 30.0]), np.array([12.0, 4.0, 5.0, 31.0])
    assert predict.union(begin, end) == pytest.approx(8e-9)
    assert predict.union(np.array([]), np.array([])) == 0.0


def row(published, predicted, use="checked"):
    return predict.Row(
        id="x total", family="f", target="trn2", measure="total", published=published,
        predicted=predicted, dimension="s", grade="A", use=use, rests_on={"stated": 1.0},
        conditions="", source="",
    )  # fmt: skip


def test_the_summary_by_hand():
    rows = [row(1.0, 1.1), row(2.0, 1.0), row(4.0, 4.0), row(1.0, None), row(1.0, 3.0, "fitted")]
    found = predict.summary(rows)
    checked = found["checked"]["kernel"]
    assert checked["rows"] == 3
    assert checked["median_abs_error"] == pytest.approx(0.1)
    assert found["fitted"]["kernel"]["median_abs_error"] == pytest.approx(2.0)
    # Ranks 0 1 2 against 1 0 2: 1 - 6 * (1 + 1 + 0) / (3 * 8) = 0.5
    assert checked["rank_correlation"]["f"] == pytest.approx(0.5)


def test_numbers_are_shown_in_the_unit_people_use():
    assert predict.text(39.894938e-3, "s") == "39.9 ms"
    assert predict.text(97e-9, "s") == "97.0 ns"
    assert predict.text(354e9, "byte/s") == "354 GB/s"
    assert predict.text(0.8728, "1") == "87.3 %"


def test_a_refusal_that_does_not_come_is_an_error():
    case = next(c for c in CASES if c.name == "course.trn2.width-200")
    with pytest.raises(SystemExit, match=r"sim\.sbuf_capacity was expected"):
        predict.run(dataclasses.replace(case, refused="sim.sbuf_capacity"))


def test_a_kernel_that_does_not_fit_has_no_time():
    # [128, 65536] float32 needs 256 KiB of a partition; 208 KiB are usable on trn2.
    one = next(c for c in CASES if c.name == "transfer.one-engine")
    big = dataclasses.replace(one, inputs=((128, 131072),), refused="sim.sbuf_capacity")
    (found,) = predict.run(big)
    assert found.predicted is None
    assert "| refused |" in predict.line(found)


def test_kernels_outside_a_case_still_run_on_the_current_target():
    x = np.ones((128, 4), np.float32)
    with nki.use_target("trn1"):
        assert np.array_equal(kernel("vectors.add_tiles", "trn1")(x, x, width=4), x + x)
