"""Gradients of windows and lookups as graphs, against torch's autograd in float64."""

import warnings

import numpy as np
import pytest

from opentrn.graph import evaluate, from_fx

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
backend = pytest.importorskip("opentrn.frameworks.torch.backend", reason="the extra `torch`")
F = torch.nn.functional


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def agree(function, *tensors):
    """Values and gradients of a function's graphs are torch's in float64."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def both(*given):
        leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in given]
        made = function(*leaves)
        weights = torch.linspace(0.5, 1.5, made.numel(), dtype=made.dtype).reshape(made.shape)
        wanted = [x for x in leaves if x.requires_grad]
        return [made.detach(), *torch.autograd.grad(made, wanted, weights)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = make_fx(both, decomposition_table=backend.decompositions(),
                         tracing_mode="fake")(*tensors)  # fmt: skip
        traced = from_fx(module)
    found = evaluate(traced.graph, [tensors[i].numpy() for i in traced.inputs])
    exact = both(*(x.double() if x.is_floating_point() else x for x in tensors))
    for (kind, place), want in zip(traced.outputs, exact, strict=True):
        assert kind == "value"
        scale = max(1.0, float(want.abs().max()))
        np.testing.assert_allclose(found[place], want.numpy(), rtol=2e-5, atol=2e-5 * scale)


IMAGE, LINE, VOLUME = normal(2, 4, 9, 7), normal(2, 4, 11), normal(1, 4, 5, 4, 6)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((4, 3, 3, 2), {"stride": 2, "padding": 1, "output_padding": 1}),
        ((4, 3, 3, 2), {"stride": (1, 2), "dilation": (3, 1), "output_padding": (2, 1)}),
        ((4, 2, 2, 3), {"stride": 3, "groups": 2}),
        ((4, 1, 3, 3), {"padding": 2, "groups": 4, "dilation": 2}),
    ],
)
def test_a_transposed_convolution(shape, options):
    weight = normal(*shape)
    bias = normal(shape[1] * options.get("groups", 1))
    agree(lambda x, w, b: F.conv_transpose2d(x, w, b, **options), IMAGE, weight, bias)


def test_transposed_convolutions_of_lines_and_volumes():
    agree(lambda x, w: F.conv_transpose1d(x, w, stride=2, padding=1), LINE, normal(4, 3, 4))
    agree(lambda x, w: F.conv_transpose3d(x, w, stride=2), VOLUME, normal(4, 2, 2, 1, 3))


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3},
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
        {"kernel_size": (2, 3), "stride": (3, 2), "dilation": 2, "ceil_mode": True},
        {"kernel_size": 2, "stride": 3, "ceil_mode": True},
    ],
)
@pytest.mark.parametrize("alone", [False, True])
def test_the_largest_under_windows(options, alone):
    agree(lambda x: F.max_pool2d(x, **options), IMAGE[0] if alone else IMAGE)


def test_the_largest_of_a_line_and_of_a_volume():
    agree(lambda x: F.max_pool1d(x, 3, 2, 1, ceil_mode=True), LINE)
    agree(lambda x: F.max_pool3d(x, 2, ceil_mode=True), VOLUME)
    agree(lambda x: F.max_pool3d(x, (2, 1, 3), (1, 2, 2), (1, 0, 1)), VOLUME[0])


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
        {"kernel_size": (2, 3), "stride": (3, 2), "padding": 1, "ceil_mode": True},
        {"kernel_size": 4, "stride": 3, "ceil_mode": True, "count_include_pad": False},
        {"kernel_size": 2, "divisor_override": 3},
    ],
)
def test_means_under_windows(options):
    agree(lambda x: F.avg_pool2d(x, **options), IMAGE)
    agree(lambda x: F.avg_pool2d(x, **options), IMAGE[1])


def test_means_of_volumes():
    agree(lambda x: F.avg_pool3d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), VOLUME)


@pytest.mark.parametrize("size", [(3, 3), (4, 2), (9, 1), (2, 7)])
def test_the_largest_of_adaptive_windows(size):
    agree(lambda x: F.adaptive_max_pool2d(x, size), IMAGE)


def test_the_largest_of_adaptive_windows_of_lines_and_volumes():
    agree(lambda x: F.adaptive_max_pool1d(x, 4), LINE)
    agree(lambda x: F.adaptive_max_pool3d(x, (2, 3, 4)), VOLUME)


@pytest.mark.parametrize(
    ("axis", "size", "step"), [(2, 3, 3), (2, 3, 2), (3, 5, 1), (1, 2, 3), (-1, 1, 4), (3, 7, 9)]
)
def test_windows_as_an_axis(axis, size, step):
    agree(lambda x: x.unfold(axis, size, step) * 2, IMAGE)


@pytest.mark.parametrize("padding", [(2, 3), (1, 0, 2, 1), (3, -1, -2, 4)])
def test_repeated_edges(padding):
    agree(lambda x: F.pad(x, padding, mode="replicate"), IMAGE if len(padding) > 2 else LINE)
