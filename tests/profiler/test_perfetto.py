"""Trace files: parsed by an ordinary JSON reader and compared with the trace."""

import json

import pytest

from opentrn.base import Bug, MissingFileError, Trace, Where
from opentrn.profiler import save_perfetto
from tests.profiler import traces


def written(trace, tmp_path):
    path = save_perfetto(trace, tmp_path / "trace.json")
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]
    return json.loads(path.read_text(encoding="utf-8"))


def worked(events):
    """The slices of work, without those of waits."""
    return [e for e in events if e["ph"] == "X" and e.get("cat") != "semaphore"]


def test_every_event_is_there(tmp_path):
    trace = traces.page()
    data = written(trace, tmp_path)
    assert data["displayTimeUnit"] == "ns"
    assert data["otherData"] == {"program": "a kernel", "target": "trn2"}
    names = {e["tid"]: e["args"]["name"] for e in data["traceEvents"] if e["name"] == "thread_name"}
    tracks = [name for name in names.values() if not name.endswith(" semaphores")]
    assert tracks == ["tensor", "vector", "sync", "dma.q0", "dma.q1"]
    events = worked(data["traceEvents"])
    assert len(events) == len(trace)
    for event, row in zip(events, trace, strict=True):
        assert names[event["tid"]] == row.track
        assert event["ts"] == pytest.approx(row.start / 1e3)
        assert event["dur"] == pytest.approx(row.duration / 1e3)
        assert event["name"] == f"{row.name} {row.label}".strip()
        args = event["args"]
        assert args["line"] == str(row.where)
        assert args["flops"] == row.flops
        assert (args["bytes_read"], args["bytes_written"]) == (row.bytes_read, row.bytes_written)
        assert args.get("waited_for", "") == row.waited_for
        assert args["grade"] == row.grade


def test_arrows_lead_from_what_was_waited_for_to_what_waited(tmp_path):
    trace = traces.dependency_bound()
    events = written(trace, tmp_path)["traceEvents"]
    slices = worked(events)
    begins = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    # Load, matmul, copy, store, twice: all but the first wait for the one before them.
    assert sorted(begins) == sorted(ends) == list(range(1, 8))
    for number, end in ends.items():
        begin, before, waiter = begins[number], slices[number - 1], slices[number]
        assert (begin["tid"], end["tid"]) == (before["tid"], waiter["tid"])
        assert before["ts"] <= begin["ts"] < before["ts"] + before["dur"]
        assert end["ts"] == waiter["ts"]


def test_each_engine_has_a_track_of_its_waits_for_semaphores(tmp_path):
    events = written(traces.dependency_bound(), tmp_path)["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    waits = [e for e in events if e["ph"] == "X" and e.get("cat") == "semaphore"]
    assert {names[e["tid"]] for e in waits} == {"tensor semaphores", "vector semaphores"}
    number = {name: tid for tid, name in names.items()}
    for engine in ("tensor", "vector"):
        work = [e for e in worked(events) if e["tid"] == number[engine]]
        own = [e for e in waits if e["tid"] == number[f"{engine} semaphores"]]
        # Both waits of either engine fill the time from its last work to the next.
        ends = [0.0] + [e["ts"] + e["dur"] for e in work]
        assert [e["ts"] for e in own] == pytest.approx(ends[: len(own)])
        assert [e["ts"] + e["dur"] for e in own] == pytest.approx([e["ts"] for e in work])
        assert [e["args"]["line"] for e in own] == [e["args"]["line"] for e in work]
    assert {e["name"].split(" #")[0] for e in waits if e["tid"] == number["tensor semaphores"]} == {
        "wait for dma: dma_copy"
    }


def test_counters(tmp_path):
    trace = traces.page()
    data = written(trace, tmp_path)
    points = [e for e in data["traceEvents"] if e["ph"] == "C" and e["name"] == "sbuf_bytes"]
    assert [p["args"]["bytes"] for p in points] == [131072, 262144, 0]
    assert [p["ts"] for p in points] == pytest.approx([t / 1e3 for t, _ in
                                                       trace.counters["sbuf_bytes"]])  # fmt: skip


def test_overlapping_transfers_get_tracks_of_their_own(tmp_path):
    made = traces.Maker()
    for start, end in ((0, 10), (5, 20), (6, 7), (10, 12), (21, 30)):
        made.move(start, end, 64)
    data = written(made.trace, tmp_path)
    events = [e for e in data["traceEvents"] if e["ph"] == "X"]
    assert [e["tid"] for e in events] == [1, 2, 3, 1, 1]
    names = [e["args"]["name"] for e in data["traceEvents"] if e["name"] == "thread_name"]
    assert names == ["dma.q0", "dma.q0 (2)", "dma.q0 (3)"]


def test_ends_never_pass_the_next_start(tmp_path):
    made = Trace()
    edge = 0.0
    for n in range(1, 200):
        made.add("tensor", "nc_matmul", edge, edge + 1000 / 7 / n)
        edge += 1000 / 7 / n
    events = [e for e in written(made, tmp_path)["traceEvents"] if e["ph"] == "X"]
    ps = [(round(e["ts"] * 1e6), round((e["ts"] + e["dur"]) * 1e6)) for e in events]
    assert all(one[1] == two[0] for one, two in zip(ps, ps[1:], strict=False))


NAMES = ['say "hi"', "back\\slash", "line\nbreak", "tab\t", "näme → x", "\x00\x1f", "</script>"]


@pytest.mark.parametrize("name", NAMES)
def test_odd_names(tmp_path, name):
    trace = Trace({"program": name, "target": name, "odd": object, "share": float("nan")})
    trace.add(name, name, 0, 1, label=name, where=Where(name[1:], 3, name), waited_for=name)
    trace.count(name, 0.5, 2)
    data = written(trace, tmp_path)
    event = next(e for e in data["traceEvents"] if e["ph"] == "X")
    assert event["name"] == f"{name} {name}"
    assert event["args"]["waited_for"] == name
    assert event["args"]["line"].endswith(f":3 in {name}")
    assert data["otherData"]["program"] == name
    assert any(e["name"] == name for e in data["traceEvents"] if e["ph"] == "C")


def test_many_events(tmp_path):
    trace = Trace()
    for n in range(20001):
        trace.add("vector", "tensor_copy", n, n + 1)
    data = written(trace, tmp_path)
    assert sum(e["ph"] == "X" for e in data["traceEvents"]) == 20001


def test_nothing_is_left_of_a_failure(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("old")
    trace = Trace()
    trace.add("tensor", "nc_matmul", 0, 1, waited_for=3)  # not text: writing it fails
    with pytest.raises((TypeError, Bug)):
        save_perfetto(trace, path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]
    with pytest.raises(MissingFileError) as raised:
        save_perfetto(traces.page(), tmp_path / "no" / "trace.json")
    assert raised.value.code == "base.no_folder"


def test_an_empty_trace_is_a_file_too(tmp_path):
    assert [e["ph"] for e in written(Trace(), tmp_path)["traceEvents"]] == ["M"]
