"""`opentrn plan` and `opentrn compare` as users call them."""

import json
import re


def test_plan_prints_the_promised_json(opentrn):
    done = opentrn("plan", "llama-3.1-70b", "--train", "--tokens", "15e12", "--on",
                   "trn2.48xlarge", "--count", "64", "--json")  # fmt: skip
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert {"plans", "rejected"} <= found.keys()
    for one in found["plans"]:
        assert {"mfu", "step_time_s", "cost_usd", "split", "memory_per_core",
                "breakdown"} <= one.keys()  # fmt: skip
        total = sum(one["breakdown"].values())
        assert abs(total - one["step_time_s"]) < 1e-9 * total
        held = one["memory_per_core"]
        assert held["total"] <= held["capacity"]
        split = one["split"]
        assert split["tp"] * split["cp"] * split["pp"] * split["dp"] * split["lnc"] == 64 * 128
    assert all(row["reason"] for row in found["rejected"])


def test_plan_of_a_config_json(opentrn, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 512, "vocab_size": 1000,
        "num_attention_heads": 8, "intermediate_size": 1024}))  # fmt: skip
    done = opentrn("plan", "config.json", "--on", "trn1.2xlarge", "--batch", "16",
                   "--sequence", "512")  # fmt: skip
    assert done.status == 0, done.err
    assert re.search(r"^why not *$", done.out, re.M)
    stored = json.loads((tmp_path / "config.json").read_text())
    stored["quantization_config"] = {"quant_method": "fp8"}
    (tmp_path / "stored.json").write_text(json.dumps(stored))
    for kind in ("--serve", "--fit"):
        assert "stored as fp8" in opentrn("plan", "stored.json", kind).out
        told = opentrn("plan", "stored.json", kind, "--weight-bytes", "1")
        assert "stored as" not in told.out + told.err
    (tmp_path / "twice.json").write_text('{"vocab_size": 1, "vocab_size": 2}')
    assert "'vocab_size' stands there twice" in opentrn("plan", "twice.json").err
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    done = opentrn("plan", "config.json")
    assert done.status == 1
    assert "num_hidden_layers, hidden_size, vocab_size" in done.err


def test_fit_and_serve(opentrn):
    done = opentrn("plan", "llama-3.1-8b", "--fit", "--on", "trn1.2xlarge")
    rows = [line.split() for line in done.out.splitlines() if line.strip()[:1] in ("1", "2")]
    assert [row[:4] for row in rows] == [["1", "does", "not", "fit"], ["2", "fits", "8.03", "0.54"]]
    done = opentrn("plan", "llama-3.1-8b", "--serve", "--on", "trn2.3xlarge", "--json")
    assert json.loads(done.out)["plans"][0]["tpot_s"] <= 0.05


def test_refusals_are_short_and_have_codes(opentrn):
    for arguments, code, status in (
        (("llama-9",), "workloads.unknown", 2),
        (("llama-3.1-8b", "--count", "0"), "cli.usage", 2),
        (("llama-3.1-8b", "--tokens", "-5"), "plan.request", 2),
        (("llama-3.1-405b", "--count", "1"), "plan.memory", 1),
        (("llama-3.1-8b", "--tokens", "15e12", "--deadline", "1d"), "plan.limit", 1),
        (("llama-3.1-8b", "--on", "tnr2"), "cost.platform", 2),
    ):
        done = opentrn("plan", *arguments)
        assert (done.status, code in done.err) == (status, True), (arguments, done.err)
        assert "Traceback" not in done.err
    assert opentrn("plan", "llama-3.1-8b", "--deadline", "soon").status == 2


def test_compare_puts_machines_side_by_side(opentrn):
    done = opentrn("compare", "--job", "llama-3.1-8b", "--tokens", "1e12", "--json",
                   "trn1", "trn2", "p5")  # fmt: skip
    assert done.status == 0, done.err
    rows = json.loads(done.out)["machines"]
    assert [row["machine"] for row in rows] == ["trn1.32xlarge", "trn2.48xlarge", "p5.48xlarge"]
    for row in rows:
        assert row["fits"]
        assert abs(sum(row["plan"]["grades"].values()) - 1) < 1e-9
        assert row["assumptions"]


def test_pages_of_plans_and_comparisons(opentrn, tmp_path):
    for file, arguments in (
        ("a.html", ("plan", "llama-3.1-8b", "--tokens", "1e12", "--page", "a.html")),
        ("b.html", ("plan", "llama-3.1-8b", "--serve", "--on", "trn2.3xlarge", "--page", "b.html")),
        ("c.html", ("compare", "--job", "llama-3.1-8b", "trn2", "p5", "--page", "c.html")),
    ):
        done = opentrn(*arguments)
        assert done.status == 0, done.err
        assert (tmp_path / file).read_text(encoding="utf-8").count("<svg") >= 3
    done = opentrn("plan", "llama-3.1-8b", "--fit", "--page", "d.html")
    assert (done.status, "--page does nothing" in done.err) == (2, True)


def test_a_refusal_names_the_nearest_thing_that_is_possible(opentrn):
    for arguments, words in (
        (("--on", "trn2.3xlarge"), "128 x trn2.3xlarge would fit"),
        (("--serve", "--on", "trn2.3xlarge"), "16 x trn2.3xlarge would fit"),
        (("--batch", "1", "--on", "trn1.2xlarge"), "16 x trn1.32xlarge would fit"),
        (("--sequence", "1000000000"), "nothing up to 131,072 devices fits"),
        (("--count", "64", "--tokens", "1e12", "--budget", "1000"), "the budget would pay"),
        (("--count", "64", "--tokens", "1e12", "--deadline", "60d"), "x trn2.48xlarge would do"),
        (("--count", "64", "--tokens", "1e12", "--deadline", "1h"), "no number tried keeps it"),
    ):
        done = opentrn("plan", "llama-3.1-405b", *arguments)
        assert (done.status, words in done.err) == (1, True), (arguments, done.err)
    # What is named does fit.
    assert opentrn("plan", "llama-3.1-405b", "--on", "trn2.3xlarge", "--count", "128").status == 0


def test_numbers_that_cannot_be_and_options_that_do_nothing(opentrn):
    for arguments, words in (
        (("--tokens", "nan"), "tokens is nan"),
        (("--tokens", "inf"), "tokens is inf"),
        (("--serve", "--prompt", "-5"), "-5 is not in the range x>=1"),
        (("--serve", "--tpot", "0"), "tpot is 0"),
        (("--serve", "--weight-bytes", "0"), "weight is 0"),
        (("--batch", "0"), "at    command line:1"),
        (("--serve", "--budget", "5"), "--budget does nothing with --serve"),
        (("--train", "--serve", "--fit"), "give one of --train, --serve, --fit"),
        (("--serve", "--fit"), "give one of --serve, --fit"),
        (("--fit", "--count", "5"), "--count does nothing with --fit"),
        (("--prompt", "5"), "--prompt does nothing with --train"),
        (("--tokens", "1e9", "--deadline", "-1d"), "no time"),
        (("--tokens", "1e9", "--deadline", "infd"), "no time"),
        (("--tokens", "1e9", "--deadline", "nand"), "no time"),
        (("--tokens", "1e9", "--budget", "-1"), "budget is -1"),
    ):
        done = opentrn("plan", "llama-3.1-8b", *arguments)
        assert (done.status, words in done.err) == (2, True), (arguments, done.err)
    done = opentrn("compare", "--job", "llama-3.1-8b", "--chips", "0", "trn1")
    assert (done.status, "0 is not in the range x>=1" in done.err) == (2, True)


def test_files_of_prices_that_are_none(opentrn, tmp_path):
    (tmp_path / "garbage.csv").write_bytes(b"\xff\xfe\x00,1,2\n")
    (tmp_path / "words.toml").write_text("price, 5\n")
    for file, words, status in (
        ("garbage.csv", "is no text", 1), ("words.toml", "hw.toml", 1),
        ("gone.toml", "hw.file", 2), (".", "hw.file", 2),
    ):  # fmt: skip
        done = opentrn("plan", "llama-3.1-8b", "--tokens", "1e9", "--prices", file)
        assert (done.status, words in done.err) == (status, True), (file, done.err)
        assert len(done.err.strip().splitlines()) == 5, done.err


def test_a_model_that_no_degree_fits_has_status_1(opentrn):
    done = opentrn("plan", "llama-3.1-405b", "--fit", "--on", "trn1.2xlarge")
    assert (done.status, done.err) == (1, "")
    assert not json.loads(
        opentrn("plan", "llama-3.1-405b", "--fit", "--on", "trn1.2xlarge", "--json").out
    )["fits"]
    assert opentrn("plan", "llama-3.1-8b", "--fit").status == 0


def test_an_old_price_is_flagged_everywhere(opentrn, tmp_path):
    (tmp_path / "old.toml").write_text(
        '[[price]]\nbasis = "on-demand"\nregion = "us-east-1"\ndate = "2020-07-20"\n'
        'hourly = "20 $/h"\nsource = "mine"\ngrade = "stated"\n[sources]\nmine = "a contract"\n'
    )
    for arguments in (
        ("plan", "llama-3.1-8b"), ("plan", "llama-3.1-8b", "--serve"),
        ("compare", "--job", "llama-3.1-8b", "trn2"),
    ):  # fmt: skip
        told = opentrn(*arguments, "--prices", "old.toml")
        assert re.search(r"price of .* is [0-9,]+ days old", told.out), told
