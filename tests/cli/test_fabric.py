"""`opentrn nccom-test` and `opentrn claims` as a user calls them."""

import json


def test_nccom_test_prints_its_table_and_ends_well(opentrn):
    result = opentrn("nccom-test", "allr", "-r", 32, "-b", 8, "-e", "1M", "-f", 64, "-d", "bf16",
                     "--check")  # fmt: skip
    assert (result.status, result.err) == (0, "")
    assert result.out.splitlines()[0].split()[-1] == "busbw(GB/s)"
    assert "Avg bus bandwidth:" in result.out


def test_nccom_test_shows_its_own_help_and_refuses(opentrn):
    assert "--stepfactor" in opentrn("nccom-test", "--help").out
    result = opentrn("nccom-test", "allr", "-r", 100)
    assert result.status == 1
    assert "opentrn explain comm.place" in result.err
    assert opentrn("nccom-test", "dance", "-r", 2).status == 2


def test_claims_for_people_and_programs(opentrn):
    result = opentrn("claims", "--json")
    assert (result.status, result.err) == (0, "")
    rows = json.loads(result.out)["claims"]
    assert len(rows) == 23
    assert {tuple(row) for row in rows} == {("id", "verdict", "computed", "reason", "sources")}
    text = opentrn("claims", "A05").out
    assert "contradicts itself" in text
    assert "64 x 32 GB = 2.048 TB" in text
    assert opentrn("claims", "B01").status == 2
