"""Saved summaries: what is damaged is refused with the place, whatever the damage."""

import copy
import json

import pytest

from opentrn.base import FileFormatError
from opentrn.profiler import from_json, load_summary, report, save_summary, summarize
from tests.profiler import traces

ODD = (None, "x", -1, 1.5, [], {}, True, float("nan"))


@pytest.fixture(scope="module")
def saved():
    at = {"file": "k.py", "line": 3, "text": "x"}
    finding = {"code": "sim.race", "what": "two writes", "at": at, "rule": "one at a time",
               "fix": "wait", "fault": "undefined"}  # fmt: skip
    found = summarize(traces.page(), "trn2", findings=[finding]).json()
    found["reloads"] = [{"name": "w", "nbytes": 8, "read": 16, "distinct": 8,
                         "where": {"file": "k.py", "line": 4}}]  # fmt: skip
    found["metrics"]["hbm_reload_bytes"] = {"value": 8, "unit": "B"}
    return json.loads(json.dumps(found))


def places(data, path=()):
    """The path of every part of `data`."""
    for key in data if isinstance(data, dict) else range(len(data)):
        yield (*path, key)
        if isinstance(data[key], dict | list):
            yield from places(data[key], (*path, key))


def changed(data, path, value):
    """A copy with another value at the path."""
    made = part = copy.deepcopy(data)
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return made


def test_whatever_stands_in_a_place_the_summary_is_reported_or_refused(saved):
    assert report(from_json(saved)).startswith("a kernel on trn2")
    refused = 0
    for path in places(saved):
        for value in ODD:
            try:
                report(from_json(changed(saved, path, value)))
            except FileFormatError:
                refused += 1
    assert refused > 1000


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("metrics", "total_time", "value"), "x", "metrics.total_time.value is 'x', not a number"),
        (("metrics", "total_time"), {}, "metrics.total_time has no 'value'"),
        (("bound", "kind"), "luck", "bound.kind is 'luck', not one of engine, dma, latency"),
        (("idle", "dma"), 3, "idle.dma is 3, not an object"),
        (("top_lines", 0, "line"), 1.5, "top_lines[0].line is 1.5, not a whole number"),
        (("findings", 0), 1, "findings[0] is 1, not an object"),
        (("schema",), "other/2", "its schema is 'other/2', not 'opentrn.summary/1'"),
    ],
)
def test_the_place_is_named(saved, path, value, said):
    with pytest.raises(FileFormatError) as raised:
        from_json(changed(saved, path, value))
    assert raised.value.what.startswith(f"this is no summary: {said}")


@pytest.mark.parametrize("data", [None, 3, [1], {}, "text", {"schema": "opentrn.summary/1"}])
def test_what_is_no_summary_at_all(data):
    with pytest.raises(FileFormatError, match="this is no summary: "):
        from_json(data)


def test_a_file_that_was_cut_off(saved, tmp_path):
    path = save_summary(from_json(saved), tmp_path / "s.json")
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(FileFormatError, match=r"s\.json is not JSON"):
        load_summary(path)


def test_a_summary_with_parts_of_a_later_version_is_read(saved):
    assert from_json({**saved, "later": [1]}).program == "a kernel"
    old = {name: part for name, part in saved.items() if name not in ("reloads", "findings")}
    assert from_json(old).reloads == ()
