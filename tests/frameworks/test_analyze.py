"""Verdicts: an op gives the CPU's value on the chip, or is refused with the reason."""

import json
import subprocess
import sys

import pytest

from opentrn.base import TrnError

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
nn, F = torch.nn, torch.nn.functional
neuron = pytest.importorskip("opentrn.frameworks.torch", reason="the extra `torch`")

X = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
WHOLE = torch.tensor([[1, 2, 4]])
IMAGE = torch.randn(1, 3, 16, 24, generator=torch.Generator().manual_seed(1))


def scatter(x):
    return torch.zeros(6, 9).scatter_add(1, (x > 0).long(), x)


# What people stumble over: name -> (function, arguments, whether it runs, the vendor's code).
GATES = {
    "argsort": (lambda x: x.argsort(), (X,), True, ""),
    "masked_select": (lambda x: torch.masked_select(x, x > 0), (X,), False, "NCC_EMOD025"),
    "nonzero": (lambda x: (x > 0).nonzero(), (X,), False, "NCC_EMOD025"),
    "a slice past the end": (lambda x: x[80:120], (X,), True, ""),
    "a slice to past the end": (lambda x: x[4:120] + 1, (X,), True, ""),
    "1 / integers": (lambda n: 1 / n, (WHOLE,), True, ""),
    "a number times a vector": (lambda x: torch.tensor(2.0) * x[0], (X,), True, ""),
    "a product of integers": (lambda n: n.T @ n, (WHOLE,), False, "NCC_EVRF035"),
    "a branch on data": (lambda x: x if x.sum() > 0 else -x, (X,), False, "NCC_EMOD025"),
    "complex": (lambda x: torch.view_as_real(torch.fft.fft(x)), (X,), False, "NCC_EVRF004"),
    "top 3": (lambda x: x.topk(3), (X,), True, ""),
    "scatter_add": (scatter, (X,), True, ""),
    "cumulative sum": (lambda x: x.cumsum(1), (X,), True, ""),
    "an inverse": (lambda x: torch.linalg.inv(x[:6, :6]), (X,), False, "NCC_EUOC002"),
}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    neuron.reset()


@pytest.mark.parametrize("name", GATES)
def test_gates_have_a_verdict(name):
    function, args, runs, code = GATES[name]
    found = neuron.analyze(function, args)
    assert found.runs == runs, str(found)
    refused = found.unsupported
    assert [v for v in refused if len(v.why) < 10] == []
    if not runs:
        assert code in {v.neuron for v in refused}
        assert all(v.fix for v in refused if v.neuron == code)
        assert {w.file for v in refused for w in v.places} == {__file__}


@pytest.mark.parametrize("name", [n for n, gate in GATES.items() if gate[2]])
def test_what_runs_gives_the_cpus_values(name):
    function, args, *_ = GATES[name]
    found = torch.compile(function, backend="neuron")(*args)
    torch.testing.assert_close(found, function(*args))


@pytest.mark.parametrize("name", ["a product of integers", "an inverse", "complex"])
def test_what_does_not_run_is_refused_there_too(name):
    function, args, *_ = GATES[name]
    with pytest.raises(TrnError):
        torch.compile(function, backend="neuron")(*args)


def test_the_reciprocals_of_integers():
    found = torch.compile(lambda n: 1 / n, backend="neuron")(torch.tensor([1, 2, 4]))
    assert found.tolist() == [1.0, 0.5, 0.25]


def test_a_strided_convolutions_gradient():
    model = nn.Conv2d(3, 8, 7, stride=2, padding=3)
    assert neuron.analyze(model, IMAGE, train=True).runs
    torch.compile(model, backend="neuron")(IMAGE).square().sum().backward()
    found, wanted = model.weight.grad.clone(), None
    model.zero_grad()
    model(IMAGE).square().sum().backward()
    wanted = model.weight.grad
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


def test_a_large_strided_convolutions_gradient_is_judged():
    # 1 × 3 × 256 × 1024: reported to fail in the vendor's compiler.
    model = nn.Conv2d(3, 8, 7, stride=2, padding=3)
    found = neuron.analyze(model, torch.zeros(1, 3, 256, 1024), train=True)
    assert found.runs
    back, = (v for v in found.verdicts if v.op == "aten::convolution_backward")
    assert back.outcome == "slow"
    assert "kernel calls" in back.why
    assert "matmul" in back.why


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(9, 4)

    def forward(self, x, ids):
        y = torch.sigmoid(self.linear(x)).view(3, 8)
        z = torch.special.bessel_j0(y)  # a special function
        return z, torch.linalg.inv(y[:, :3]), (ids + 1).double().sum(), y.T  # inverted


def test_all_findings_come_at_once_with_outcomes_and_lines():
    found = neuron.analyze(Mixed(), (X, torch.arange(5)), target="trn1")
    told = {v.op.removeprefix("aten::"): v for v in found.verdicts}
    assert (told["linear"].outcome, told["linear"].operands) == (
        "runs", "float32[6, 9], float32[4, 9], float32[4]")
    assert told["sigmoid"].why.startswith("elementwise")
    assert told["view"].outcome == "view"
    assert told["add.Tensor"].outcome == "narrowed"
    assert "int64 as int32" in told["add.Tensor"].why
    assert any("float64" in v.why for v in found.verdicts)
    ops = {v.op for v in found.unsupported}
    assert ops == {"aten::special_bessel_j0", "aten::linalg_inv_ex"}
    lines = {v.op: v.places[0].text for v in found.unsupported}
    assert lines["aten::special_bessel_j0"].endswith("# a special function")
    assert lines["aten::linalg_inv_ex"].endswith("# inverted")
    assert found.target == "trn1"
    assert json.loads(json.dumps(found.json()))["runs"] is False
    assert "unsupported: it cannot run" in str(found)


def test_nothing_torch_cannot_trace_is_a_crash():
    found = neuron.analyze(lambda x: x.no_such_method(), (X,))
    assert not found.runs
    assert "no_such_method" in found.refused[0].why
    assert found.refused[0].places[0].file == __file__


FILE = """
import torch
def good(): return torch.nn.Linear(4, 3), (torch.ones(2, 4),)
def bad(): return torch.nn.Sequential(), 3
def inverts():
    class M(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.inv(x)
    return M(), torch.ones(5, 5)
"""


def test_the_command(tmp_path):
    (tmp_path / "model.py").write_text(FILE)

    def run(name, *options):
        command = [sys.executable, "-m", "opentrn", "analyze", f"model.py:{name}", *options]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    done = run("good")
    assert done.returncode == 0, done.stderr
    assert "1 runs" in done.stdout
    done = run("inverts", "--json")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert told["schema"] == "opentrn.analysis/1"
    bad, = (v for v in told["verdicts"] if not v["runs"])
    assert (bad["op"], bad["places"][0]["line"]) == ("aten::linalg_inv_ex", 8)
    assert run("absent").returncode == 2


class Facts(nn.Module):
    """Ops the vendor's pages say something about."""

    def forward(self, x, i):
        largest = i.topk(2)[0]
        added = torch.zeros(10, dtype=torch.int64).scatter_add(0, i % 10, i)
        placed = torch.zeros(10, dtype=torch.int64).scatter(0, i % 10, i)
        return largest, added, placed, x.topk(2)[0], x.flip(0), x.atan2(x), x * 2


def test_verdicts_say_since_and_until_which_sdk_the_real_device_has_an_op():
    found = neuron.analyze(Facts(), (torch.ones(3, 40), torch.arange(40)))
    told = {}
    for verdict in found.verdicts:
        told.setdefault((verdict.op.removeprefix("aten::"), verdict.operands), verdict)
    ints, floats = told["topk", "int64[40]"], told["topk", "float32[3, 40]"]
    codes = {f.code for f in ints.facts}
    assert "NCC_EVRF013" in codes  # error-codes/EVRF013: no int32 or int64 in TopK
    assert "NCC_EVRF013" not in {f.code for f in floats.facts}
    assert [(f.state, f.since) for f in floats.facts if f.state == "runs"] == [("runs", "2.10")]
    scatters = {op: v for (op, _), v in told.items() if op.startswith("scatter")}
    assert "NCC_EVRF016" in {f.code for f in scatters["scatter_add"].facts}
    assert not any(f.code for f in scatters["scatter.src"].facts)
    assert [f.since for f in told["flip", "float32[3, 40]"].facts] == ["2.6"]
    assert [f.since for f in told["mul.Tensor", "float32[3, 40]"].facts] == ["2.3"]
    narrow = next(f for f in ints.facts if f.until == "2.32")
    assert "--native-int64" in narrow.text
    page = str(found)
    assert "on the real device, by the Neuron documentation" in page
    assert "refused: top_k of 32- and 64-bit integers is refused (NCC_EVRF013)" in page
    assert "fix x.float().topk(k)" in page
    assert found.json()["verdicts"][0]["facts"][0]["source"].startswith("Neuron documentation")


def test_formats_of_eight_bits_are_judged_by_chip():
    def model(x):
        return x.to(torch.float8_e4m3fn).float()

    on_trn2 = neuron.analyze(model, torch.ones(4, 8), target="trn2")
    assert not on_trn2.runs
    assert "NCC_EVRF051" in {f.code for v in on_trn2.verdicts for f in v.facts}
    assert neuron.analyze(model, torch.ones(4, 8), target="trn3").runs


def test_what_takes_far_longer_than_its_bytes_is_slow():
    found = neuron.analyze(lambda x: (x.sort()[0], x + 1), torch.ones(512, 256))
    told = {v.op.removeprefix("aten::"): v for v in found.verdicts}
    sort = told["sort"]
    assert sort.outcome == "slow"
    assert "most of it in sort" in sort.why
    # 512 × 256 floats in, floats and int32 places out, and a core of trn2 has 360 GB/s at most.
    assert " us where " in sort.why
    assert told["add.Tensor"].outcome == "runs"
    assert found.runs


def test_every_fact_has_a_source_and_names_ops_that_exist():
    from opentrn.frameworks import support
    from opentrn.graph import OPS

    rows = support.facts()
    assert len(rows) > 15
    for fact in rows:
        assert fact.state in support.STATES
        assert fact.source
        assert fact.text
        assert all(op in OPS for op in fact.ops - {""})
        assert fact.state == "runs" or fact.rewrite
