"""Scores by level and the page's table by hardware and workload."""

import json
import sys

import pytest

from bench import predict, scores
from tests.house.rules import ROOT

PAGE = ROOT / "docs" / "accuracy.md"


def score(error, level="kernel", use="checked", workload="w", name="x"):
    return scores.Score(level, use, "trn2", workload, "total", name, error)


def test_levels_and_uses_are_kept_apart():
    found = scores.levels(
        [score(0.1), score(-0.3), score(0.2), score(4.0, use="fitted"), score(-0.5, "collective")]
    )
    assert found["checked"]["kernel"] == {
        "rows": 3,
        "median_abs_error": 0.2,
        # Between 0.2 and 0.3, at 0.9 * 2 = 1.8 of the way from the first of 0.1 0.2 0.3.
        "p90_abs_error": pytest.approx(0.28),
        "measures": ["total"],
    }
    assert found["fitted"] == {"kernel": scores.levels([score(4.0)])["checked"]["kernel"]}
    assert found["checked"]["collective"]["median_abs_error"] == 0.5
    assert "model" not in found["checked"]


def test_a_cell_shows_its_worst_row_with_its_sign():
    lines = scores.cells([score(0.1, name="a"), score(-0.4, name="b"), score(0.05, workload="v")])
    assert lines == [
        "| trn2 | w | checked | 2 | 25% | 37% | -40% | b |",
        "| trn2 | v | checked | 1 | 5% | 5% | +5% | x |",
    ]


def test_the_page_shows_the_cells_of_its_own_rows_and_of_fresh_models_and_collectives():
    text = PAGE.read_text(encoding="utf-8")
    assert scores.update(text, predict.every_score(text)) == text, (
        "run `python -m bench.predict --update docs/accuracy.md`"
    )


def test_every_predicted_row_of_the_page_is_in_a_cell():
    text = PAGE.read_text(encoding="utf-8")
    kernels = [s for s in predict.every_score(text) if s.level == "kernel"]
    rows = text.partition(predict.BEGIN)[2].partition(predict.END)[0].splitlines()[3:]
    assert len(kernels) == sum("refused" not in row and row.startswith("| ") for row in rows)


def test_json_has_every_level(monkeypatch, capsys):
    quick = [case for case in predict.cases() if case.name.startswith("copy.")]
    monkeypatch.setattr(predict, "cases", lambda: iter(quick))
    monkeypatch.setattr(sys, "argv", ["predict", "--json"])
    predict.main()
    found = json.loads(capsys.readouterr().out)
    for use in ("checked", "fitted"):
        for level in ("kernel", "model", "collective"):
            assert 0.0 <= found[use][level]["median_abs_error"] < 1.0
            assert found[use][level]["rows"] > 0
    assert {row["use"] for row in found["rows"]} == {"checked", "fitted"}
