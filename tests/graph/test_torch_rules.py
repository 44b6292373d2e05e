"""Each torch rule against eager torch on small inputs, and its schema against torch's own."""

import warnings

import numpy as np
import pytest

from opentrn.base import TrnError
from opentrn.graph import evaluate, from_torch
from opentrn.graph.importers.torch_rules import RULES

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
F = torch.nn.functional


class Called(torch.nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors)


def imported(function, *tensors):
    return from_torch(Called(function).eval(), tensors)


def as_list(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


def compare(table, tolerance=2e-6):
    """Import all functions of a table as one module, run it, compare with eager torch."""
    given = list({id(t): t for _, tensors in table for t in tensors}.values())
    place = {id(t): i for i, t in enumerate(given)}

    def every(*all_tensors):
        return [as_list(function(*(all_tensors[place[id(t)]] for t in tensors)))
                for function, tensors in table]

    got = iter(evaluate(imported(every, *given), [t.numpy() for t in given]))
    wrong = {}
    for i, (function, tensors) in enumerate(table):
        for want in as_list(function(*tensors)):
            problem = difference(next(got), want.detach().numpy(), tolerance)
            if problem:
                wrong[i] = problem
    assert wrong == {}
    assert next(got, None) is None


def difference(got, want, tolerance):
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{got.shape}, not {want.dtype}{want.shape}"
    if got.dtype.kind != "f":
        return "" if np.array_equal(got, want) else f"{got} is not {want}"
    near = np.allclose(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)
    return "" if near else f"off by {np.nanmax(np.abs(got - want))}"


torch.manual_seed(3)
X = torch.randn(4, 6)
Y = torch.randn(4, 6)
P = X.abs() + 0.1
N = torch.randint(-9, 10, (4, 6))
M = torch.randint(1, 5, (4, 6))
B = X > 0
C = torch.randn(2, 3, 8, 8)
S = torch.tensor(0.5)
V = torch.randn(6)
T = torch.randn(2, 4, 5, 6)

ELEMENTWISE = [
    lambda x, y: x + y, lambda x, y: torch.add(x, y, alpha=2), lambda x, y: x - y,
    lambda x, y: torch.sub(x, y, alpha=0.5), lambda x, y: x * y, lambda x, y: x / y,
    lambda x, y: torch.maximum(x, y), lambda x, y: torch.minimum(x, y),
    lambda x, y: torch.atan2(x, y), lambda x, y: x < y, lambda x, y: x >= y,
    lambda x, y: torch.where(x > y, x, y), lambda x, y: torch.where(x > 0, x, 1.5),
    lambda x, y: torch.remainder(x, y), lambda x, y: torch.fmod(x, y),
    lambda x, y: torch.div(x, y, rounding_mode="floor"),
    lambda x, y: torch.div(x, y, rounding_mode="trunc"), lambda x, y: torch.addcmul(x, x, y),
    lambda x, y: torch.addcdiv(x, x, y, value=0.3), lambda x, y: x[:1] * y[:, :1] + y[0],
    lambda x, y: torch.clamp(x, min=y), lambda x, y: x.masked_fill(y > 0, -1.0),
    lambda x, y: torch.logical_and(x > 0, y), lambda x, y: torch.logical_or(x, y),
    lambda x, y: torch.logical_xor(x > 0, y > 0), lambda x, y: torch.outer(x[0], y[0]),
    lambda x, y: torch.lerp(x, y, 0.3),
]
UNARY = [
    torch.exp, torch.expm1, torch.tanh, torch.sigmoid, torch.sin, torch.cos, torch.tan, torch.erf,
    torch.abs, torch.neg, torch.sign, torch.floor, torch.ceil, torch.round, torch.trunc,
    torch.square, torch.reciprocal, torch.exp2, torch.isnan, torch.isinf, torch.isfinite,
    torch.logical_not, F.relu, F.gelu, F.silu, F.mish, F.softplus, F.elu, F.leaky_relu,
    F.hardtanh, F.hardsigmoid, F.hardswish, F.relu6,
    lambda x: F.gelu(x, approximate="tanh"), lambda x: 2 - x, lambda x: 2 / x, lambda x: x + 1,
    lambda x: x ** 2, lambda x: x ** 3, lambda x: x ** -1, lambda x: 2.0 ** x, lambda x: x > 0.5,
    lambda x: x.clamp(-0.5, 0.5), lambda x: x.clamp(min=0.1), lambda x: x.clamp_max(0.2),
    lambda x: x.clamp_min(0.2), lambda x: x.to(torch.float64), lambda x: x.to(torch.int32),
    lambda x: x.bool(), lambda x: F.dropout(x, 0.5, False), lambda x: x.float(),
    lambda x: torch.softmax(x, 0), lambda x: torch.log_softmax(x, -1), lambda x: x % 0.7,
    lambda x: torch.softmax(x, -1, dtype=torch.float64), lambda x: torch.rsub(x, 3, alpha=2),
    lambda x: F.softplus(x, beta=2, threshold=1), lambda x: torch.erfc(x),
]
POSITIVE = [torch.log, torch.log1p, torch.sqrt, torch.rsqrt, torch.log2, torch.log10,
            lambda x: x ** 0.5, lambda x: x ** -0.5, lambda x: x ** 1.7, lambda x: x ** x]
INTEGER = [
    lambda n, m: n + m, lambda n, m: n // m, lambda n, m: n % m, lambda n, m: n / m,
    lambda n, m: torch.div(n, m, rounding_mode="trunc"), lambda n, m: n & m,
    lambda n, m: n | m, lambda n, m: n ^ m, lambda n, m: ~n, lambda n, m: n * 2.5,
    lambda n, m: n == m, lambda n, m: n.sum(), lambda n, m: n.cumsum(1), lambda n, m: n.abs(),
    lambda n, m: (n > 0).sum(-1), lambda n, m: n.max(), lambda n, m: n.clamp(0, 3),
    lambda n, m: torch.fmod(n, m), lambda n, m: m.float().mean(), lambda n, m: n.float().rsqrt(),
    lambda n, m: n.argmin(1), lambda n, m: m ** 2, lambda n, m: n.to(torch.int8) + 1,
    lambda n, m: n.round(), lambda n, m: (n > 0) & (m > 2), lambda n, m: n.exp(),
]
SHAPES = [
    lambda x: x.view(3, 8), lambda x: x.reshape(-1), lambda x: x.t(), lambda x: x.permute(1, 0),
    lambda x: x.transpose(0, -1), lambda x: x.unsqueeze(-1), lambda x: x.unsqueeze(0).squeeze(0),
    lambda x: x[:1].squeeze(), lambda x: x.expand(2, -1, -1), lambda x: x[1:, ::2],
    lambda x: x[..., -2:], lambda x: x[1], lambda x: x[:, -1], lambda x: torch.cat([x, x[:1]]),
    lambda x: torch.stack([x, x], 1), lambda x: x.split(4, 1), lambda x: x.split([1, 2, 3], -1),
    lambda x: x.chunk(2, 1), lambda x: x.unbind(0), lambda x: x.flip(0), lambda x: x.flip([0, 1]),
    lambda x: x.roll(2, 1), lambda x: x.roll(1), lambda x: x.repeat(2, 1, 3),
    lambda x: F.pad(x, (1, 2), value=3.0), lambda x: F.pad(x, (0, 0, -1, 1)), torch.tril,
    lambda x: torch.triu(x, 1), lambda x: x.flatten(), lambda x: x.clone(), lambda x: x.detach(),
    lambda x: x.narrow(1, 2, 3), lambda x: x + torch.arange(6), lambda x: x * torch.ones(4, 1),
    lambda x: x + torch.full_like(x, 2), lambda x: x + torch.zeros_like(x),
    lambda x: torch.arange(2, 20, 3) + x[0].long(),
    lambda x: torch.arange(0.0, 1.0, 0.25) + x[:, 0],
    lambda x: torch.cat([x, torch.zeros(4, 2)], 1), lambda x: x.new_zeros(3) + x[0, :3],
    lambda x: x.squeeze(), lambda x: torch.eye(4) @ x, lambda x: x.contiguous().view(-1, 2, 3),
    lambda x: torch.slice_scatter(x, x[:, :2] * 2, 1, 1, 3),
    lambda x: torch.select_scatter(x, x[0] * 3, 0, 2), lambda x: torch.movedim(x, 0, 1),
]
REDUCTIONS = [
    lambda x: x.sum(), lambda x: x.sum(1), lambda x: x.sum((0, 1), keepdim=True),
    lambda x: x.mean(), lambda x: x.mean(-1, keepdim=True), lambda x: x.amax(1),
    lambda x: x.amin(0), lambda x: x.max(), lambda x: x.min(), lambda x: x.max(1),
    lambda x: x.min(0, keepdim=True), lambda x: x.argmax(), lambda x: x.argmax(1, keepdim=True),
    lambda x: x.argmin(0), lambda x: (x > 0).any(), lambda x: (x > 0).any(1),
    lambda x: (x > -9).all(), lambda x: (x > 0).all(0), lambda x: x.var(), lambda x: x.var(1),
    lambda x: x.var(1, correction=0, keepdim=True), lambda x: torch.var_mean(x, 1),
    lambda x: x.std(0), lambda x: x.cumsum(1), lambda x: x.cumprod(0), lambda x: x.prod(1),
    lambda x: torch.logsumexp(x, 1), lambda x: x.norm(), lambda x: x.norm(dim=1),
    lambda x: torch.linalg.vector_norm(x, 1, 1), lambda x: x.topk(3),
    lambda x: x.topk(2, 0, largest=False), lambda x: x.sort(1), lambda x: x.sort(0, True),
    lambda x: torch.argsort(x, 1), lambda x: x.sum(dtype=torch.float64),
]
INDEXING = [
    lambda x, n: x[n[0, :3] % 4], lambda x, n: x[:, n[0] % 6],
    lambda x, n: x[n[:, 0] % 4, n[0, :4]],
    lambda x, n: F.embedding(n % 4, x), lambda x, n: torch.gather(x, 1, n % 6),
    lambda x, n: torch.gather(x, 0, n[:2] % 4), lambda x, n: x.index_select(1, n[0] % 6),
    lambda x, n: torch.scatter(x, 1, torch.argsort(n, 1), x * 2),
    lambda x, n: torch.scatter(x, 0, torch.argsort(n[:2], 1) % 4, 9.0),
    lambda x, n: torch.scatter_add(x, 0, n % 4, x), lambda x, n: x[torch.tensor([-1, 0])],
    lambda x, n: torch.index_put(x, (torch.tensor([2, -1]),), x[:2] * 5),
    lambda x, n: torch.index_put(x, (n[0] % 4, torch.arange(6)), V, accumulate=True),
    lambda x, n: x[None, torch.arange(2), :, None],
    lambda x, n: T[torch.arange(2), :, n[0, :2] % 5],
    lambda x, n: T[:, torch.tensor([1, 2]), torch.tensor([0, 3])],
]


def each(table, *tensors):
    return [(function, tensors) for function in table]


MIXED = [
    (lambda x, s: x * s, (N, S)), (lambda x, b: x + b, (X, B)), (lambda b: ~b, (B,)),
    (lambda b: b + b, (B,)), (lambda x: x * 1e-3 + x.double(), (X,)),
]
TABLES = {
    "elementwise": each(ELEMENTWISE, X, Y), "unary": each(UNARY, X),
    "positive": each(POSITIVE, P), "integer": each(INTEGER, N, M), "shapes": each(SHAPES, X),
    "reductions": each(REDUCTIONS, X), "indexing": each(INDEXING, X, N), "mixed": MIXED,
}


@pytest.mark.parametrize("table", TABLES)
def test_rules(table):
    compare(TABLES[table])


A, W, D = torch.randn(3, 5), torch.randn(5, 4), torch.randn(2, 3, 5)
K = torch.randn(6, 3, 3, 3)

LINEAR = [
    (lambda a, w: a @ w, (A, W)), (lambda a, w: torch.mm(a, w), (A, W)),
    (lambda a, w: a @ w[:, 0], (A, W)), (lambda a, w: a[0] @ w, (A, W)),
    (lambda a, w: a[0] @ w[:, 0], (A, W)), (lambda d, w: d @ w, (D, W)),
    (lambda d: d @ d.transpose(1, 2), (D,)), (lambda d: torch.bmm(d, d.mT), (D,)),
    (lambda a, w: torch.addmm(w[0], a, w, beta=0.5, alpha=2), (A, W)),
    (lambda d: torch.baddbmm(d[:, :, :3], d, d.mT), (D,)), (lambda a, d: a[0] @ d.mT, (A, D)),
    (lambda a, w: F.linear(a, w.T), (A, W)), (lambda a, w: F.linear(a, w.T, w[0]), (A, W)),
    (lambda t: torch.einsum("abcd,abed->abce", t, t), (T,)),
    (lambda t: t @ t[0, 0].mT, (T,)), (lambda t: t @ t[:1].mT, (T,)),
    (lambda c, k: F.conv2d(c, k, padding=1), (C, K)),
    (lambda c, k: F.conv2d(c, k, k[:, 0, 0, 0], stride=2, dilation=2, padding=2), (C, K)),
    (lambda c, k: F.conv2d(c, k[:3, :1], groups=3, padding="same"), (C, K)),
    (lambda c, k: F.conv1d(c[:, :, 0], k[..., 0], padding=(1,)), (C, K)),
    (lambda c, k: F.conv2d(c[0], k), (C, K)),
    (lambda c, k: F.conv_transpose2d(c, k[:3], stride=2, padding=1, output_padding=1), (C, K)),
    (lambda c, k: F.conv_transpose2d(c.repeat(1, 2, 1, 1), k, groups=2, dilation=2), (C, K)),
    (lambda c: F.max_pool2d(c, 2), (C,)), (lambda c: F.max_pool2d(c, 3, 2, 1), (C,)),
    (lambda c: F.avg_pool2d(c, 2, 1), (C,)), (lambda c: F.avg_pool2d(c, 3, 2, 1), (C,)),
    (lambda c: F.avg_pool2d(c, 3, 2, 1, count_include_pad=False), (C,)),
    (lambda c: F.adaptive_avg_pool2d(c, (4, 2)), (C,)),
    (lambda c: F.adaptive_avg_pool2d(c, 1), (C,)),
    (lambda x, v: F.layer_norm(x, (6,), v, v), (X, V)), (lambda x: F.layer_norm(x, (4, 6)), (X,)),
    (lambda x, v: F.layer_norm(x, (6,), None, v), (X, V)),
    (lambda x, v: F.rms_norm(x, (6,), v), (X, V)), (lambda x: F.rms_norm(x, (6,), eps=1e-3), (X,)),
    (lambda c: F.group_norm(c.repeat(1, 2, 1, 1), 3), (C,)),
    (lambda c, v: F.group_norm(c.repeat(1, 2, 1, 1), 2, v, v), (C, V)),
    (lambda c, v: F.batch_norm(c, v[:3], v[:3] ** 2, v[:3], v[3:]), (C, V)),
    (lambda t: F.scaled_dot_product_attention(t, t, t), (T,)),
    (lambda t: F.scaled_dot_product_attention(t, t, t, is_causal=True, scale=0.2), (T,)),
    (lambda t: F.scaled_dot_product_attention(t, t, t, attn_mask=t[0, 0, :, :5] > 0), (T,)),
    (lambda t: F.scaled_dot_product_attention(t, t, t, attn_mask=t[:, :1, :, :5]), (T,)),
    (lambda t: F.scaled_dot_product_attention(t, t[:, :2], t[:, :2], enable_gqa=True), (T,)),
    (lambda t: F.scaled_dot_product_attention(t[0], t[0], t[0]), (T,)),
]


def test_linear_rules():
    compare(LINEAR, tolerance=1e-5)


def test_bfloat16_weights_are_shared_and_rounded_like_torch():
    module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.GELU()).bfloat16().eval()
    x = X.bfloat16()
    graph = from_torch(module, (x,))
    weight = graph.constants["0.weight"].attrs.data.array
    assert weight.__array_interface__["data"][0] == module[0].weight.data_ptr()
    stored = x.view(torch.uint16).numpy().view(weight.dtype)
    got = evaluate(graph, [stored])[0].astype(np.float32)
    np.testing.assert_allclose(got, module(x).detach().float().numpy(), rtol=2**-7, atol=2**-7)


def test_every_schema_is_torchs():
    import torch._inductor.inductor_prims
    import transformers.integrations.moe as experts

    from opentrn.frameworks.torch.attention import decomposition

    decomposition()  # makes our own op known to torch
    assert experts.grouped_mm_experts_forward  # and transformers its own

    differ = {}
    for name, rule in RULES.items():
        space, _, called = name.rpartition("::")
        packet, _, overload = called.partition(".")
        op = getattr(getattr(getattr(torch.ops, space or "aten"), packet), overload or "default")
        if str(op._schema) != rule.schema:
            differ[name] = str(op._schema)
    assert differ == {}


class Odd(torch.nn.Module):
    """Uses three ops without a rule, one of them twice."""

    def forward(self, x):
        y = torch.fft.fft(x).real
        z = torch.special.bessel_j0(x) + torch.special.bessel_j0(y)
        return torch.linalg.cholesky(z @ z.T)


def test_all_missing_ops_are_named_at_once():
    with pytest.raises(TrnError) as error:
        from_torch(Odd(), (torch.randn(3, 3),))
    text = str(error.value)
    assert error.value.code == "graph.unsupported_op"
    assert isinstance(error.value, ValueError)
    assert len(text.splitlines()) == 5
    assert "2 × aten::special_bessel_j0" in text
    assert "1 × aten::_fft_r2c" in text
    assert "aten::linalg_cholesky_ex" in text
    assert "there is" not in text  # no op of a like name
    assert "opentrn analyze" in text
    assert error.value.at.file == __file__


def test_a_custom_op_is_named():
    @torch.library.custom_op("opentrn_test::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @double.register_fake
    def _(x):
        return torch.empty_like(x)

    with pytest.raises(TrnError, match="opentrn_test::double"):
        imported(lambda x: double(x) + 1, X)


@pytest.mark.parametrize(
    ("function", "tensors", "match"),
    [
        (lambda x: torch.as_strided(x, (3,), (2,), x.numel() - 2), (X,), "beyond the elements"),
        (lambda t: F.scaled_dot_product_attention(t, t, t, dropout_p=0.1), (T,), "dropout"),
    ],
)
def test_uses_a_rule_does_not_cover_are_refused_at_the_users_line(function, tensors, match):
    with pytest.raises(TrnError, match=match) as error:
        imported(function, *tensors)
    assert error.value.code == "graph.torch_argument"
    assert error.value.at.file == __file__


def test_varying_sizes_are_refused():
    with pytest.raises(TrnError) as error:
        from_torch(Called(torch.exp), (X,), dynamic={0: "batch"})
    assert error.value.code == "graph.dynamic_shape"


class Counter(torch.nn.Module):
    """Changes a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        self.seen.add_(x)
        return {"twice": x * 2, "sum": self.seen + 0}


def test_changed_buffers_come_back_by_name():
    graph = from_torch(Counter(), (torch.ones(3),))
    got = dict(zip(graph.output_names, evaluate(graph, [np.ones(3, np.float32)]), strict=True))
    assert got.keys() == {"buffer:seen", "twice", "sum"}
    assert got["buffer:seen"].tolist() == [1, 1, 1]
    assert got["twice"].tolist() == [2, 2, 2]


def test_a_module_on_the_meta_device_gives_a_graph_without_numbers():
    with torch.device("meta"):
        module = torch.nn.Linear(1 << 14, 1 << 14, bias=False)
    graph = from_torch(module, (torch.empty(2, 1 << 14, device="meta"),))
    assert graph.flops == 2 * 2 * (1 << 28)
    assert graph.constants["weight"].attrs.data.array is None


def test_an_exported_program_is_taken_as_it_is():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Called(torch.tanh), (X,), strict=False)
    got = evaluate(from_torch(program), [X.numpy()])[0]
    np.testing.assert_allclose(got, X.tanh().numpy(), rtol=1e-6)


def test_tied_parameters_are_one_constant():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(6, 6, bias=False)
            self.b = torch.nn.Linear(6, 6, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    graph = from_torch(Tied(), (X,))
    assert graph.histogram()["constant"] == 1
