"""Gradients of what looks through windows, as graphs, against torch's autograd in float64."""

import pytest

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
held = pytest.importorskip("tests.graph.torch_gradients", reason="the extra `torch`")
agree, normal, F = held.agree, held.normal, torch.nn.functional

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


def test_the_place_of_the_largest_is_that_of_nan():
    image = IMAGE.clone()
    image[0, 0, 3, 3] = image[0, 1, 2, 2] = torch.nan
    for pooled in (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
                   lambda x: F.adaptive_max_pool2d(x, (3, 2), return_indices=True)):
        agree(lambda x, pooled=pooled: pooled(x.detach())[1], image)
        assert pooled(image)[0].isnan().sum() > 1


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


@pytest.mark.parametrize("size", [(5, 4), (18, 3), (9, 20)])
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_interpolation_with_antialiasing(mode, align, size):
    agree(lambda x: F.interpolate(x, size, mode=mode, align_corners=align, antialias=True), IMAGE)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_interpolation(mode):
    agree(lambda x: F.interpolate(x, 17, mode=mode), LINE)
    agree(lambda x: F.interpolate(x, (4, 9), mode=mode), IMAGE)
    agree(lambda x: F.interpolate(x, scale_factor=1.7, mode=mode), IMAGE)
    agree(lambda x: F.interpolate(x, (3, 8, 6), mode=mode), VOLUME)
