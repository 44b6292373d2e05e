"""Products in groups, as layers of experts make them, against one product for each group."""

import math

import pytest

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
held = pytest.importorskip("tests.graph.torch_gradients", reason="the extra `torch`")
agree, normal, values = held.agree, held.normal, held.values
pytest.importorskip("transformers.integrations.moe", reason="the extra `torch`")
fallback = torch.ops.transformers.grouped_mm_fallback
ENDS = torch.tensor([2, 2, 5, 6], dtype=torch.int32)  # the second has no rows, two are in none
X, W = normal(8, 8), normal(4, 8, 16)
BOUNDS = [(0, 2), (2, 2), (2, 5), (5, 8)]


def by_group(x, weight, ends):
    """The definition, in float64."""
    out = torch.zeros(x.shape[0], weight.shape[2], dtype=torch.float64)
    for n, (a, b) in enumerate(zip([0, *ends.tolist()[:-1]], ends.tolist(), strict=True)):
        out[a:b] = x[a:b].double() @ weight[n].double()
    return out


def near(found, wanted, share):
    torch.testing.assert_close(torch.as_tensor(found).double(), wanted.double(), rtol=share,
                               atol=share * float(wanted.abs().max()))


def grouped(x, weight, *ends):
    """PyTorch's own op, which is traced in bfloat16 only."""
    return torch._grouped_mm(x.bfloat16(), weight.bfloat16(), *ends).float()


@pytest.mark.parametrize("groups", [4, 64])
def test_each_row_meets_the_matrix_of_its_group(groups):
    ends = torch.cat([ENDS, ENDS[-1:].repeat(groups - 4)]).clone()
    ends[-1] = 7  # many groups: every row fetches its own
    weight = normal(groups, 8, 16)
    (got,) = values(fallback, X, weight, ends)
    near(got, by_group(X, weight, ends), 1e-6)
    (whole,) = values(grouped, X[:7], weight, ends)
    near(whole, by_group(X[:7].bfloat16(), weight.bfloat16(), ends), 2**-8)


def test_gradients():
    agree(fallback, X, W, ENDS)
    y, full = normal(8, 16), torch.tensor([2, 2, 5, 8], dtype=torch.int32)

    def slopes(x, weight, ends, y):
        x, weight = x.requires_grad_(), weight.requires_grad_()
        return torch.autograd.grad(grouped(x, weight, ends), [x, weight], y)

    found = values(slopes, X, W, full, y)
    rows, matrices = X.bfloat16().double(), W.bfloat16().double()
    wanted = [torch.cat([y[a:b].double() @ matrices[n].t() for n, (a, b) in enumerate(BOUNDS)]),
              torch.stack([rows[a:b].t() @ y[a:b].double() for a, b in BOUNDS])]
    for got, want in zip(found, wanted, strict=True):
        near(got, want, 2**-7)


def test_other_places_of_the_groups():
    """Groups of columns, and no groups."""
    full = torch.tensor([2, 2, 5, 8], dtype=torch.int32)
    (columns,) = values(lambda w, x, e: grouped(w, x.t(), e), W.mT.contiguous(), X, full)
    w, x = W.bfloat16().double(), X.bfloat16().double()
    near(columns, torch.cat([w[n].t() @ x[a:b].t() for n, (a, b) in enumerate(BOUNDS)], 1), 2**-7)
    y = normal(4, 8, 8)
    (each,) = values(grouped, y, W)
    near(each, y.bfloat16().double() @ w, 2**-7)


def test_what_is_not_finite_stays_in_its_group():
    bad, x = W.clone(), X.clone()
    bad[2, 0, 0], x[5, 1] = math.inf, math.nan
    (got,) = values(fallback, x, bad, ENDS)
    found = torch.as_tensor(got)
    assert torch.isfinite(found[:2]).all()
    assert torch.isnan(found[5]).all()
    assert not torch.isfinite(found[2:5, 0]).any()
    back = torch.ops.transformers.grouped_mm_fallback_backward
    _, weights = values(back, x, bad, ENDS, normal(8, 16))
    assert torch.isfinite(torch.as_tensor(weights)[:3]).all()
    assert torch.isnan(torch.as_tensor(weights)[3, 1]).all()
