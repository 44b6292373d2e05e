"""`opentrn simulate` as users call it."""

import json

import pytest


def test_a_training_run_in_simulated_time(opentrn):
    arguments = ("simulate", "llama-3.1-70b", "--count", "64", "--spares", "2", "--time", "30d")
    done = opentrn(*arguments, "--json", "--runs", "2")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    first, second = found["runs"]
    assert (first["seed"], second["seed"]) == (0, 1)
    assert first["parts"] != second["parts"]
    for run in (first, second):
        assert sum(run["parts"].values()) == pytest.approx(30 * 86400)
        # 1,024 chips: a fault about every two days, so most of the time is useful.
        assert 0.95 < run["goodput"] < 1
        assert run["goodput"] == pytest.approx(run["goodput_closed_form"], abs=0.02)
        assert run["tokens"] == pytest.approx(run["steps"] * 512 * 8192)
        assert run["chips"] == 66 * 16
    done = opentrn(*arguments)
    assert f"goodput {first['goodput']:.1%}" in done.out
    assert "rates of faults as of GPUs" in done.out


def test_the_run_of_given_tokens_ends_with_them(opentrn):
    done = opentrn("simulate", "llama-3.1-8b", "--count", "8", "--tokens", "1e10", "--json",
                   "--mtbf", "chip=1000", "--set", "restart=60", "--checkpoint", "10m")  # fmt: skip
    (run,) = json.loads(done.out)["runs"]
    assert run["finished"]
    assert run["tokens"] == pytest.approx(1e10)
    # 128 chips at 1,000 h each, and little else: a fault every 7 to 8 hours.
    assert 7 * 3600 < run["mean_time_between_faults_s"] < 1000 / 128 * 3600
    assert run["checkpoint"]["every_s"] == pytest.approx(600, rel=0.05)


def test_serving_in_simulated_time(opentrn, tmp_path):
    arguments = ("simulate", "llama-3.1-8b", "--serve", "--on", "trn2.48xlarge", "--rate", "40",
                 "--requests", "6000", "--ttft", "1")  # fmt: skip
    done = opentrn(*arguments, "--json")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    serving = found["serving"]
    assert serving["requests"] == 6000
    # All that arrives is served, in the end of the run too.
    assert serving["requests_per_s"] == pytest.approx(40, rel=0.15)
    assert serving["slo"]["attainment"] > 0.9
    assert serving["tpot_s"]["p50"] < 0.05
    hourly = found["plan"]["cost_usd"] / found["plan"]["hours"]
    assert found["dollars_per_million_tokens"] == pytest.approx(
        hourly / 3600 / serving["tokens_per_s"] * 1e6
    )
    slow = opentrn(*arguments[:-5], "4000", "--requests", "3000")
    assert "more arrives than is served" in slow.out
    (tmp_path / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,1000,9\n1,900,20\n"
                                    "2,10,20\n3,10,20\n")  # fmt: skip
    done = opentrn("simulate", "llama-3.1-8b", "--serve", "--on", "trn1.32xlarge", "--trace",
                   "t.csv", "--tp", "32", "--chunk", "128")  # fmt: skip
    assert done.status == 0, done.err
    assert "4 requests" in done.out
    (tmp_path / "one.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,100,9\n")
    done = opentrn("simulate", "llama-3.1-8b", "--serve", "--trace", "one.csv", "--json")
    told = json.loads(done.out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert told["offered_requests_per_s"] is None


def test_refusals(opentrn):
    for arguments, words, status in (
        (("llama-3.1-8b",), "cluster.job", 2),
        (("llama-3.1-8b", "--time", "1d", "--mtbf", "chips=3"), "cluster.fault", 2),
        (("llama-3.1-8b", "--time", "1d", "--mtbf", "chip"), "NAME=NUMBER", 2),
        (("llama-3.1-8b", "--time", "1d", "--mtbf", "chip=3", "--mtbf", "chip=4"), "given twice",
         2),
        (("llama-3.1-8b", "--serve", "--rate", "1", "--ttft", "-1"), "ttft_s is -1", 2),
        (("llama-3.1-8b", "--serve", "--rate", "1", "--ttft", "nan"), "ttft_s is nan", 2),
        (("llama-3.1-8b", "--time", "1d", "--set", "write=0"), "cluster.setting", 2),
        (("llama-3.1-8b", "--time", "1d", "--set", "jitter=5"), "from 0 to 1", 2),
        (("llama-3.1-8b", "--time", "1d", "--set", "detect=inf"), "cluster.setting", 2),
        (("llama-3.1-8b", "--time", "1d", "--set", "read=nan"), "cluster.setting", 2),
        (("llama-3.1-8b", "--time", "1d", "--set", "nosuch=5"), "one of detect", 2),
        (("llama-3.1-8b", "--time", "1000000d"), "cluster.length", 1),
        (("llama-3.1-8b", "--train", "--serve", "--rate", "1"), "one of --train, --serve", 2),
        (("llama-3.1-8b", "--time", "0d"), "no time", 2),
        (("llama-3.1-405b", "--time", "1d"), "plan.memory", 1),
        (("llama-3.1-8b", "--serve"), "workloads.traffic", 2),
        (("llama-3.1-8b", "--serve", "--rate", "-1"), "workloads.traffic", 2),
        (("llama-3.1-8b", "--serve", "--trace", "none.csv"), "workloads.traffic", 2),
    ):
        done = opentrn("simulate", *arguments)
        assert (done.status, words in done.err) == (status, True), (arguments, done.err)
        assert "Traceback" not in done.err


def test_pages_of_simulated_runs(opentrn, tmp_path):
    for file, arguments in (
        ("a.html", ("--count", "64", "--time", "10d")),
        ("b.html", ("--serve", "--rate", "5", "--requests", "300")),
    ):
        done = opentrn("simulate", "llama-3.1-8b", *arguments, "--page", file)
        assert done.status == 0, done.err
        assert "<svg" in (tmp_path / file).read_text(encoding="utf-8")


def test_several_runs_are_summed_up_by_their_mean(opentrn):
    ask = ("simulate", "llama-3.1-8b", "--time", "10d", "--count", "4", "--runs", "3")
    told = json.loads(opentrn(*ask, "--json").out)
    goods = [run["goodput"] for run in told["runs"]]
    assert len(set(goods)) == 3
    text = opentrn(*ask).out
    assert f"goodput {sum(goods) / 3:.1%} on average of 3 runs" in text
    assert told["cost_usd"] == pytest.approx(4 * 240 * 35.7608)  # ten days of four machines
    assert "on average of 3 runs; 35.7608 $/h" in text
