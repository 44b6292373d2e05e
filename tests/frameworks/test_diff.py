"""Where numbers leave eager float32: the layer, the op, the cast; where they stop being finite."""

import json

import pytest

from opentrn.base import UsageError

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
nn = torch.nn
neuron = pytest.importorskip("opentrn.frameworks.torch", reason="the extra `torch`")


class Cancels(nn.Module):
    """Adds a large number and takes it away after a product: bfloat16 keeps little of x."""

    def __init__(self):
        super().__init__()
        self.register_buffer("one", torch.eye(16))

    def forward(self, x):
        large = x + 1000.0  # the culprit
        return large @ self.one - 1000.0


def mlp(*middle):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.Tanh(), *middle, nn.Linear(16, 4)).eval()


X = torch.linspace(-1, 1, 128).reshape(8, 16)


def test_a_model_that_agrees():
    for dtype in ("bfloat16", "float32"):
        found = neuron.diff(mlp(), X, dtype=dtype)
        assert found.agrees
        assert [one.name for one in found.layers] == ["0", "1", "2"]
        assert "every layer agrees" in str(found)
    # bfloat16 rounds to 8 bits, so a layer is off by up to a few times 2^-9, and not by nothing.
    errors = [one.error for one in neuron.diff(mlp(), X).layers]
    assert all(2**-11 < e < 2**-6 for e in errors)


def test_the_first_layer_that_departs_and_the_cast_to_blame():
    found = neuron.diff(mlp(Cancels()), X)
    assert found.first is not None
    assert found.first.name == "2"
    # 1000 has 10 bits, so x is kept to a multiple of 4: all of it is lost.
    assert found.first.error > 0.5
    worst = found.blame[0]
    assert "add" in worst.op
    assert worst.where.text.endswith("# the culprit")
    assert found.blame[-1].error < 0.01  # the subtraction rounds what is left
    told = json.loads(json.dumps(found.json()))
    assert (told["schema"], told["agrees"]) == ("opentrn.diff/1", False)
    assert "to blame: aten::add" in str(found)


def test_what_is_computed_in_one_kernel_is_not_rounded_between():
    class Fused(nn.Module):
        def forward(self, x):
            return (x + 1000.0) - 1000.0

    assert neuron.diff(mlp(Fused()), X).agrees


class Grows(Cancels):
    """Large squares: beyond float16, within float32 and bfloat16."""

    def forward(self, x):
        return ((x * 3000) * (x * 3000)) @ self.one  # too much


def test_overflow_is_found_where_it_begins():
    found = neuron.diff(mlp(Grows()), X, dtype="float16")
    assert not found.agrees
    assert "aten::mul" in found.origin
    assert "float16 ends at 6.55e+04" in found.origin
    assert "too much" in found.origin
    assert not neuron.diff(mlp(Grows()), X).origin


def test_what_is_not_finite_from_the_start():
    bad = X.clone()
    bad[0, 0] = float("nan")
    assert "input 0" in neuron.diff(mlp(), bad).origin
    found = neuron.diff(lambda x: torch.log(x - 2.0) + 1.0, X)
    assert "aten::log is not finite in float32 already" in found.origin


def test_models_without_floats():
    with pytest.raises(UsageError) as caught:
        neuron.diff(lambda x: x.argmax(1), X.long())
    assert caught.value.code == "frameworks.nothing_to_compare"


def test_the_command(tmp_path):
    from click.testing import CliRunner

    from opentrn.cli import main

    file = tmp_path / "model.py"
    file.write_text(
        "import torch\n"
        "def fine():\n    return torch.nn.Linear(4, 2), (torch.ones(3, 4),)\n"
        "def lost():\n"
        "    large = torch.nn.Linear(4, 4)\n"
        "    large.bias.data += 3000\n"
        "    small = torch.nn.Linear(4, 2)\n"
        "    small.weight.data -= small.weight.data.mean(1, keepdim=True)\n"
        "    return torch.nn.Sequential(large, small), (torch.ones(3, 4),)\n"
    )
    done = CliRunner().invoke(main, ["diff", f"{file}:fine"])
    assert done.exit_code == 0, done.output
    assert "every layer agrees" in done.output
    done = CliRunner().invoke(main, ["diff", "--json", f"{file}:lost"])
    assert done.exit_code == 1, done.output
    told = json.loads(done.output)
    assert told["first"]["name"] == "1"
    assert told["layers"][0]["error"] < told["allowed"] < told["layers"][1]["error"]


def test_without_casts_float32_is_what_is_allowed():
    """A layer that is off by 1 % is not fine where nothing is stored as bfloat16."""
    found = neuron.diff(mlp(Cancels()), X, auto_cast="none")
    assert found.dtype == "float32"
    assert found.allowed == 8 * 2**-20
    assert "as float32" in str(found)
    assert found.layers[0].error < 2**-20


class Weighs(nn.Module):
    """A product of numbers that lie beside each other, whose difference is what is left."""

    def __init__(self):
        super().__init__()
        weight = torch.zeros(16, 16)
        weight[0], weight[1] = 1.0, -1.0
        self.register_buffer("weight", weight)

    def forward(self, x):
        return ((x * 0.001 + 1.0) @ self.weight)[:, 2:] * 1000.0  # the product


def test_casts_of_products_are_blamed_where_only_they_are_cast():
    model = nn.Sequential(nn.Tanh(), Weighs())
    found = neuron.diff(model, X, auto_cast="matmult")
    assert found.dtype == "bfloat16 in products"
    assert found.layers[0].error < 2**-18  # before the first product nothing is rounded
    assert "matmul" in found.blame[0].op
    assert found.blame[0].where.text.endswith("# the product")
    # 1 + 0.001·x has no digits left in bfloat16's 8 bits, so their difference is 0 or 2^-7.
    assert found.first.error > 0.5
    assert neuron.diff(model, X, auto_cast="none").layers[1].error < found.first.error / 100


def test_overflow_of_an_operand_of_fp8():
    """1 + 300 is beyond float8_e4m3, which ends at 240."""
    class Large(nn.Module):
        def forward(self, x):
            return (x + 300.0) @ torch.ones(16, 4)  # too large for fp8

    found = neuron.diff(nn.Sequential(nn.Tanh(), Large()), X, dtype="fp8_e4m3",
                        auto_cast="matmult")  # fmt: skip
    assert "its largest operand is 301" in found.origin
    assert "ends at 240" in found.origin
    assert "too large for fp8" in found.origin


def test_nan_has_its_origin_in_float32_or_in_the_input():
    class Root(nn.Module):
        def forward(self, x):
            return x.sqrt()  # of negative numbers

    found = neuron.diff(nn.Sequential(nn.Tanh(), Root()), X)
    assert "aten::sqrt is not finite in float32 already" in found.origin
    assert "of negative numbers" in found.origin
    bad = X.clone()
    bad[0, 0] = float("nan")
    assert "input 0 is not finite already" in neuron.diff(mlp(), bad).origin
