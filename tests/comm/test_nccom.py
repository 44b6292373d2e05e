"""nccom-test: its sizes, its columns, its units, and that its check finds wrong data."""

import json

import numpy as np
import pytest

from opentrn.base import LimitError, UsageError, bfloat16, uint8
from opentrn.comm import Schedule, Send, build, nccom, place, ring, time


def told(words):
    """Status, printed lines."""
    lines = []
    return nccom.main(words.split(), lines.append), lines


def columns(line):
    return line.split()


def test_the_table_of_the_real_tool():
    status, lines = told("allr -r 32 -b 8 -e 1G -f 4 -d bf16 --check")
    assert status == 0
    assert columns(lines[0]) == [
        "size(B)", "count(elems)", "type", "time(us)", "algbw(GB/s)", "busbw(GB/s)"
    ]  # fmt: skip
    rows = [columns(line) for line in lines[1:15]]
    assert [int(row[0]) for row in rows] == [8 * 4**k for k in range(14)]  # 8 B to 512 MiB
    assert all(int(row[1]) * 2 == int(row[0]) and row[2] == "bf16" for row in rows)
    for row in rows[6:]:
        size, micros, algbw, busbw = int(row[0]), *map(float, row[3:])
        # GB are GiB; the bus factor of 32 ranks is 2 31/32
        assert algbw == pytest.approx(size / 2**30 / micros * 1e6, abs=0.02, rel=2e-3)
        assert busbw == pytest.approx(algbw * 62 / 32, abs=0.02, rel=2e-3)
    assert lines[15].startswith("Avg bus bandwidth:")
    mean = sum(float(row[5]) for row in rows) / 14
    assert float(lines[15].split("\t")[1].removesuffix("GB/s")) == pytest.approx(mean, abs=0.01)


def test_the_default_is_32_mib_of_bytes_and_two_ranks_move_half_of_them_twice():
    status, lines = told("-r 2 allr --instance trn1.32xlarge")
    row = columns(lines[1])
    assert (status, row[:3]) == (0, ["33554432", "33554432", "uint8"])
    # trn1: 2.1 us of steps and 32 MiB at 58 GB/s; both columns are the same for two ranks
    assert float(row[3]) == pytest.approx(2.1 + (32 << 20) / 58e9 * 1e6, abs=0.01)
    assert row[4] == row[5]


def test_the_report_has_the_keys_of_the_real_one(tmp_path):
    path = tmp_path / "results.json"
    told(
        "-r 32 --minbytes 1kb --maxbytes 1mb --stepfactor 8 --datatype fp32 --check allg "
        f"--report-to-json-file {path} --show-algorithm --show-input-output-size"
    )
    results = json.loads(path.read_text())["results"]
    assert [r["size(B)"] for r in results] == [1024, 8192, 65536, 524288]
    first = results[0]
    assert (first["count(elems)"], first["type"], first["algorithm"]) == (256, "fp32", "mesh")
    assert (first["total_input_size(B)"], first["total_output_size(B)"]) == (32, 1024)
    assert first["check"] == "passed"
    seconds = time("all_gather", 1024, place(32)).seconds
    assert first["time:avg(us)"] == first["time(us)"] == pytest.approx(seconds * 1e6)
    assert first["algbw(GB/s)"] == pytest.approx(1024 / 2**30 / seconds)
    assert first["busbw(GB/s)"] == pytest.approx(1024 / 2**30 / seconds * 31 / 32)


@pytest.mark.parametrize("operation", ["allr", "allg", "redsct", "alltoall", "permute"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32", "uint8", "fp8", "int32"])
def test_every_operation_checks_its_data(operation, dtype):
    status, lines = told(f"{operation} -r 8 -d {dtype} -b 4kb --check random")
    assert status == 0
    assert lines[-1].startswith("Checked: random data, 1 sizes right")


def test_the_check_finds_a_wrong_schedule():
    right = ring.all_reduce(4)
    assert nccom.check(right, 64, bfloat16) == 0
    lacking = Schedule(right.name, 4, 4, right.sends[:-1], right.keeps)
    assert nccom.check(lacking, 64, bfloat16) > 0
    # rank 0's part of chunk 0 comes to rank 2 twice: once by itself, once in the sum of rank 1
    twice = Schedule(right.name, 4, 4, (Send(0, 0, 2, 0, 0, True), *right.sends), right.keeps)
    assert nccom.check(twice, 64, uint8, "all_ones") > 0


def test_groups_of_the_case_of_four_ranks():
    # all-reduce of 1, 2, 3, 4 in groups [0, 1] and [2, 3]: 3, 3, 7, 7 and not 10
    made = build("all_reduce", place(2), "mesh")
    found = {}
    for group in ([0, 1], [2, 3]):
        held = [[np.array([r + 1.0]), np.array([r + 1.0])] for r in group]
        for rank, own in zip(group, nccom.run(made, held, np.add), strict=True):
            found[rank] = own[0][0]
    assert found == {0: 3.0, 1: 3.0, 2: 7.0, 3: 7.0}


@pytest.mark.parametrize(
    ("text", "value"),
    [("8", 8), ("2kb", 2048), ("1MB", 1 << 20), ("32M", 32 << 20), ("1G", 1 << 30)],
)
def test_sizes_are_binary(text, value):
    assert nccom.size(text) == value


def test_steps_of_bytes_are_a_tenth_of_the_range_unless_given():
    _, lines = told("allr -r 2 -b 8 -e 16 -i 4")
    assert [columns(line)[0] for line in lines[1:4]] == ["8", "12", "16"]
    _, lines = told("allr -r 2 -b 100 -e 1100")
    assert [int(columns(line)[0]) for line in lines[1:12]] == list(range(100, 1101, 100))


@pytest.mark.parametrize(
    "words",
    ["allr", "dance -r 2", "allr -r 2 -d bf17", "allr -r 2 -b 0", "allr -r 2 -b 8 -e 4",
     "allr -r 2 -f 1", "allr -r 2 -b much", "allr -r 3 -N 2", "allr -r 2 --lnc 3",
     "allr -r 512 -N 8 -c"],
)  # fmt: skip
def test_wrong_words_are_usage_errors(words):
    with pytest.raises(UsageError) as caught:
        told(words)
    assert caught.value.code in ("comm.nccom", "comm.place")


def test_too_many_ranks_say_what_would_do():
    with pytest.raises(LimitError) as caught:
        told("allr -r 100")
    assert "-N 2" in caught.value.fix
