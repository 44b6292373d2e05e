"""Prices of your own for several machines, prices by region, and machines without one."""

import pytest

from opentrn.base import FactError, UnknownNameError, UsageError
from opentrn.hw import best_price, instances, price, prices
from opentrn.plan import compare, plan, plan_serving
from opentrn.plan.price import find_price

ROW = """[[price]]
{machine}basis = "on-demand"
region = "home"
date = "2026-11-01"
hourly = "{hourly} $/h"
source = "deal"
grade = "stated"
"""
SOURCES = '[sources]\ndeal = "a contract"\n'


def written(tmp_path, *rows):
    """A price file of (machine or "", dollars an hour)."""
    text = "".join(
        ROW.format(machine=f'instance = "{name}"\n' if name else "", hourly=hourly)
        for name, hourly in rows
    )
    file = tmp_path / "mine.toml"
    file.write_text(text + SOURCES)
    return str(file)


def test_each_machine_has_its_own_price(tmp_path):
    file = written(tmp_path, ("trn3", 300), ("p5", 40))
    rows = compare("llama-3.1-8b", ["trn3", "p5", "trn2"], chips=16, prices=file)
    hourly = [row.plan.cost_usd / row.plan.hours / row.plan.count for row in rows]
    assert hourly == pytest.approx([300, 40, 35.7608])  # the last as listed


def test_a_price_for_any_machine_serves_one_and_not_several(tmp_path):
    file = written(tmp_path, ("", 10))
    best = plan("llama-3.1-8b", "trn3", 1, prices=file).best
    assert best.cost_usd == pytest.approx(best.hours * 10)
    assert compare("llama-3.1-8b", ["trn2"], prices=file)[0].plan.cost_usd > 0
    with pytest.raises(UsageError, match="does not say which machine"):
        compare("llama-3.1-8b", ["trn2", "p5"], prices=file)
    with pytest.raises(UnknownNameError, match="p7"):
        plan("llama-3.1-8b", "trn2", 1, prices=written(tmp_path, ("p7", 1)))


def test_a_cheaper_price_is_never_dearer(tmp_path):
    costs = [
        plan("llama-3.1-8b", "trn2", 1, prices=written(tmp_path, ("", hourly))).best.cost_usd
        for hourly in (1, 5, 20)
    ]
    assert costs == sorted(costs)
    assert costs[2] == pytest.approx(4 * costs[1]) == pytest.approx(20 * costs[0])


def test_a_region_alone_takes_the_first_basis_there(tmp_path):
    listed = {(p.basis, p.region): p.hourly for p in prices("trn2.48xlarge")}
    best = plan("llama-3.1-8b", "trn2", 1, region="us-east-2").best
    assert best.cost_usd / best.hours == pytest.approx(listed["capacity-block", "us-east-2"])
    best = plan("llama-3.1-8b", "trn2", 1, region="us-east-2", basis="spot").best
    assert best.cost_usd / best.hours == pytest.approx(listed["spot", "us-east-2"])
    with pytest.raises(UnknownNameError, match="no price of trn2.48xlarge is known in mars") as one:
        plan("llama-3.1-8b", "trn2", 1, region="mars")
    assert "capacity-block (us-east-2)" in one.value.fix
    with pytest.raises(UnknownNameError, match="no price basis"):
        plan("llama-3.1-8b", "p5", 1, basis="monthly")


def test_a_plan_takes_the_price_that_hw_gives():
    seen = 0
    for name in instances():
        listed = prices(name)
        assert find_price(name) == (best_price(name) if listed else None)
        for one in listed:
            for region in (None, one.region):
                assert find_price(name, one.basis, region) == price(name, one.basis, region)
                seen += 1
    assert seen > 20


def test_a_machine_without_a_price_says_what_to_do():
    for found in (plan("llama-3.1-8b", "trn3", 1), plan_serving("llama-3.1-8b", "trn3", 1)):
        assert found.best.cost_usd is None
        assert any("no price of trn3-gen2" in n and "--prices" in n for n in found.assumptions)
    with pytest.raises(UnknownNameError, match="no spot price of trn3") as caught:
        plan("llama-3.1-8b", "trn3", 1, basis="spot")
    assert "none is listed" in caught.value.fix


@pytest.mark.parametrize(("old", "new"), [
    ("[[price]]", "[price]"), ("[[price]]", "price = [1]\n[other]"),
    ('"2026-11-01"', '"2026-13-01"'), ('"2026-11-01"', "2026-11-01"), ('"home"', "5"),
    ('"10 $/h"', "10"), ('"10 $/h"', '"-10 $/h"'), ('"on-demand"', '["spot"]'),
])  # fmt: skip
def test_a_price_file_that_cannot_be_is_refused(tmp_path, old, new):
    file = tmp_path / "mine.toml"
    text = ROW.format(machine="", hourly=10) + SOURCES
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))
    with pytest.raises(FactError):
        plan("llama-3.1-8b", "trn2", 1, prices=str(file))
