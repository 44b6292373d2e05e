"""`opentrn plan` and `opentrn compare` as users call them."""

import json


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
    assert "why not:" in done.out
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    done = opentrn("plan", "config.json")
    assert done.status == 1
    assert "num_hidden_layers, hidden_size, vocab_size" in done.err


def test_fit_and_serve(opentrn):
    done = opentrn("plan", "llama-3.1-8b", "--fit", "--on", "trn1.2xlarge")
    assert "tp   1: does not fit" in done.out
    assert "tp   2: fits" in done.out
    done = opentrn("plan", "llama-3.1-8b", "--serve", "--on", "trn2.3xlarge", "--json")
    assert json.loads(done.out)["plans"][0]["tpot_s"] <= 0.05


def test_refusals_are_short_and_have_codes(opentrn):
    for arguments, code, status in (
        (("llama-9",), "workloads.unknown", 1),
        (("llama-3.1-8b", "--count", "0"), "plan.request", 2),
        (("llama-3.1-8b", "--tokens", "-5"), "plan.request", 2),
        (("llama-3.1-405b", "--count", "1"), "plan.memory", 1),
        (("llama-3.1-8b", "--tokens", "15e12", "--deadline", "1d"), "plan.limit", 1),
        (("llama-3.1-8b", "--on", "tnr2"), "cost.platform", 1),
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
    assert opentrn("plan", "llama-3.1-8b", "--fit", "--page", "d.html").status == 2
