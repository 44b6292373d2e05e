"""Running extremes, distances, writes at places and under masks, as graphs, against torch."""

import functools
import math

import pytest

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
held = pytest.importorskip("tests.graph.torch_gradients", reason="the extra `torch`")
agree, normal, F = held.agree, held.normal, torch.nn.functional
TABLE, PLACES = normal(5, 6), torch.tensor([[0, 2, 2, 4], [3, 0, 0, 1], [2, 2, 1, 1]])


@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize("axis", [0, -1])
def test_running_extremes_and_where_they_are(name, axis):
    ties = torch.tensor([[2.0, 2.0, 1.0, 3.0, 3.0, 1.0], [1.0, math.nan, 5.0, math.nan, 7.0, 0.0]])
    for x in (TABLE, ties, (TABLE * 3).int()):
        agree(lambda x: getattr(torch, name)(x, axis)[0] * 1, x)
        agree(lambda x: getattr(torch, name)(x.detach(), axis)[1], x)


def test_running_sums_of_exponentials():
    apart = torch.tensor([[-80.0, -math.inf, 3.0, 60.0, -5.0, 2.0, 1.0]]).repeat(2, 1)
    for x in (TABLE, apart, torch.full((3, 4), -math.inf)):
        agree(lambda x: torch.logcumsumexp(x.detach(), 1), x)
    agree(lambda x: torch.logcumsumexp(x, 0), TABLE)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, math.inf])
def test_distances(p):
    rows = torch.cat([TABLE, TABLE[:1]])  # one row twice: a distance of 0
    agree(lambda x, y: torch.cdist(x, y, p), normal(2, 4, 6), normal(2, 3, 6))
    if p >= 1:
        agree(lambda x: F.pdist(x, p), rows)
    agree(lambda x: F.pdist(x, p), TABLE)


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_what_is_combined_in_at_places(reduce, whole):
    def by_place(x, y, places):
        return x.scatter_reduce(1, places, y, reduce, include_self=whole)

    def by_row(x, y, rows):
        return x.index_reduce(0, rows, y, reduce, include_self=whole)

    agree(by_place, TABLE, normal(3, 4), PLACES)
    agree(lambda x, y, p: by_place(x.detach(), y.detach(), p), TABLE, normal(3, 5), PLACES)
    numbers = torch.arange(30).reshape(5, 6) - 9, torch.arange(15).reshape(3, 5) - 7
    agree(by_place, *numbers, PLACES)
    exact = torch.tensor([2**29 + 5, 1, -7], dtype=torch.int32)  # beyond the digits of float32
    if reduce in ("sum", "mean", "amax"):
        (got,) = held.values(lambda x, p: torch.ones(3, dtype=torch.int32).scatter_reduce(
            0, p, x, reduce, include_self=whole), exact, torch.tensor([0, 0, 2]))
        assert got.tolist() == torch.ones(3, dtype=torch.int32).scatter_reduce(
            0, torch.tensor([0, 0, 2]), exact, reduce, include_self=whole).tolist()
    if reduce != "sum":
        agree(by_row, TABLE, normal(4, 6), PLACES[0])


@pytest.mark.filterwarnings("ignore:The reduce argument")
def test_numbers_added_and_multiplied_in():
    whole, places = (TABLE * 4).int(), torch.tensor([[3, -1], [7, 3]])
    agree(lambda x, y, p: x.scatter(1, p, y, reduce="add"), whole, whole[:3, :5], PLACES)
    agree(lambda x, p: x.scatter(1, p, 3, reduce="multiply"), whole, PLACES)
    agree(lambda x, y, p: x.put(p, y, accumulate=True), TABLE, normal(2, 2), places)


def test_writes_under_masks():
    mask = TABLE > 0.3
    agree(lambda x, y, m: torch.index_put(x, (m,), y.detach()), TABLE, normal(1), mask)
    agree(lambda x, y, m: torch.index_put(x, (m,), y.detach()), TABLE, normal(6), mask[:, 0])
    agree(lambda x, y, m: torch.ops.aten.index_put(x, [None, m], y.detach()), TABLE, normal(1)[0],
          mask[0])
    agree(lambda x, y, m: torch.index_put(x, (m,), y.detach(), True), TABLE, normal(1), mask)


@pytest.mark.parametrize("shape", [(5, 6), (6,), (5, 1)])
def test_elements_in_order_under_a_mask(shape):
    mask = normal(*shape) > 0
    agree(lambda x, y, m: x.masked_scatter(m, y), TABLE, normal(6, 7), mask)


def test_too_few_elements_under_a_mask_become_nan():
    x, y, mask = torch.zeros(4), torch.ones(2), torch.tensor([True, True, False, True])
    (found,) = held.values(lambda x, y, m: [x.masked_scatter(m, y)], x, y, mask)
    assert found[:3].tolist() == [1.0, 1.0, 0.0]
    assert math.isnan(found[3])


def test_functions():
    small = torch.linspace(-1, 1, 23)
    agree(lambda x: torch.erfinv(x.detach()), torch.cat([small, torch.tensor([1e-6, 0.9999, 2.0])]))
    agree(lambda x: torch.erfinv(x), small[1:-1])
    agree(lambda x: torch.angle(x.detach()), torch.tensor([-2.0, -0.0, 0.0, 3.0, math.nan]))
    edges = torch.cat([TABLE.reshape(-1), torch.tensor([0.5, -0.5])])
    agree(lambda x: F.hardshrink(x, 0.5), edges)
    agree(lambda x: F.softshrink(x, 0.5), edges)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_counts_in_bins(kind):
    apart = torch.tensor([0.0, 1.0, 2.0, 3.0, 3.0, math.nan, 9.0, -0.5])
    for x, settings in [(normal(3, 50), {"bins": 7}),
                        (normal(50), {"bins": 5, "min": -1, "max": 2}),
                        (torch.full((4,), 3.0), {"bins": 3}),
                        (apart, {"bins": 4, "min": 0, "max": 3}),
                        (torch.arange(1000) / 1000, {"max": 1})]:
        given = x.to(kind).float()
        want = torch.histc(given, **settings)
        (got,) = held.values(functools.partial(torch.histc, **settings), given)
        assert torch.equal(torch.as_tensor(got), want)


def test_the_kth_smallest():
    for k, axis, keep in [(1, -1, False), (3, 0, True), (6, 1, False)]:
        agree(lambda x, k=k, axis=axis, keep=keep: torch.kthvalue(x, k, axis, keep)[0], TABLE)
        agree(lambda x, k=k, axis=axis: torch.kthvalue(x.detach(), k, axis)[1], TABLE)


ALONE = {
    "softmax": lambda x: x.softmax(0), "log_softmax": lambda x: x.log_softmax(-1),
    "sort": lambda x: x.sort(0)[0], "argsort": lambda x: x.detach().argsort(-1),
    "topk": lambda x: x.topk(1, 0)[0], "topk of none": lambda x: x.topk(0)[0],
    "where topk": lambda x: x.detach().topk(1)[1], "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1), "kthvalue": lambda x: x.kthvalue(1)[0],
    "cumsum": lambda x: x.cumsum(0), "max": lambda x: x.max(0)[0], "amax": lambda x: x.amax(-1),
    "logsumexp": lambda x: x.logsumexp(0), "cummax": lambda x: x.cummax(0)[0],
    "argmax": lambda x: x.detach().argmax(0), "norm": lambda x: x.norm(dim=0),
}  # fmt: skip


@pytest.mark.parametrize("name", ALONE)
def test_a_tensor_without_axes_is_one_element_along_its_dim(name):
    agree(ALONE[name], torch.tensor(3.5))
