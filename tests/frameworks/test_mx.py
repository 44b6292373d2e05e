"""Products of MX formats from PyTorch, held against the dequantised matrices in float64."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
front = pytest.importorskip("opentrn.frameworks.torch")
from torch.nn.functional import ScalingType, SwizzleType, scaled_mm  # noqa: E402

from opentrn import nki  # noqa: E402
from opentrn.base import TrnError  # noqa: E402

# Every value of OCP's fp4 (E2M1), by its code; the sign is the highest of four bits.
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
FORMATS = ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2")


def matrix(rows, inner, kind, seed):
    """Quantised numbers of a format, and the same in float64."""
    random = np.random.default_rng(seed)
    if kind != "float4_e2m1fn_x2":
        held = torch.from_numpy(random.standard_normal((rows, inner)).astype(np.float32))
        held = held.to(getattr(torch, kind))
        return held, held.double().numpy()
    codes = random.integers(0, 16, (rows, inner))
    values = FP4[codes & 7] * np.where(codes >> 3, -1.0, 1.0)
    # PyTorch's pairs: the first number in the lower half of the byte.
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)
    return torch.from_numpy(packed).view(torch.float4_e2m1fn_x2), values


def blocks(rows, inner, seed):
    """Scales of blocks of 32: bytes [rows, inner / 32] of powers of two, and these in float64."""
    codes = np.random.default_rng(seed).integers(118, 134, (rows, inner // 32)).astype(np.uint8)
    return codes, np.repeat(2.0 ** (codes.astype(int) - 127), 32, axis=1)


def swizzled(codes):
    """Scales as GPUs read them: tiles of 128 rows and 4 blocks, by loops over the definition."""
    tall, wide = -(-codes.shape[0] // 128), -(-codes.shape[1] // 4)
    flat = np.full(tall * wide * 512, 127, np.uint8)
    for row in range(codes.shape[0]):
        for block in range(codes.shape[1]):
            tile = row // 128 * wide + block // 4
            line, group = row % 32, row % 128 // 32
            flat[tile * 512 + line * 16 + group * 4 + block % 4] = codes[row, block]
    return torch.from_numpy(flat).view(torch.float8_e8m0fnu)


def problem(m, n, k, left="float8_e4m3fn", right="float8_e4m3fn"):
    (x, exact_x), (y, exact_y) = matrix(m, k, left, 1), matrix(n, k, right, 2)
    (sx, wide_x), (sy, wide_y) = blocks(m, k, 3), blocks(n, k, 4)
    exact = (exact_x * wide_x) @ (exact_y * wide_y).T
    return (x, y.t(), swizzled(sx), swizzled(sy)), exact


def is_near(found, exact, tolerance):
    error = np.abs(found.cpu().double().numpy() - exact).max()
    assert error <= tolerance * np.abs(exact).max()


@pytest.fixture
def on_trn3():
    with nki.use_target("trn3"):
        yield


@pytest.mark.parametrize("numerics", ["exact", "fast"])
@pytest.mark.parametrize(("left", "right"), [(FORMATS[0], FORMATS[0]), (FORMATS[1], FORMATS[0]),
                                             (FORMATS[2], FORMATS[2])])  # fmt: skip
def test_compiled_products(on_trn3, numerics, left, right):
    torch._dynamo.reset()
    given, exact = problem(48, 160, 192, left, right)

    def product(x, y, sx, sy):
        return torch._scaled_mm(x, y, sx, sy, out_dtype=torch.float32)

    compiled = torch.compile(product, backend="neuron", options={"numerics": numerics})
    is_near(compiled(*given), exact, 1e-6)


@pytest.mark.parametrize("kind", FORMATS)
def test_eager_products_on_the_device(on_trn3, kind):
    given, exact = problem(32, 64, 128, kind, kind)
    x, y, sx, sy = (t.to("neuron") for t in given)
    found = torch._scaled_mm(x, y, sx, sy, out_dtype=torch.float32)
    assert found.device.type == "neuron"
    is_near(found, exact, 1e-6)
    assert not [op for op, why, n in torch.neuron.on_cpu() if "scaled_mm" in op]


def test_the_function_with_recipes_a_bias_and_bfloat16(on_trn3):
    torch._dynamo.reset()
    (x, y, sx, sy), exact = problem(64, 32, 1056)
    bias = torch.linspace(-1, 1, 32).bfloat16()
    recipe, order = ScalingType.BlockWise1x32, SwizzleType.SWIZZLE_32_4_4

    def product(x, y, sx, sy, bias):
        return scaled_mm(x, y, sx, recipe, sy, recipe, order, order, bias, torch.bfloat16)

    found = torch.compile(product, backend="neuron")(x, y, sx, sy, bias)
    assert found.dtype == torch.bfloat16
    is_near(found, exact + bias.double().numpy(), 2**-8)


def test_a_traced_module_with_mx_weights(on_trn3, tmp_path):
    (x, y, sx, sy), exact = problem(16, 32, 64)

    class Linear(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("weight", y.t().contiguous())
            self.register_buffer("scale", sy)

        def forward(self, x, scale):
            return torch._scaled_mm(x, self.weight.t(), scale, self.scale, out_dtype=torch.float32)

    traced = front.trace(Linear(), (x, sx), target="trn3")
    is_near(traced(x, sx), exact, 1e-6)
    assert any("matmul_mx" in str(row) for row in traced.executable.meta["kernels"])
    traced.save(tmp_path / "mx.trn")
    is_near(front.load(tmp_path / "mx.trn")(x, sx), exact, 1e-6)


def test_chips_without_mx_refuse_at_the_users_line_with_the_alternative():
    torch._dynamo.reset()
    given, _ = problem(32, 32, 128, FORMATS[1], FORMATS[1])

    def product(x, y, sx, sy):
        return torch._scaled_mm(x, y, sx, sy, out_dtype=torch.float32)  # the product

    with nki.use_target("trn2"), pytest.raises(TrnError) as refused:
        torch.compile(product, backend="neuron")(*given)
    assert refused.value.code == "nki.mx"
    assert refused.value.at.text.endswith("# the product")
    assert "trn3" in refused.value.fix
    assert "dequantise" in refused.value.fix
    told = front.analyze(product, given, target="trn2")
    assert not told.runs
    assert "trn2 has no products of MX formats" in str(told)
    assert front.analyze(product, given, target="trn3").runs


def test_numbers_of_scales_that_do_not_fit_are_refused(on_trn3):
    (x, y, sx, sy), _ = problem(32, 32, 128)
    for scales in ((sx[:256], sy), (sx, sy.repeat(2))):
        with pytest.raises((TrnError, RuntimeError)):
            torch.compile(lambda *a: torch._scaled_mm(*a, out_dtype=torch.float32),
                          backend="neuron")(x, y, *scales)  # fmt: skip
