"""Programs for buckets of sizes: padded calls give the module's own results, or are refused."""

import pytest

from opentrn.base import FileFormatError, UsageError

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
nn = torch.nn
neuron = pytest.importorskip("opentrn.frameworks.torch", reason="the extra `torch`")


class Encoder(nn.Module):
    """Attention under a mask, and the mean of what is not padded."""

    def __init__(self):
        super().__init__()
        self.table, self.qkv = nn.Embedding(20, 8), nn.Linear(8, 24)

    def forward(self, ids, mask):
        x = self.table(ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.mT).masked_fill(~mask[:, None], -1e9)
        x = scores.softmax(-1) @ v
        count = mask.sum(1, keepdim=True).clamp(min=1)
        mean = (x * mask[..., None]).sum(1) / count
        return {"states": x, "mean": mean}


AXES = [{0: "batch", 1: "tokens"}] * 2
SIZES = {"batch": [1, 4], "tokens": [8, 16]}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Encoder().eval()


@pytest.fixture(scope="module")
def traced(model):
    return neuron.trace_buckets(model, given(2, 5), AXES, SIZES)


def given(batch, tokens):
    generator = torch.Generator().manual_seed(batch + 100 * tokens)
    ids = torch.randint(0, 20, (batch, tokens), generator=generator)
    return ids, torch.arange(tokens) < torch.arange(1, batch + 1)[:, None] * tokens // batch


@pytest.mark.parametrize("sizes", [(1, 8), (1, 3), (2, 9), (3, 16), (4, 4)])
def test_any_size_up_to_the_largest_gives_the_modules_results(model, traced, sizes):
    args = given(*sizes)
    with torch.no_grad():
        wanted = model(*args)
    found = traced(*args)
    for name in ("states", "mean"):
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-5, atol=1e-5)
    assert len(traced.programs) == 4


def test_the_least_bucket_that_fits_is_taken(traced, monkeypatch):
    taken = []
    for sizes, program in traced.programs.items():
        monkeypatch.setitem(traced.programs, sizes, _noting(taken, sizes, program))
    for sizes in [(1, 8), (1, 9), (2, 8), (4, 16)]:
        traced(*given(*sizes))
    assert taken == [(1, 8), (1, 16), (4, 8), (4, 16)]


def _noting(taken, sizes, program):
    def run(*args):
        assert all(tuple(x.shape) == sizes for x in args)
        taken.append(sizes)
        return program(*args)

    return run


def test_files(traced, tmp_path):
    loaded = neuron.load_buckets(traced.save(tmp_path / "model"))
    args = given(3, 5)
    for name, found in loaded(*args).items():
        assert torch.equal(found, traced(*args)[name])
    with pytest.raises(FileFormatError, match="holds no buckets"):
        neuron.load_buckets(tmp_path)


def test_tensors_of_the_device_and_results_that_grow_by_more(model):
    class Doubled(nn.Module):
        def forward(self, x):
            return torch.cat([x, x]), x.sum(1)

    class Stacked(nn.Module):
        def forward(self, x):
            return torch.stack([x, -x], 1).flatten(0, 1)

    made = neuron.trace_buckets(Stacked(), torch.ones(2, 3), [{0: "rows"}], {"rows": [5]})
    x = torch.randn(3, 3)
    found = made(x.to("neuron"))
    assert found.device.type == "neuron"
    torch.testing.assert_close(found.cpu(), Stacked()(x))
    with pytest.raises(UsageError) as refused:  # what is padded lies between the two
        neuron.trace_buckets(Doubled(), torch.ones(2, 3), [{0: "rows"}], {"rows": [5]})
    assert refused.value.code == "frameworks.padding"


def test_a_module_that_reads_its_padding_is_refused():
    with pytest.raises(UsageError, match="changes when `tokens` is padded") as refused:
        neuron.trace_buckets(lambda x: x.mean(1), torch.ones(2, 5), [{0: "batch", 1: "tokens"}],
                             SIZES)  # fmt: skip
    assert refused.value.code == "frameworks.padding"


def test_what_does_not_fit_is_refused(model, traced):
    for args, told in [(given(5, 8), "`batch` is 5, the largest bucket 4"),
                       ((given(2, 8)[0], given(2, 7)[1]), "`tokens` is 8 and, in tensor 1, 7")]:
        with pytest.raises(UsageError) as refused:
            traced(*args)
        assert refused.value.code == "frameworks.bucket"
        assert refused.value.what == told
    for axes, sizes in [(AXES[:1], SIZES), (AXES, {"batch": [1]}), (AXES, {**SIZES, "tokens": []}),
                        ([{}, {}], {})]:
        with pytest.raises(UsageError) as refused:
            neuron.trace_buckets(model, given(2, 5), axes, sizes)
        assert refused.value.code == "frameworks.bucket"
