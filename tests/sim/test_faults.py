"""Every finding says what it means for the chip, in text and as data."""

import ast
from dataclasses import fields

import pytest

from opentrn.base import FAULTS, Bug, NotBuiltError, UsageError, declare, explanation
from opentrn.profiler import profile
from opentrn.sim import Finding, Strict, races, timeline
from tests.house.rules import ROOT
from tests.sim.programs import TRN2, Writer
from tests.sim.test_races import two_tiles


@pytest.mark.parametrize("name", [f.name for f in fields(Strict) if f.type is not bool])
def test_every_check_of_the_machine_has_a_fault(name):
    assert explanation(f"sim.{name}").fault in FAULTS


def literal_codes():
    """The codes that the package's sources give to a Finding as a literal."""
    for path in sorted((ROOT / "opentrn").rglob("*.py")):
        if "cost" in path.parts:
            continue  # findings about claims, another thing of the same name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding"
            if called and node.args and isinstance(node.args[0], ast.Constant):
                yield path, node.args[0].value


def test_findings_made_elsewhere_have_one_too():
    import opentrn.nki  # noqa: F401  declares its codes

    found = {code: path for path, code in literal_codes()}
    assert {"sim.race", "sim.address_overlap", "nki.core_race"} <= set(found)
    for code, path in found.items():
        if explanation(code) is not None and not code.startswith("beta1."):
            assert explanation(code).fault in FAULTS, f"{code} in {path}"


def test_a_race_is_unpredictable_in_text_data_and_profile():
    program, first, second = two_tiles(second_at=128)
    found = races(program, TRN2)
    assert {one.fault for one in found} == {"unpredictable"}
    assert f"  chip  unpredictable: {FAULTS['unpredictable']}" in str(found[0])
    assert found[0].json()["fault"] == "unpredictable"
    told = profile(timeline(program, TRN2), findings=[one.json() for one in found]).summary
    assert [one["code"] for one in told.findings] == [one.code for one in found]
    assert "unpredictable on the chip" in " ".join(str(told).split())


def test_time_on_assumed_numbers_is_named_as_not_validated():
    from opentrn.hw import chip

    trn3 = chip("trn3")
    w = Writer(trn3)
    a, b = (w.buffer("sbuf", (128, 512)) for _ in range(2))
    w.add("memset", dst=a, value=0.0)
    w.copy(b, a)
    timed = timeline(w.program(), trn3)
    share = timed.grade_shares().get("assumed", 0.0)
    told = profile(timed).summary
    assert [one["fault"] for one in told.findings] == ["unvalidated"] * (share >= 0.25)
    program, _, _ = two_tiles(second_at=4096)
    assert profile(timeline(program, TRN2)).summary.findings == ()


def test_refusals_say_whether_the_chip_could():
    assert NotBuiltError("x", code="sim.trips").fault == "unsupported"
    assert UsageError("x", code="sim.trips").json()["fault"] == ""
    assert Finding("no.such", "x", None).fault == ""
    with pytest.raises(Bug, match="no fault 'odd'"):
        declare("test.odd", "x", fault="odd")
