"""Claims: verdicts beside arithmetic done here from the published numbers."""

import re
import tomllib

import pytest

from opentrn import cost, hw
from opentrn.base import UnknownNameError
from opentrn.commands.features import FEATURES
from opentrn.cost import checks, claims

VERDICTS = {
    # announced in December, 190 TF, 667 TF and 96 GiB, 3,040 TF, 18 TB of 6.6 TB
    "A01": "contradicts source zdnet.com", "A02": "contradicts source trainium-page",
    "A04": "contradicts source trainium2-page", "A07": "contradicts source trn1-page",
    "A09": "contradicts source trn2-page",
    # 64 x 32 GB and 16 x 32 GB
    "A05": "contradicts itself", "A08": "contradicts itself",
    "A06": "agrees", "A14": "agrees", "A18": "agrees",
    "A19": "agrees", "A22": "agrees",
    # eu-west-1 is in no list; TensorFlow is archived; parallel layers are put in by hand
    "A10": "contradicts source skypilot-catalog", "A11": "contradicts source neuron-docs",
    "A12": "contradicts source tp-developer-guide", "A13": "agrees",
    "A15": "cannot be checked", "A16": "cannot be checked",
    "A20": "cannot be checked", "A21": "cannot be checked", "A23": "cannot be checked",
}  # fmt: skip


@pytest.fixture(scope="module")
def checked():
    return {claim.id: claim for claim in cost.check_claims()}


def test_all_23_claims_in_the_form_for_programs(checked):
    found = cost.claims_document(tuple(checked.values()))
    assert list(found) == ["claims"]
    assert [row["id"] for row in found["claims"]] == [f"A{n:02}" for n in range(1, 24)]
    for row in found["claims"]:
        assert list(row) == ["id", "verdict", "computed", "reason", "sources"]
        assert row["reason"]
        assert isinstance(row["sources"], list)


def test_verdicts(checked):
    assert {key: checked[key].verdict for key in VERDICTS} == VERDICTS


@pytest.mark.parametrize(
    ("claim", "numbers"),
    [
        ("A05", ["64 x 400 TFLOP/s = 25.6 PFLOP/s", "64 x 32 GB = 2.048 TB", "6144 GiB"]),
        ("A08", ["16 x 400 TFLOP/s = 6.4 PFLOP/s", "16 x 32 GB = 0.512 TB", "1536 GiB"]),
        ("A07", ["16 x 200 TFLOP/s = 3.2 PFLOP/s", "3040 TFLOP/s"]),
        ("A06", ["= 1.94", "16-bit peak: 1.01", "memory: 1.50"]),  # 2517/1299, 671/667, 144/96
        ("A18", ["98%"]),  # 77.2 of 2 * 128 * 128 * 2.4 GHz = 78.6
        ("A19", ["500,000", "334 EFLOP/s"]),  # x 667 TFLOP/s
        ("A09", ["18 TB of 6.6 TB", "8 TB of 6.6 TB"]),  # 6,144 GiB = 6.597e12 B
        ("A20", ["H100 SXM 1.48"]),  # 989 / 667
    ],
)
def test_numbers_are_those_of_the_arithmetic(checked, claim, numbers):
    for number in numbers:
        assert number in checked[claim].computed


def test_reasons_say_how_far(checked):
    assert "5.3% above the 190 TFLOP/s" in checked["A02"].reason  # 200 / 190
    assert "40.0% below the 667 TFLOP/s" in checked["A04"].reason  # 400 / 667
    assert "69.0% below the 96 GiB" in checked["A04"].reason  # 32e9 / 103.08e9
    assert checked["A05"].reason.startswith("memory 6 TB is not 64 x 32 GB")


def test_savings_by_hand(checked):
    # dollars of a PFLOP-hour at peak, capacity blocks: trn1 9.532 / 3.04, p4de 20.368 / 2.496
    best = 1 - (9.532 / 3.04) / (20.368 / 2.496)
    # on demand: trn1 21.5 / 3.04, p5 55.04 / 7.912
    worst = 1 - (21.5 / 3.04) / (55.04 / 7.912)
    assert f"saves {worst:.0%} " in checked["A14"].computed
    assert f"to {best:.0%} " in checked["A14"].computed


def test_features_are_tried_by_who_can():
    tried = []

    def attempt(works):
        return lambda: (tried.append(works), (works, "did it" if works else "could not"))[1]

    names = {c["feature"] for row in claims.data()["claim"] for c in row["checks"]
             if c["kind"] == "feature"}  # fmt: skip
    assert names == set(FEATURES)
    for works, verdict in ((True, "agrees"), (False, "cannot be checked")):
        found = cost.check_claims("A17", dict.fromkeys(names, attempt(works)))
        assert found[0].verdict == verdict
        assert ("did it" if works else "could not") in found[0].reason
    assert tried == [True, False]
    (untried,) = cost.check_claims("A17")
    assert untried.verdict == "cannot be checked"
    assert "not tried here" in untried.reason


def test_what_a_source_decides_no_trial_here_changes():
    for works in (True, False):
        (found,) = cost.check_claims("A13", {"jobs": lambda works=works: (works, "tried")})
        assert found.verdict == "agrees"
        assert "tried" in found.computed


def test_regions_are_listed_beside_those_the_claim_leaves_out(checked):
    assert "us-east-1, us-west-2, not eu-west-1" in checked["A10"].reason
    assert "us-east-2" in checked["A10"].reason.split("leaves out")[1]


@pytest.mark.parametrize("name", ["precision", "kernel", "split", "training-savings"])
def test_features_of_this_package_work(name):
    works, told = FEATURES[name]()
    assert works, told


def test_savings_of_a_training_hold_those_of_any_pair():
    from opentrn.plan import plan

    ask = {"tokens": 1e12, "batch": 512, "sequence": 4096, "basis": "on-demand"}
    ours = plan("llama-3.1-8b", "trn1.32xlarge", 4, **ask).best
    theirs = plan("llama-3.1-8b", "p4d.24xlarge", 8, **ask).best
    assert ours.cost_usd == pytest.approx(ours.hours * 4 * 21.5, rel=1e-6)
    saved = 1 - ours.cost_usd / theirs.cost_usd
    _, told = FEATURES["training-savings"]()
    low, high = (int(one) / 100 for one in re.findall(r"(-?\d+)% \(", told))
    assert low - 0.005 <= saved <= high + 0.005
    assert "of 18 reach" in told  # 2 models; on demand 1 x 3 pairs, in capacity blocks 2 x 3


def test_the_pytorch_feature_compiles_runs_and_profiles():
    pytest.importorskip("torch", reason="the extra `torch` is not installed")
    works, told = FEATURES["torch"]()
    assert works, told
    assert "profiled" in told


def test_numbers_come_from_the_hardware_files(monkeypatch):
    # With another chip behind the name, the verdict changes: nothing is written down.
    fast = hw.chip("trn1").changed("trn1-as-claimed", chip__peak_bf16="200 TFLOP/s")
    monkeypatch.setattr(checks, "_machine", lambda name: fast)
    row = {"name": "peak", "claimed": "200 TFLOP/s", "machine": "chip trn1", "fact": "peak_bf16"}
    (found,) = checks.quantity(row)
    assert found.verdict == "agrees"


def test_bytes_are_read_both_ways():
    assert checks._readings("32 GB") == [32e9, 32 * 2**30]
    assert checks._readings("200 TFLOP/s") == [200e12]


def test_the_file_names_only_kinds_and_numbers_there_are():
    page = tomllib.loads(claims.DATA.read_text(encoding="utf-8"))
    used = set()
    for row in page["claim"]:
        assert row["checks"]
        for check in row["checks"]:
            assert check["kind"] in (*checks.KINDS, "feature")
            used |= {check.get("fact")} & set(page["fact"])
    assert used == set(page["fact"])


def test_one_claim_and_an_unknown_one():
    (only,) = cost.check_claims("a05")
    assert only.id == "A05"
    assert "A05" in cost.claims_text((only,))
    with pytest.raises(UnknownNameError) as caught:
        cost.check_claims("A99")
    assert caught.value.code == "cost.claim"


def test_collective_time_is_an_estimate_with_grades():
    found = cost.collective_time("all_reduce", 1 << 30, 16, "trn1.32xlarge")
    # two rings of 48 GB/s at 69 %: 2 15/16 of a GiB, half on each
    assert found.value == pytest.approx(2 * 15 / 16 * 2**30 / 2 / 48e9 / 0.69)
    assert found.unit == "s"
    assert found.grade == "fitted"
