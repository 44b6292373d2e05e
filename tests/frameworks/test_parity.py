"""What PyTorch gives its own devices, on `neuron`: held against the CPU."""

import copy
import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("opentrn.frameworks.torch")
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from opentrn.base import TrnError  # noqa: E402


def numbers(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def near(found, expected, tolerance=1e-4):
    torch.testing.assert_close(found.detach().cpu(), expected.detach(), rtol=tolerance,
                               atol=tolerance)  # fmt: skip


def test_copies_of_tensors_and_models_are_their_own():
    x = numbers(4, 3).to("neuron")
    for given in (x, x[1:], x.t(), x.bfloat16()):
        made = copy.deepcopy(given)
        assert made.device.type == "neuron"
        assert made.stride() == given.stride()
        assert torch.equal(made.cpu(), given.cpu())
    norm = nn.BatchNorm1d(3).to("neuron")
    other = copy.deepcopy(norm)
    norm(x)
    assert norm.running_mean.abs().sum() > 0
    assert other.running_mean.abs().sum() == 0


def test_storages_of_the_device():
    made = torch.UntypedStorage(8, device="neuron:1")
    assert (made.device, made.nbytes()) == (torch.device("neuron", 1), 8)
    x = numbers(5).to("neuron")
    assert x.untyped_storage().clone().tolist() == x.cpu().untyped_storage().tolist()
    assert torch.UntypedStorage(8).device.type == "cpu"
    assert torch.UntypedStorage([1, 2]).tolist() == [1, 2]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 5)
        self.out = nn.Linear(5, 9, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(self.embed(x))


def test_parameters_stay_themselves_when_a_module_moves():
    """An optimizer made before `.to` trains what the module has after it, as on other devices."""
    torch.manual_seed(0)
    here = Tied()
    there = copy.deepcopy(here)
    weight = there.embed.weight
    weight.note = "mine"
    pairs = [(m, torch.optim.SGD(m.parameters(), lr=0.1)) for m in (here, there)]
    there.to("neuron")
    assert there.embed.weight is there.out.weight is weight
    assert (weight.device.type, weight.note) == ("neuron", "mine")
    for module, optimizer in pairs:
        device = module.embed.weight.device
        module(torch.arange(6, device=device)).pow(2).sum().backward()
        optimizer.step()
    near(there.embed.weight, here.embed.weight)
    there.cpu()
    assert there.embed.weight is there.out.weight is weight
    assert weight.device.type == "cpu"


def test_tied_weights_stay_tied_where_parameters_become_new_ones():
    module = Tied()
    loss = module(torch.arange(3)).sum()  # its graph holds the parameter
    module.to("neuron")
    assert module.embed.weight is module.out.weight
    assert module.embed.weight.device.type == "neuron"
    loss.backward()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_and_their_gradients(kind):
    torch.manual_seed(0)
    here = kind(5, 7, num_layers=2, bidirectional=True, batch_first=True)
    there = copy.deepcopy(here).to("neuron")
    given = numbers(3, 4, 5)
    found = []
    for module, device in ((here, "cpu"), (there, "neuron")):
        x = given.clone().to(device).requires_grad_()
        out, state = module(x)
        (out.pow(2).sum() + sum(s.sum() for s in torch.utils._pytree.tree_leaves(state))).backward()
        found.append([out, x.grad, *(p.grad for p in module.parameters())])
    for expected, got in zip(*found, strict=True):
        near(got, expected)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_cells(kind, bias):
    torch.manual_seed(0)
    here = kind(5, 7, bias=bias)
    there = copy.deepcopy(here).to("neuron")
    found = []
    for module, device in ((here, "cpu"), (there, "neuron")):
        x = numbers(3, 5).to(device).requires_grad_()
        out = module(x)
        out = out[1] if isinstance(out, tuple) else out  # the cell state alone: no grad_hy
        out.sin().sum().backward()
        found.append([out, x.grad, *(p.grad for p in module.parameters() if p.grad is not None)])
    for expected, got in zip(*found, strict=True):
        near(got, expected)


def test_checkpointing_repeats_what_dropout_drew():
    x = torch.ones(32, 32, device="neuron", requires_grad=True)
    y = checkpoint(lambda t: nn.functional.dropout(t, 0.5) * t, x, use_reentrant=False)
    y.sum().backward()
    near(x.grad, 2 * y.detach().cpu())  # d(m·t²)/dt = 2·m·t, and t is 1


def test_tensors_of_several_devices_are_refused():
    x = numbers(3, 3).to("neuron")
    for call in (lambda: torch.mm(x, numbers(3, 3)), lambda: torch.cat([x, x.to("neuron:1")]),
                 lambda: torch.where(x > 0, numbers(3, 3), x), lambda: nn.Linear(3, 3)(x),
                 lambda: x.index_select(0, torch.tensor([1]))):  # fmt: skip
        with pytest.raises(TrnError, match="same device") as refused:
            call()
        assert refused.value.code == "frameworks.mixed_devices"
    near(x * torch.tensor(2.0), numbers(3, 3) * 2)
    near(x[torch.tensor([2, 0])], numbers(3, 3)[[2, 0]])


def test_threads_may_use_the_device_at_once():
    torch.manual_seed(0)
    here = nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 2))
    there = copy.deepcopy(here).to("neuron")
    found = {}

    def work(n):
        found[n] = there(numbers(2 + n, 6).to("neuron"))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(4):
        near(found[n], here(numbers(2 + n, 6)))


def test_torch_accelerator():
    a = torch.accelerator
    a.synchronize()
    a.empty_cache()
    a.empty_host_cache()
    before = a.memory_allocated()
    x = torch.empty(1000, device="neuron")
    assert a.memory_allocated() - before == 4000
    assert a.max_memory_allocated() >= a.memory_allocated() == a.memory_reserved()
    a.reset_peak_memory_stats()
    a.reset_accumulated_memory_stats()
    assert a.memory_stats()["allocated_bytes.all.allocated"] == 0
    free, total = a.get_memory_info()
    assert total - free == a.memory_allocated() == a.memory_stats()["allocated_bytes.all.current"]
    assert torch.bfloat16 in a.get_device_capability()["supported_dtypes"]
    assert a.current_device_index() == 0
    with a.device_index(2):
        assert a.current_device_index() == torch.empty(1, device="neuron").device.index == 2
    a.set_device_index(1)
    assert torch.empty(1, device="neuron").device.index == 1
    a.set_device_index(0)
    assert a.current_stream().device.type == "neuron"
    a.set_stream(a.current_stream())
    first, last = torch.Event("neuron", enable_timing=True), torch.Event(enable_timing=True)
    first.record()
    x + 1
    last.record()
    last.synchronize()
    assert first.elapsed_time(last) > 0


def test_seeds_of_all_devices():
    states = torch.neuron.get_rng_state_all()
    first = torch.rand(4, device="neuron:1")
    torch.neuron.set_rng_state_all(states)
    assert torch.equal(torch.rand(4, device="neuron:1").cpu(), first.cpu())
    torch.neuron.seed_all()
    assert torch.neuron.initial_seed() == torch.neuron.initial_seed()
    assert not torch.equal(torch.rand(4, device="neuron:1").cpu(), first.cpu())


def test_pinned_memory_and_loaders():
    data = torch.utils.data.TensorDataset(numbers(6, 2))
    loader = torch.utils.data.DataLoader(data, batch_size=3, pin_memory=True)
    got = torch.cat([x.to("neuron", non_blocking=True).cpu() for (x,) in loader])
    assert torch.equal(got, numbers(6, 2))


def test_data_parallel_is_refused():
    with pytest.raises(TrnError, match="DataParallel") as refused:
        nn.DataParallel(nn.Linear(2, 2).to("neuron"))
    assert refused.value.code == "frameworks.data_parallel"
    assert isinstance(nn.DataParallel(nn.Linear(2, 2)).module, nn.Linear)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=str)
def test_uniform_numbers_of_narrow_floats_stay_below_one(kind):
    grid = 2.0 ** {torch.bfloat16: 8, torch.float16: 11}[kind]  # bits of their fractions, and one
    drawn = torch.compile(lambda: torch.rand(1 << 15, dtype=kind), backend="neuron")()
    filled = torch.empty(1 << 15, dtype=kind, device="neuron").uniform_()
    for found in (torch.rand(1 << 15, dtype=kind, device="neuron"), filled, drawn):
        exact = found.cpu().double()
        assert exact.max() == 1 - 1 / grid
        assert exact.min() >= 0
        assert (exact * grid % 1 == 0).all()
        # The mean of all multiples of 1/grid below 1; five standard deviations of 2^15 draws.
        assert abs(exact.mean() - (0.5 - 0.5 / grid)) < 5 * (1 / 12 / 2**15) ** 0.5


def test_numbers_of_other_dtypes_are_drawn_where_torch_draws_them():
    with pytest.raises(NotImplementedError, match="Char"):
        torch.empty(9, dtype=torch.int8, device="neuron").uniform_(0, 100)


# Dynamo imports TorchInductor there, whose import warns of what PyTorch deprecates.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("foreach", [True, False])
def test_optimizers_compile_whether_or_not_they_step_over_lists(foreach):
    torch.manual_seed(0)
    here = nn.Linear(4, 3)
    there = copy.deepcopy(here).to("neuron")
    plain = torch.optim.AdamW(here.parameters(), lr=0.01, foreach=False)
    listed = torch.optim.AdamW(there.parameters(), lr=0.01, foreach=foreach)
    step = torch.compile(lambda: listed.step(), backend="neuron")
    for _ in range(2):
        for module, take in ((here, plain.step), (there, step)):
            module.zero_grad()
            x = torch.ones(2, 4, device=module.weight.device)
            module(x).pow(2).sum().backward()
            take()
    for expected, got in zip(here.parameters(), there.parameters(), strict=True):
        near(got, expected)


@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_shifts_compile(numerics):
    x = torch.tensor([5, -9, 1 << 20, 7], dtype=torch.int32)

    def shifted(x):
        return x << 2, x >> 1, x.to(torch.uint8) >> 1, x.long() >> 3, 1 << (x & 3)

    torch._dynamo.reset()
    found = torch.compile(shifted, backend="neuron", options={"numerics": numerics})(x)
    for got, expected in zip(found, shifted(x), strict=True):
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected)


def test_a_cast_the_chip_does_not_have_runs_on_the_cpu_with_a_warning():
    x = numbers(4, 4)
    held = x.to("neuron")
    with pytest.warns(UserWarning, match="float8_e4m3fn"):
        found = held.to(torch.float8_e4m3fn)
    assert found.device.type == "neuron"
    assert torch.equal(found.cpu().view(torch.uint8), x.to(torch.float8_e4m3fn).view(torch.uint8))


def test_torch_cond_says_what_to_write():
    def choose(x):
        return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))

    with pytest.raises(TrnError) as refused:
        torch.compile(choose, backend="neuron")(torch.ones(3))
    assert "torch.where(condition, a, b)" in refused.value.fix
    assert "there is" not in refused.value.what  # no op is nearly called cond


def test_a_loaded_model_says_that_it_is_exact(tmp_path):
    from opentrn.frameworks import torch as front

    traced = front.trace(nn.Linear(4, 3), torch.ones(2, 4), numerics="fast")
    traced.save(tmp_path / "fast.trn")
    with pytest.warns(front.ExactWarning, match="exact"):
        loaded = front.load(tmp_path / "fast.trn")
    near(loaded(torch.ones(2, 4)), traced(torch.ones(2, 4)))
