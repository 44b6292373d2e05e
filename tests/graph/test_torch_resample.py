"""Rules for pooling, interpolation and less common functions, each against eager torch."""

import pytest

from tests.graph.test_torch_rules import compare

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
F = torch.nn.functional
aten = torch.ops.aten

C = torch.randn(2, 3, 7, 10, generator=torch.Generator().manual_seed(0))
L = torch.randn(2, 3, 11, generator=torch.Generator().manual_seed(1))
V = torch.randn(1, 2, 5, 6, 7, generator=torch.Generator().manual_seed(2))
X = torch.linspace(-0.95, 0.95, 24).reshape(4, 6)
Y = torch.linspace(-30, 40, 24).reshape(4, 6)
SIGNS = torch.tensor([0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 2.0])
OTHER = torch.tensor([-0.0, 0.0, float("nan"), -2.0, 1.0, float("-inf"), 3.0, -0.0])

RESIZED = [
    *((lambda c, a=a, m=m: F.interpolate(c, size=(9, 4), mode=m, align_corners=a), (C,))
      for a in (False, True) for m in ("bilinear", "bicubic")),
    (lambda c: F.interpolate(c, scale_factor=(1.7, 2.3), mode="bilinear"), (C,)),
    (lambda c: F.interpolate(c, scale_factor=0.6, mode="bicubic"), (C,)),
    (lambda x: F.interpolate(x, size=5, mode="linear"), (L,)),
    (lambda x: F.interpolate(x, scale_factor=2, mode="linear", align_corners=True), (L,)),
    (lambda v: F.interpolate(v, size=(3, 8, 5), mode="trilinear"), (V,)),
    (lambda c: F.interpolate(c, size=(5, 4), mode="area"), (C,)),
]  # fmt: skip


def test_images_of_another_size():
    compare(RESIZED, tolerance=1e-5)


def test_pools():
    compare([
        (lambda c: F.max_pool2d(c, 3, 2, 1, ceil_mode=True), (C,)),
        (lambda c: F.max_pool2d(c, (2, 3), (3, 2), dilation=2, ceil_mode=True), (C,)),
        (lambda c: F.avg_pool2d(c, 3, 2, 1, ceil_mode=True), (C,)),
        (lambda c: F.avg_pool2d(c, 3, 2, 1, True, False), (C,)),
        (lambda c: F.avg_pool2d(c, 2, 2, divisor_override=3), (C,)),
        (lambda x: F.avg_pool1d(x, 4, 3, 2, ceil_mode=True), (L,)),
        (lambda x: F.max_pool1d(x, 3, 2), (L,)),
        (lambda v: F.avg_pool3d(v, 2, ceil_mode=True), (V,)),
        (lambda v: F.max_pool3d(v, 3, 2, 1, return_indices=True), (V,)),
        (lambda c: F.max_pool2d(c, 3, 2, 1, ceil_mode=True, return_indices=True), (C,)),
        (lambda c: F.adaptive_avg_pool2d(c, (5, 4)), (C,)),
        (lambda c: F.adaptive_avg_pool2d(c, (7, 5)), (C,)),
        (lambda v: F.adaptive_avg_pool3d(v, (2, 3, 4)), (V,)),
    ], tolerance=1e-5)  # fmt: skip


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "area"])
def test_gradients_of_resizing(mode):
    from torch.fx.experimental.proxy_tensor import make_fx

    from opentrn.frameworks.torch.backend import decompositions
    from opentrn.graph import evaluate, from_fx

    def grad(c):
        c = c.detach().requires_grad_()
        with torch.enable_grad():
            made = F.interpolate(c, size=(5, 14), mode=mode)
            return torch.autograd.grad((made * made).sum(), c)[0]

    traced = from_fx(make_fx(grad, decomposition_table=decompositions())(C))
    (found,) = evaluate(traced.graph, [C.numpy()])
    torch.testing.assert_close(torch.from_numpy(found), grad(C), rtol=1e-5, atol=1e-5)


def test_functions():
    compare([
        *((getattr(torch, name), (X,)) for name in ("asin", "acos", "atanh", "sinh", "cosh")),
        *((getattr(torch, name), (Y,)) for name in ("atan", "asinh", "signbit")),
        (lambda y: torch.acosh(y.abs() + 1), (Y,)),
        (torch.hypot, (X, Y)), (torch.copysign, (SIGNS, OTHER)), (torch.signbit, (SIGNS,)),
        (torch.fmax, (SIGNS, OTHER)), (torch.fmin, (SIGNS, OTHER)),
        (lambda x: torch.round(x, decimals=1), (X,)), (torch.prod, (X,)),
        (lambda x: torch.linalg.vector_norm(x, 3, 1), (X,)),
        (lambda x: torch.linalg.vector_norm(x, 0), (X,)),
        (lambda x: torch.linalg.vector_norm(x, float("-inf")), (X,)),
        (lambda x: torch.addmv(x[:, 0], x, x[0], beta=2, alpha=0.5), (X,)),
        (lambda v: torch.addbmm(v[0, 0, 0, :, :2], v[0, :, 0], v[0, :, 0, :2].mT), (V,)),
        (lambda x: x.diagonal(1), (X,)), (lambda x: x.take(torch.tensor([[1, -1], [7, 3]])), (X,)),
        (lambda x: x.as_strided((3, 2), (2, 7), 4), (X,)),
    ], tolerance=1e-5)  # fmt: skip


def test_lookups():
    edges, rows = torch.tensor([-0.5, 0.0, 0.25]), X.sort(1).values
    compare([
        (torch.bucketize, (X, edges)), (lambda x, e: torch.bucketize(x, e, right=True), (X, edges)),
        (torch.searchsorted, (rows, X)),
        (lambda r, x: torch.searchsorted(r, x, side="right", out_int32=True), (rows, X)),
        (torch.median, (X,)), (lambda x: torch.median(x, 1, True), (X,)),
        (torch.median, (SIGNS,)),
        (lambda x: x.scatter_reduce(1, torch.tensor([[0, 0, 2]] * 4), x * 2, "sum"), (X,)),
    ])  # fmt: skip


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_of_rows(mode):
    ids, starts = torch.tensor([1, 3, 3, 0, 2]), torch.tensor([0, 2, 2, 4])
    compare([
        (lambda x: F.embedding_bag(ids, x, starts, mode=mode), (X,)),
        (lambda x: F.embedding_bag(ids.reshape(1, 5), x, mode=mode), (X,)),
    ])  # fmt: skip
