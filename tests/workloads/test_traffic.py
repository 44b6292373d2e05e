"""Traffic: its statistics, trace files, and what is refused."""

import numpy as np
import pytest

from opentrn.base import FileFormatError, MissingFileError, UsageError
from opentrn.workloads import Batcher, Traffic


def test_random_traffic_has_the_means_and_spreads_asked_for():
    found = Traffic.random(4.0, 100_000, prompt=500, answer=80, spread=0.5, burst=2.0, seed=1)
    gaps = np.diff(found.arrival)
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(2.0, rel=0.03)
    for column, mean in ((found.prompt, 500), (found.answer, 80)):
        assert column.mean() == pytest.approx(mean, rel=0.01)
        assert column.std() / column.mean() == pytest.approx(0.5, rel=0.02)
    again = Traffic.random(4.0, 100_000, prompt=500, answer=80, spread=0.5, burst=2.0, seed=1)
    assert (again.arrival == found.arrival).all()
    even = Traffic.random(4.0, 5, burst=0)
    assert even.arrival.tolist() == [0.25, 0.5, 0.75, 1.0, 1.25]
    assert even.rate == pytest.approx(4)


def test_parts_are_every_nth_request():
    found = Traffic.random(1.0, 10, burst=0).part(1, 4)
    assert found.arrival.tolist() == [2, 6, 10]


def test_trace_files_of_public_forms(tmp_path):
    file = tmp_path / "azure.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    found = Traffic.read(file)
    assert found.arrival.tolist() == pytest.approx([0, 4.314579], abs=1e-5)
    assert found.prompt.tolist() == [374, 396]
    assert found.answer.tolist() == [44, 109]
    file.write_text("arrival,prompt,answer\n2,10,0\n1,20,5\n")
    found = Traffic.read(file)
    assert found.arrival.tolist() == [0, 1]
    assert found.answer.tolist() == [5, 1]


def test_bad_traces_name_the_line(tmp_path):
    file = tmp_path / "t.csv"
    for text, words in (
        ("arrival,prompt\n1,2\n", "no column answer"),
        ("arrival,prompt,answer\n", "no requests"),
        ("", "no column arrival"),
        ("arrival,prompt,answer\n1,2,3\n2,x,3\n", "line 3"),
        ("arrival,prompt,answer\nsoon,2,3\n", "line 2"),
        ("arrival,prompt,answer\n1,2\n", "line 2"),
    ):
        file.write_text(text)
        with pytest.raises(FileFormatError, match=words):
            Traffic.read(file)
    with pytest.raises(MissingFileError):
        Traffic.read(tmp_path / "none.csv")
    for call in (
        lambda: Traffic.random(0, 10),
        lambda: Traffic.random(1, 0),
        lambda: Traffic.random(1, 10, burst=-1),
        lambda: Traffic(np.array([2.0, 1.0]), np.ones(2), np.ones(2)),
    ):
        with pytest.raises(UsageError):
            call()


def test_a_batcher_admits_while_there_is_room():
    one = Batcher(2, tokens=100, bucket=32)
    assert one.padded(33) == 64
    assert one.held(10, 5) == 15
    assert one.admits(1, 80, 20)
    assert not one.admits(1, 81, 20)
    assert not one.admits(2, 0, 1)


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(UsageError) as error:
        Traffic.random(rate, 4)
    assert error.value.code == "workloads.traffic"


@pytest.mark.parametrize("row", ["nan,10,5", "inf,10,5", "0.2,-1,5", "0.2,10,-5"])
def test_a_request_that_is_none_is_refused_with_its_line(tmp_path, row):
    (tmp_path / "t.csv").write_text(f"arrival,prompt,answer\n0.0,10,5\n{row}\n")
    with pytest.raises(FileFormatError, match=r"t\.csv, line 3"):
        Traffic.read(tmp_path / "t.csv")


def test_arrivals_that_are_no_times_are_refused():
    with pytest.raises(UsageError):
        Traffic(np.array([0.0, np.nan]), np.array([1, 1]), np.array([1, 1]))
