"""The rules training needs, against torch's own kernels and autograd, one op of ATen at a time."""

import warnings

import numpy as np
import pytest

from opentrn.base import UnsupportedError
from opentrn.graph import evaluate, from_fx

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
aten = torch.ops.aten


def check(function, *tensors, tolerance=1e-5):
    """Trace the function into ATen ops as they are; the graph's values are torch's."""
    from torch.fx.experimental.proxy_tensor import make_fx

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = from_fx(make_fx(function)(*tensors))
    found = evaluate(traced.graph, [tensors[i].numpy() for i in traced.inputs])
    for (kind, place), want in zip(traced.outputs, function(*tensors), strict=True):
        if want is None:
            assert (kind, place) == ("fixed", None)
            continue
        got = found[place]
        assert got.shape == tuple(want.shape)
        assert str(got.dtype) == str(want.dtype).removeprefix("torch.")
        np.testing.assert_allclose(got, want.numpy(), rtol=tolerance, atol=tolerance)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def test_norms_give_their_statistics():
    x, w, b = normal(3, 4, 6), normal(4, 6), normal(4, 6, seed=1)
    check(lambda x, w, b: aten.native_layer_norm(x, [4, 6], w, b, 1e-5), x, w, b)
    check(lambda x: aten.native_layer_norm(x, [6], None, None, 1e-5), x)
    image, scale, shift = normal(2, 6, 4, 5), normal(6), normal(6, seed=1)
    check(lambda x, w, b: aten.native_group_norm(x, w, b, 2, 6, 20, 3, 1e-5), image, scale, shift)


def test_batch_norm_moves_its_running_statistics():
    image, scale, shift = normal(3, 6, 4, 5), normal(6), normal(6, seed=1)
    mean, variance = normal(6, seed=2), normal(6, seed=3).abs()
    check(lambda x, w, b, m, v: aten._native_batch_norm_legit_functional(
        x, w, b, m, v, True, 0.3, 1e-5), image, scale, shift, mean, variance)
    check(lambda x, w, b, m, v: aten._native_batch_norm_legit_functional(
        x, w, b, m, v, False, 0.3, 1e-5)[::3], image, scale, shift, mean, variance)
    check(lambda x: aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5), image)


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("shape", [(5, 7), (2, 7, 3, 4)])
def test_loss_by_class(reduction, shape):
    scores, weight = normal(*shape).log_softmax(1), normal(7).abs()
    target = torch.arange(scores.numel() // 7).reshape(shape[0], *shape[2:]) % 7
    forward = aten.nll_loss_forward if len(shape) == 2 else aten.nll_loss2d_forward
    backward = aten.nll_loss_backward if len(shape) == 2 else aten.nll_loss2d_backward
    for ignored in (-100, 3):
        def loss(s, t, w, ignored=ignored):
            return forward(s, t, w, reduction, ignored)

        def slope(g, s, t, w, n, ignored=ignored):
            return (backward(g, s, t, w, reduction, ignored, n),)

        check(lambda s, t, w: loss(s, t, w)[:1], scores, target, weight)
        found, total = loss(scores, target, weight)
        check(lambda g, s, t, w, n: slope(g, s, t, w, n), torch.full_like(found, 0.5), scores,
              target, weight, total)


def test_loss_of_an_impossible_class_is_not_nan():
    scores = torch.tensor([[0.0, -torch.inf], [-1.0, -torch.inf]])
    check(lambda s, t: aten.nll_loss_forward(s, t, None, 1, -100), scores, torch.tensor([0, 0]))


@pytest.mark.parametrize("padding", [-1, 2])
def test_embedding_gradients_add_up(padding):
    ids = torch.tensor([[0, 2, 2], [4, 0, 2]])
    check(lambda g, i: (aten.embedding_dense_backward(g, i, 6, padding, False),),
          normal(2, 3, 5), ids)


@pytest.mark.parametrize(("causal", "masked"), [(False, False), (True, False), (False, True)])
def test_attention_and_its_gradients(causal, masked):
    q, k, v, grad = (normal(2, 3, 5, 4, seed=s) for s in range(4))
    mask = normal(2, 1, 5, 5) if masked else None
    extra = {"attn_mask": mask, "scale": 0.7} if masked else {}
    flash = aten._scaled_dot_product_flash_attention_for_cpu
    back = aten._scaled_dot_product_flash_attention_for_cpu_backward
    out, total = flash(q, k, v, 0.0, causal, **extra)
    given = (q, k, v) if mask is None else (q, k, v, mask)

    def forward(q, k, v, *mask):
        more = {"attn_mask": mask[0], "scale": 0.7} if mask else {}
        return flash(q, k, v, 0.0, causal, **more)

    def backward(grad, out, total, q, k, v, *mask):
        more = {"attn_mask": mask[0], "scale": 0.7} if mask else {}
        return back(grad, q, k, v, out, total, 0.0, causal, **more)

    check(forward, *given)
    check(backward, grad, out, total, *given)


CONVOLUTIONS = {
    "plain": ((2, 3, 6, 7), (4, 3, 3, 2), {}),
    "strided": ((2, 3, 9, 8), (4, 3, 3, 3), {"stride": (2, 3), "padding": (1, 2)}),
    "grouped": ((1, 4, 6, 6), (6, 2, 3, 3), {"groups": 2, "padding": (1, 1)}),
    "dilated": ((1, 2, 9, 9), (3, 2, 3, 3), {"dilation": (2, 1), "stride": (1, 2)}),
    "depthwise": ((2, 4, 7), (4, 1, 3), {"groups": 4, "padding": (1,), "stride": (2,)}),
    "padded more than it reaches": ((1, 1, 5, 5), (1, 1, 1, 1), {"padding": (1, 1)}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_gradients(name):
    shape, kernel, options = CONVOLUTIONS[name]
    image, weight = normal(*shape), normal(*kernel)
    n = len(kernel) - 2
    stride, padding, dilation = (options.get(w, (d,) * n) for w, d in
                                 (("stride", 1), ("padding", 0), ("dilation", 1)))
    groups = options.get("groups", 1)
    out = aten.convolution(image, weight, None, stride, padding, dilation, False, [0] * n, groups)
    check(lambda g, x, w: aten.convolution_backward(
        g, x, w, [w.shape[0]], stride, padding, dilation, False, [0] * n, groups,
        [True, True, True]), normal(*out.shape, seed=5), image, weight, tolerance=2e-5)


@pytest.mark.parametrize(("size", "stride", "padding"), [(2, 2, 0), (3, 2, 1), (3, 1, 1)])
def test_max_pooling_gradients(size, stride, padding):
    # Small whole numbers: many windows hold their maximum more than once.
    image = torch.randint(-2, 3, (2, 3, 7, 6), generator=torch.Generator().manual_seed(0)).float()
    settings = ([size, size], [stride, stride], [padding, padding])
    check(lambda x: aten.max_pool2d_with_indices(x, *settings), image)
    out, places = aten.max_pool2d_with_indices(image, *settings)
    check(lambda g, x, i: (aten.max_pool2d_with_indices_backward(
        g, x, *settings, [1, 1], False, i),), normal(*out.shape), image, places)


def test_average_pooling_gradients():
    image = normal(2, 3, 7, 6)
    out = aten.avg_pool2d(image, [3, 2], [2, 2], [1, 0])
    check(lambda g, x: (aten.avg_pool2d_backward(g, x, [3, 2], [2, 2], [1, 0], False, True, None),),
          normal(*out.shape), image)
    image = normal(2, 3, 8, 6)
    check(lambda g, x: (aten._adaptive_avg_pool2d_backward(g, x),), normal(2, 3, 4, 3), image)


def test_gradients_of_slices_and_elements():
    sizes = [4, 7]
    for start, end, step in ((1, 6, 2), (0, 9, 1), (-3, 7, 3)):
        taken = len(range(7)[start:end:step])

        def back(g, place=(start, end, step)):
            return (aten.slice_backward(g, sizes, 1, *place),)

        check(lambda g: back(g), normal(4, taken))
    check(lambda g: (aten.select_backward(g, sizes, -1, -2),), normal(4))
    x = normal(4, 7)
    check(lambda x, y: (aten.slice_scatter(x, y, 1, 2, 5), aten.select_scatter(x, y[:, 0], 1, 6)),
          x, normal(4, 3))


def test_random_numbers_are_inputs():
    from torch.fx.experimental.proxy_tensor import make_fx

    def noisy(x):
        return [x * (torch.rand_like(x) > 0.5), None, 3]

    traced = from_fx(make_fx(noisy, tracing_mode="fake")(normal(2, 3)))
    assert [(d.function, d.shape) for d in traced.draws] == [("rand", (2, 3))]
    assert traced.inputs == (0,)
    assert traced.outputs == (("value", 0), ("fixed", None), ("fixed", 3))
    numbers = np.array([[0.4, 0.6, 0.5], [0.9, 0.1, 0.7]], np.float32)
    found = evaluate(traced.graph, [np.ones((2, 3), np.float32), numbers])[0]
    assert found.tolist() == [[0, 1, 0], [1, 0, 1]]


def test_constants_are_no_inputs():
    from torch.fx.experimental.proxy_tensor import make_fx

    def affine(x, w):
        return [x + w]

    x, w = normal(2, 3), normal(3)
    traced = from_fx(make_fx(affine, tracing_mode="fake")(x, w), {1: w})
    assert traced.inputs == (0,)
    np.testing.assert_array_equal(evaluate(traced.graph, [x.numpy()])[0], (x + w).numpy())


def test_what_has_no_rule_is_named():
    from torch.fx.experimental.proxy_tensor import make_fx

    def odd(x):
        return aten.bincount(x[0].abs().int()), aten.linalg_inv_ex(x)[0]

    traced = make_fx(odd)(normal(5, 5))
    with pytest.raises(UnsupportedError, match=r"2 torch ops(.|\n)*bincount(.|\n)*linalg_inv_ex"):
        from_fx(traced)
