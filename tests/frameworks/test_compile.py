"""`torch.compile(backend="neuron")`: eager torch's values; breaks, recompilations."""

import copy
import json
import subprocess
import sys

import pytest

from opentrn.base import TrnError, UnsupportedError

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
nn, F = torch.nn, torch.nn.functional
neuron = pytest.importorskip("opentrn.frameworks.torch", reason="the extra `torch`")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    neuron.reset()
    torch.manual_seed(0)


def compiled(model, **options):
    return torch.compile(model, backend="neuron", options=options or None)


class Block(nn.Module):
    """A small decoder block: attention, norms, a gated MLP, a buffer."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.norm, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.register_buffer("scale", torch.full((width,), 0.5))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2)
                   for y in self.qkv(self.norm(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.second(x)))) * self.scale


def test_inference_gives_eager_values():
    model, x = Block().eval(), torch.randn(2, 5, 16)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(x), model(x), rtol=1e-5, atol=1e-5)
    told = neuron.report()
    assert (told.graphs, told.recompiles, told.breaks) == (1, 0, [])
    one, = told.compilations
    assert one.calls == 1
    assert 1e-6 < one.device_seconds < 1e-3


def test_bfloat16_models_stay_bfloat16():
    model, x = Block().eval().bfloat16(), torch.randn(2, 5, 16, dtype=torch.bfloat16)
    with torch.no_grad():
        found, exact = compiled(model)(x), Block.forward(model.float(), x.float())
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), exact, rtol=0.03, atol=0.03)


def test_precision_and_target_are_options():
    model, x = nn.Linear(64, 64).eval(), torch.randn(8, 64)
    with torch.no_grad():
        narrow, exact = compiled(model, dtype="bfloat16", target="trn1")(x), model(x)
    assert narrow.dtype == torch.float32
    worst = (narrow - exact).abs().max()
    assert 1e-4 < worst < 0.05  # rounded, but not wrong
    assert neuron.report().compilations[0].model.device.chip.name == "trn1"


@pytest.mark.parametrize("options", [{"dtypes": "bf16"}, {"dtype": "int8"}, {"target": "h100"}])
def test_wrong_options_are_refused(options):
    from torch._dynamo.exc import BackendCompilerFailed

    with pytest.raises((TrnError, BackendCompilerFailed), match=r"option|precision|h100"):
        compiled(nn.Linear(2, 2), **options)(torch.ones(1, 2))


def test_gradients_are_eager_ones():
    # torch's own decompositions give attention gradients that are wrong by far.
    model, x = Block(), torch.randn(2, 5, 16, requires_grad=True)
    compiled(model)(x).square().sum().backward()
    found = [x.grad, *(p.grad for p in model.parameters())]
    x.grad = None
    model.zero_grad()
    model(x).square().sum().backward()
    for got, want in zip(found, [x.grad, *(p.grad for p in model.parameters())], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4 * float(want.abs().max()))


def test_convolutions_train():
    model = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
                          nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    x, target = torch.randn(4, 1, 8, 8), torch.tensor([0, 2, 1, 2])
    twin = copy.deepcopy(model)
    F.cross_entropy(compiled(model)(x), target).backward()
    F.cross_entropy(twin(x), target).backward()
    for got, want in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(model[1].running_var, twin[1].running_var)
    assert int(model[1].num_batches_tracked) == 1


def test_a_break_is_told_with_its_line():
    def branchy(x):
        y = x * 2
        if y.sum() > 0:  # the break
            y = y + 1
        return y * 3

    x = torch.ones(2, 3)
    assert torch.equal(compiled(branchy)(x), branchy(x))
    told = neuron.report()
    assert told.graphs == 2
    only, = told.breaks
    assert only.where.text.endswith("# the break")
    assert "value" in only.why
    assert "1 graph break" in str(told)
    assert json.loads(json.dumps(told.json()))["breaks"][0]["at"]["line"] == only.where.line


def test_new_sizes_are_compiled_anew_and_counted():
    model = nn.Linear(4, 3).eval()
    run = compiled(model)
    with torch.no_grad():
        for batch in (2, 2, 3, 5, 3, 5):
            x = torch.randn(batch, 4)
            torch.testing.assert_close(run(x), model(x))
    told = neuron.report()
    assert [c.calls for c in told.compilations] == [2, 2, 2]
    assert told.recompiles == 2


def test_changed_weights_are_seen():
    model, x = nn.Linear(4, 3).eval(), torch.randn(2, 4)
    run = compiled(model)
    with torch.no_grad():
        for _ in range(5):
            torch.testing.assert_close(run(x), model(x))
            model.weight.mul_(1.5)
    told = neuron.report().compilations
    assert [c.calls for c in told] == [1, 1, 1, 2]
    assert "inputs from now on" in told[-1].why


@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_the_backward_of_dropout_reads_the_mask_of_its_forward(numerics):
    x = torch.ones(70, 130, requires_grad=True)
    run = torch.compile(nn.Dropout(0.3), backend="neuron", options={"numerics": numerics})
    for _ in range(3):
        x.grad = None
        made = run(x)
        made.sum().backward()
        assert torch.equal(made, x.grad)  # both are the mask over 0.7
    assert neuron.report().recompiles == 0
    kernels = {row[0] for row in neuron.report().compilations[0].model.executable.meta["kernels"]}
    assert "uniform" in kernels


def test_random_numbers_of_the_device_have_their_distributions():
    run = compiled(lambda x: (torch.rand_like(x), torch.randn_like(x), torch.rand(5)))
    torch.manual_seed(3)
    u, n, five = run(torch.empty(300, 500))
    torch.manual_seed(3)
    assert all(map(torch.equal, run(torch.empty(300, 500)), (u, n, five)))
    count = u.numel()
    assert 0 <= float(u.min()) <= float(u.max()) < 1
    # Five standard deviations of means, variances and of counts in ten bins.
    assert abs(float(u.mean()) - 0.5) < 5 * (1 / 12 / count) ** 0.5
    assert abs(float(n.mean())) < 5 / count**0.5
    assert abs(float(n.var()) - 1) < 5 * (2 / count) ** 0.5
    bins = torch.histc(u, 10, 0, 1)
    assert float((bins - count / 10).abs().max()) < 5 * (count * 0.09) ** 0.5
    assert not torch.equal(u.flatten()[:5], five)
    half = torch.compile(lambda x: torch.log(1 - torch.rand_like(x)), backend="neuron",
                         options={"dtype": "bfloat16"})  # fmt: skip
    assert half(torch.empty(300, 500)).isfinite().all()


def test_dropout_draws_from_torchs_generator():
    x = torch.ones(64, 64)
    run = compiled(nn.Dropout(0.25))
    torch.manual_seed(7)
    first = run(x)
    torch.manual_seed(7)
    assert torch.equal(run(x), first)
    assert not torch.equal(run(x), first)
    share = float((first == 0).float().mean())
    assert abs(share - 0.25) < 0.04  # five standard deviations
    assert sorted(set(first.flatten().tolist())) == [0.0, pytest.approx(4 / 3)]


def test_inputs_written_in_place_and_integers():
    def function(x, ids):
        x.add_(1)
        return x[:, ids], ids + 1, ids.float().sum().item()

    x, ids = torch.randn(2, 5), torch.tensor([3, 0])
    y = x.clone()
    got, want = compiled(function)(x, ids), function(y, ids)
    torch.testing.assert_close(got[0], want[0])
    assert torch.equal(got[1], want[1])
    assert got[1].dtype == torch.int64
    assert got[2] == want[2] == 3.0
    torch.testing.assert_close(x, y)


def test_every_missing_op_is_named_at_the_users_line():
    def function(x):
        y = torch.special.bessel_j0(x)  # first
        return y, torch.linalg.inv(x)

    with pytest.raises(UnsupportedError) as caught:
        compiled(function)(torch.rand(4, 4))
    assert caught.value.code == "graph.unsupported_op"
    assert "aten::special_bessel_j0" in str(caught.value)
    assert "aten::linalg_inv_ex" in str(caught.value)
    assert caught.value.at.text.endswith("# first")


@pytest.mark.parametrize(("dtype", "code"), [(torch.complex64, "frameworks.complex"),
                                             (torch.float64, "frameworks.float64")])
def test_dtypes_the_chip_lacks(dtype, code):
    with pytest.raises(UnsupportedError) as caught:
        compiled(lambda x: x * 2)(torch.ones(3, dtype=dtype))
    assert caught.value.code == code
    assert caught.value.neuron.startswith("NCC_")
    assert caught.value.at.file == __file__


def test_the_backend_is_found_without_an_import():
    code = ("import torch, sys; assert 'opentrn' not in sys.modules; "
            "print(torch.compile(lambda x: x * 2, backend='neuron')(torch.ones(2)).tolist())")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[2.0, 2.0]", done.stderr
