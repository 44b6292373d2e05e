"""Does it fit: the cases that users reported (TC-25), with numbers done by hand."""

import pytest

from opentrn.plan import degrees, fits
from opentrn.workloads import model


def test_llama_8b_on_the_smallest_trn1():
    found = fits("llama-3.1-8b", "trn1.2xlarge")
    assert found.weight_bytes / 1e9 == pytest.approx(16.06, abs=0.005)
    assert found.kv_token == 131072
    assert found.kv_total == 2**30  # 8,192 tokens
    one, two = found.at(1), found.at(2)
    assert not one.fits
    assert two.fits
    assert two.memory["weights"] / 1e9 == pytest.approx(8.03, abs=0.005)
    assert two.remarks == ()  # 8 KV heads divide by 2: nothing to warn of
    assert two.memory["kv_cache"] == 2**30 / 2
    assert found.legal == (1, 2)
    assert any("host memory" in note and "34 GB" in note for note in found.warnings)


def test_llama_70b_on_twelve_cores():
    found = fits("llama-3-70b", "inf2.24xlarge")
    assert found.weight_bytes / 1e9 == pytest.approx(141.1, abs=0.05)
    row = found.at(12)
    assert row.memory["weights"] / 1e9 == pytest.approx(11.76, abs=0.01)
    assert row.fits
    assert not row.degree.legal
    assert row.degree.copies == 1.5  # 8 KV heads stored as 12
    assert row.memory["kv_cache"] == 1.5 * found.kv_total / 12
    assert "8 KV heads become 12: 1.50 x the cache" in row.remarks[0]
    assert found.legal == (1, 2, 4, 8)
    assert "legal tp: 1, 2, 4, 8" in str(found)
    assert not found.at(4).fits
    assert found.json()["rows"][-1]["kv_copies"] == 1.5


def test_copies_of_key_value_heads():
    found = degrees(model("llama-3.1-8b"), 64, 64)
    by = {d.value: d for d in found.tp}
    assert by[8].legal
    assert by[8].copies == 1
    assert by[8].why == ""
    assert by[32].legal
    assert by[32].copies == 4
    assert "stored 4 times" in by[32].why
    assert not by[64].legal  # 32 query heads
    assert found.legal_tp == (1, 2, 4, 8, 16, 32)


def test_latent_attention_has_nothing_to_copy():
    by = {d.value: d for d in degrees(model("deepseek-v3"), 128, 128).tp}
    assert by[128].legal
    assert by[128].copies == 1
    assert degrees(model("deepseek-v3"), 128, 128).ep[-1] == 256


def test_a_model_that_fits_nowhere_says_how_much_is_missing():
    found = fits("llama-3.1-405b", "trn1.2xlarge")
    assert not found.fits
    assert any("no degree fits" in note for note in found.warnings)
