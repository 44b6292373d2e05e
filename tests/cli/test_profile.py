"""`opentrn profile`: formats, comparisons, targets and what-ifs."""

import csv
import io
import json

import pytest

KERNEL = """
import ml_dtypes, nki, nki.isa as nisa, nki.language as nl, numpy as np, sys

@nki.jit
def product(a, b):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    left = nl.ndarray((128, 128), dtype=a.dtype, buffer=nl.sbuf)
    right = nl.ndarray((128, 512), dtype=b.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=a)
    nisa.dma_copy(dst=right, src=b)
    acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=acc, stationary=left, moving=right)
    done = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=done, src=acc)
    nisa.dma_copy(dst=out, src=done)
    return out

product(np.ones((128, 128), np.float32), np.ones((128, 512), np.float32))
print("arguments", *sys.argv[1:])
"""
HALF = KERNEL.replace("np.ones((128, 128), np.float32), np.ones((128, 512), np.float32)",
                      "np.ones((128, 128), ml_dtypes.bfloat16), "
                      "np.ones((128, 512), ml_dtypes.bfloat16)")  # fmt: skip


@pytest.fixture
def kernel(script):
    return script(KERNEL, "kernel.py")


def test_options_may_follow_the_file_and_the_rest_is_the_scripts(opentrn, kernel):
    result = opentrn("profile", kernel, "--memory", "one", "--two", "--", "--json")
    assert (result.status, result.err) == (0, "")
    assert "arguments one --two --json" in result.out.splitlines()
    # left takes 512 and right 2048 bytes of a partition; done begins when both have been used.
    fullest = next(line for line in result.out.splitlines() if line.startswith("SBUF"))
    assert "2.50 KiB of 208 KiB in each partition (1 %), 2 tiles alive" in fullest
    assert any("right [128, 512] float32  kernel.py:8" in line for line in result.out.splitlines())


def test_summary_json_has_the_names_of_neuron_profile(opentrn, kernel):
    found = json.loads(opentrn("profile", kernel, "--output-format", "summary-json").out)
    assert found["hbm_read_bytes"] == (128 * 128 + 128 * 512) * 4
    assert found["hardware_flops"] == 2 * 128 * 128 * 512
    assert found["matmul_instruction_count"] == 1


def test_the_instructions_as_csv(opentrn, kernel):
    rows = list(csv.DictReader(io.StringIO(opentrn("profile", kernel, "--format", "csv").out)))
    assert [row["opcode"] for row in rows] == [
        "dma_copy", "dma_copy", "nc_matmul", "tensor_copy", "dma_copy",
    ]  # fmt: skip
    assert [row["engine"] for row in rows] == ["sync", "sync", "tensor", "vector", "sync"]
    load, multiply, copy = rows[1], rows[2], rows[3]
    assert load["operands"] == "dst=sbuf #4[128, 512] float32; src=hbm b[128, 512] float32"
    assert (load["hbm_read_bytes"], load["sbuf_write_bytes"]) == ("262144", "262144")
    assert (load["dma_queue"], load["psum_write_bytes"]) == ("dma.q0", "0")
    assert float(load["dma_trigger_end_ts"]) > float(load["dma_trigger_start_ts"]) > 0
    assert multiply["raw_flops"] == str(2 * 128 * 128 * 512)
    assert multiply["adjusted_flops"] == str(4 * 2 * 128 * 128 * 512)  # float32 in four passes
    assert multiply["waited_for"] == "dma: dma_copy #1"
    assert multiply["nki_source_location"].endswith("kernel.py:12")
    assert float(multiply["start_ts"]) >= float(load["dma_trigger_end_ts"])
    assert copy["waited_for"] == "semaphore: nc_matmul #2"
    assert float(copy["start_ts"]) >= float(multiply["end_ts"])


def test_one_file_for_each_format(opentrn, kernel, tmp_path):
    for form, name in (("json", "a.json"), ("perfetto", "b.json"), ("summary-text", "c.txt")):
        assert opentrn("profile", kernel, "--format", form, "-o", name).status == 0
    table = json.loads((tmp_path / "a.json").read_text())
    assert table["schema"] == "opentrn.instructions/1"
    assert table["instructions"]["opcode"].count("dma_copy") == 3
    assert set(table["instructions"]) == set(table["columns"])
    assert "traceEvents" in json.loads((tmp_path / "b.json").read_text())
    assert (tmp_path / "c.txt").read_text().startswith("product on trn2")
    assert opentrn("profile", kernel, "--format", "csv", "--out", "d").status == 0
    assert (tmp_path / "d" / "0-product.csv").read_text().startswith("id,start_ts,end_ts")


def test_parquet_asks_for_a_file_and_for_pyarrow(opentrn, kernel, tmp_path):
    result = opentrn("profile", kernel, "--format", "parquet")
    assert (result.status, result.err.splitlines()[0]) == (
        2, "a Parquet table is not text to print",
    )  # fmt: skip
    result = opentrn("profile", kernel, "--format", "parquet", "-o", "t.parquet")
    try:
        from pyarrow import parquet
    except ImportError:
        assert result.status == 1
        assert "pip install 'opentrn[report]'" in result.err
    else:
        assert result.status == 0
        table = parquet.read_table(tmp_path / "t.parquet")
        assert table.column("opcode").to_pylist().count("dma_copy") == 3
        rows = csv.DictReader(io.StringIO(opentrn("profile", kernel, "--format", "csv").out))
        assert [{n: "" if v is None else str(v) for n, v in row.items()}
                for row in table.to_pylist()] == list(rows)  # fmt: skip


def test_comparing_two_scripts_and_a_saved_summary(opentrn, kernel, script):
    half = script(HALF, "half.py")
    result = opentrn("profile", kernel, "--compare", half)
    assert result.status == 0
    rows = {line.split("  ")[0]: line for line in result.out.splitlines()}
    assert "product on trn2  product on trn2" in result.out
    read = rows["hbm_read_bytes"].split()
    assert read[1:] == ["320", "KiB", "160", "KiB", "0.50", "x"]
    assert "x as fast" in result.out
    assert opentrn("profile", half, "--out", "saved").status == 0
    again = opentrn("profile", kernel, "--compare", "saved/0-product.summary.json")
    assert [r for r in again.out.splitlines() if "KiB" in r] == [
        r for r in result.out.splitlines() if "KiB" in r
    ]
    assert opentrn("profile", "saved/0-product.summary.json").out.startswith("product on trn2")
    refused = opentrn("profile", "saved/0-product.summary.json", "--format", "csv")
    assert refused.status == 2
    assert refused.err.startswith("a saved summary holds no events")


def test_bad_files(opentrn, script, tmp_path):
    script('{"schema": "other"}', "a.json")
    script("no executable", "b.trn")
    script("print('nothing to profile')", "none.py")
    script(
        "import nki, numpy as np\nk = nki.jit(lambda x: x)\nk(np.zeros((4, 4), np.float32))\n",
        "empty.py",
    )
    for name, code, status in (
        ("a.json", "profiler.summary_file", 1), ("b.trn", "isa.executable", 1),
        ("c.json", "profiler.no_file", 2), ("c.trn", "isa.no_executable", 2),
    ):  # fmt: skip
        result = opentrn("profile", name)
        assert (result.status, result.out) == (status, "")
        assert f"opentrn explain {code}" in result.err
    refused = opentrn("profile", "b.trn", "--taget", "trn1")
    assert refused.status == 2
    assert refused.err.startswith("b.trn is no script and takes no arguments: --taget trn1")
    result = opentrn("profile", "none.py", "--report", "none.html")
    assert result.status == 2
    assert result.err.startswith("no kernel ran in none.py\n")
    assert "opentrn explain profiler.no_kernel" in result.err
    assert not (tmp_path / "none.html").exists()
    result = opentrn("profile", "empty.py", "--kernel", "zzz")
    assert result.status == 2
    assert result.err.startswith("no kernel named *zzz* ran in empty.py\n")
    assert "  fix   kernels that ran: <lambda>" in result.err
    result = opentrn("profile", "empty.py", "--compare", "nofile")
    assert result.status == 2
    assert result.err.startswith("there is no file nofile to compare with\n")
    assert result.out == ""


def test_a_kernel_without_instructions_has_no_profile(opentrn, script, tmp_path):
    empty = "import nki, numpy as np\ndef same(x):\n    return x\n"
    empty += "nki.jit(same)(np.zeros((4, 4), np.float32))\n"
    script(empty, "empty.py")
    for more in (["--report", "empty.html", "--memory"], ["--json"], ["--out", "d"],
                 ["--target", "trn1,trn2"], ["--format", "perfetto"]):  # fmt: skip
        result = opentrn("profile", "empty.py", *more)
        assert (result.status, result.out) == (2, "")
        assert "the kernel of empty.py has no instructions: same" in result.err
        assert "profiler.empty" in result.err
    assert not (tmp_path / "empty.html").exists()
    script(KERNEL + empty, "both.py")
    result = opentrn("profile", "both.py")
    assert (result.status, result.err) == (0, "left out, for they have no instructions: same\n")
    assert "product on trn2" in result.out
    assert "same on trn2" not in result.out


def test_what_a_script_prints_is_shown_once_for_all_targets(opentrn, kernel, script):
    result = opentrn("profile", kernel, "--target", "trn1,trn2,trn3", "--", "x")
    assert result.out.splitlines().count("arguments x") == 1
    script(KERNEL + "print(nki.isa.get_nc_version())\n", "version.py")
    lines = opentrn("profile", "version.py", "--target", "trn1,trn2").out.splitlines()
    assert lines.count("arguments") == 2  # they differ: both are shown, the second by its name
    assert lines.index("on trn2 the script printed:") > lines.index("arguments")
    told = json.loads(opentrn("profile", kernel, "--target", "trn1,trn2", "--json").out)
    assert set(told["columns"]) == {"trn1", "trn2"}


def test_targets_side_by_side(opentrn, kernel):
    result = opentrn("profile", kernel, "--target", "trn1,trn2,gen4")
    assert result.status == 0
    head = next(line for line in result.out.splitlines() if line.startswith("   "))
    assert head.split("product on ")[1:] == ["trn1  ", "trn2  ", "trn3"]
    told = json.loads(opentrn("profile", kernel, "--target", "trn1,trn3", "--json").out)
    one, three = (told["columns"][name][0] for name in ("trn1", "trn3"))
    assert (one["target"], three["target"]) == ("trn1", "trn3")
    assert one["metrics"]["total_time"] != three["metrics"]["total_time"]


def test_a_target_that_refuses_says_why_beside_the_others(opentrn, script):
    wide = KERNEL.replace("128, 512", "128, 1024").replace("nl.psum", "nl.psum, name='acc'")
    path = script(wide, "wide.py")
    result = opentrn("profile", path, "--target", "trn2,trn3")
    assert result.status == 0
    refused = next(line for line in result.out.splitlines() if line.startswith("trn2: refused"))
    assert refused.endswith("too big: N = 1024, at most 512 on trn2")
    assert "product on trn3" in result.out


def test_what_if(opentrn, kernel):
    result = opentrn("profile", kernel, "--set", "trn2.dma.start=0.1us", "--json")
    told = json.loads(result.out)["columns"]
    known, assumed = told["kernel.py"][0], told["kernel.py as assumed"][0]
    assert assumed["assumed"] == {"dma.start": "0.1us"}
    assert known["assumed"] == {}
    # Two transfers one after the other are on the path; each starts in 1.3 us, of which the issue
    # is the larger part of what is left.
    assert assumed["metrics"]["total_time"]["value"] < known["metrics"]["total_time"]["value"]
    text = opentrn("profile", kernel, "--set", "dma.start=0.1us").out
    assert "product on trn2 as assumed" in text
    assert "assumed: trn2 dma.start = 0.1us" in text.splitlines()


@pytest.mark.parametrize(
    ("setting", "status", "code"),
    [
        ("trn2.hbm_bandwidth=4THz", 2, "hw.dimension"),
        ("trn2.hbm_bandwith=4TB/s", 2, "hw.fact"),
        ("trn2.hbm_bandwidth", 2, "hw.setting"),
        ("trn2.hbm_bandwidth=4", 2, "hw.bare"),
        ("trn2.hbm_bandwidth=0TB/s", 2, "hw.zero"),
        ("dma.engine_rate=nan GB/s", 2, "hw.unit"),
        ("trn1.hbm_bandwidth=4TB/s", 2, "profiler.options"),
        ("tensor.columns=many", 2, "hw.dimension"),
    ],
)
def test_what_if_refuses_before_anything_runs(opentrn, kernel, setting, status, code):
    result = opentrn("profile", kernel, "--set", setting)
    assert (result.status, result.out) == (status, "")
    assert f"more  opentrn explain {code}" in result.err
    if code in ("hw.bare", "hw.dimension", "hw.unit") and "bandwidth" in setting:
        assert "TB/s" in next(line for line in result.err.splitlines() if "  fix " in line)


TWO_QUEUES = """
import nki, nki.isa as nisa, nki.language as nl, numpy as np

@nki.jit
def both(x, y):
    out = nl.ndarray(y.shape, dtype=y.dtype, buffer=nl.shared_hbm)
    large = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    small = nl.ndarray(y.shape, dtype=y.dtype, buffer=nl.sbuf)
    hardware = nisa.dge_mode.hwdge
    nisa.dma_copy(dst=large, src=x, engine=nisa.engine.sync, dge_mode=hardware)
    nisa.dma_copy(dst=small, src=y, engine=nisa.engine.scalar, dge_mode=hardware)
    nisa.tensor_scalar(dst=small, data=small, op0=nl.add, operand0=1.0)
    nisa.dma_copy(dst=out, src=small)
    return out

both(np.ones((128, 8192), np.float32), np.ones((128, 128), np.float32))
"""


def ends(result):
    """When each transfer is done, ns, in program order."""
    rows = csv.DictReader(io.StringIO(result.out))
    return [float(row["dma_trigger_end_ts"]) for row in rows if row["dma_trigger_end_ts"]]


def test_queues_in_turn_let_a_small_load_pass_a_large_one(opentrn, script):
    file = script(TWO_QUEUES, "two.py")
    arrival = ends(opentrn("profile", file, "--format", "csv"))
    turns = ends(opentrn("profile", file, "--format", "csv", "--queues", "turns"))
    # 32 KiB of each partition, 8 partitions an engine, 23 GB/s: 11.4 us that the small one waits.
    moved = 8 * 32768 / 23
    assert arrival[1] > arrival[0] > moved
    assert turns[1] < arrival[1] - 0.8 * moved
    # Both together are as long: the small one's bytes delay the large one.
    assert turns[0] == pytest.approx(arrival[1], rel=0.02)


def test_queues_of_what_was_timed_already_and_unknown_ways_are_refused(opentrn, script, tmp_path):
    file = script(TWO_QUEUES, "two.py")
    opentrn("profile", file, "--out", str(tmp_path / "kept"))
    (saved,) = (tmp_path / "kept").glob("*.summary.json")
    refused = opentrn("profile", str(saved), "--queues", "turns")
    assert refused.status == 2
    assert "has been timed already" in refused.err
    assert opentrn("profile", file, "--queues", "luck").status == 2
