"""The device `neuron`: tensors live there, ops run there one by one, and take simulated time."""

import copy
import gc
import io
import warnings

import pytest

from opentrn.base import CapacityError, NotBuiltError, UnsupportedError, UsageError

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
nn, F = torch.nn, torch.nn.functional
neuron = pytest.importorskip("opentrn.frameworks.torch", reason="the extra `torch`")

from opentrn.frameworks.torch.eager import OnCpuWarning  # noqa: E402


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", OnCpuWarning)  # nothing here may run on the CPU
        yield


def close(found, wanted, **tolerance):
    assert found.device.type == "neuron"
    torch.testing.assert_close(found.cpu(), wanted, **tolerance)


# ---------------------------------------------------------------------- tensors


def test_tensors_live_on_the_device():
    x = torch.arange(6.0).reshape(2, 3)
    y = x.to("neuron")
    assert y.device == torch.device("neuron", 0)
    assert y.is_neuron
    assert torch.equal(y.cpu(), x)
    assert torch.equal(x.neuron().cpu(), x)
    assert torch.equal(torch.zeros(2, 3, device="neuron").cpu(), torch.zeros(2, 3))
    assert torch.equal(torch.arange(2, 7, 2, device="neuron").cpu(), torch.arange(2, 7, 2))
    assert torch.tensor([1, 2], device="neuron").tolist() == [1, 2]
    assert torch.tensor(2.5, device="neuron").item() == 2.5


def test_a_tensor_on_the_device_is_its_own_memory():
    x = torch.ones(3)
    y = x.to("neuron")
    x += 1
    assert y.cpu().tolist() == [1, 1, 1]
    z = y.cpu()
    z += 1
    assert y.cpu().tolist() == [1, 1, 1]


VIEWS = {
    "column": lambda x: x[:, 1],
    "transpose": lambda x: x.t(),
    "steps": lambda x: x[::2, 1::2],
    "reshape": lambda x: x.view(6, 4),
    "expand": lambda x: x[:1].expand(5, 6),
    "narrow and turn": lambda x: x[1:3].permute(1, 0),
    "unfold": lambda x: x.unfold(1, 2, 2),
    "as_strided": lambda x: x.as_strided((3, 3), (2, 5), 1),
    "diagonal": lambda x: x.diagonal(),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.int64])
def test_views_share_memory_and_are_read_in_place(name, kind):
    x = torch.arange(24).reshape(4, 6).to(kind)
    y = x.to("neuron")
    found, wanted = VIEWS[name](y), VIEWS[name](x)
    assert found.untyped_storage()._cdata == y.untyped_storage()._cdata
    assert found.stride() == wanted.stride()
    close(found, wanted)
    close(found + 1, wanted + 1)


@pytest.mark.parametrize("name", ["column", "transpose", "steps", "narrow and turn"])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.int64])
def test_writing_into_views(name, kind):
    x = torch.arange(24).reshape(4, 6).to(kind)
    y = x.to("neuron")
    for whole in (x, y):
        VIEWS[name](whole).mul_(3)
        VIEWS[name](whole).copy_(VIEWS[name](whole) + 1)
        VIEWS[name](whole)[0] = 7
    close(y, x)


def test_printing():
    x = torch.tensor([[1.5, -2.0], [float("nan"), 1e6]])
    y = x.to("neuron")
    assert repr(y) == repr(x)[:-1] + ", device='neuron:0')"
    assert "requires_grad" in repr(y.requires_grad_())
    assert str(torch.arange(3, device="neuron")) == "tensor([0, 1, 2], device='neuron:0')"


@pytest.mark.parametrize(("size", "step", "seen"), [
    (3, 2, [1, 1, 2, 1, 2, 1, 1, 0]), (4, 4, [1] * 8), (2, 5, [1, 1, 0, 0, 0, 1, 1, 0]),
])  # fmt: skip
def test_gradients_of_windows_are_added_up_where_they_overlap(size, step, seen):
    x = torch.arange(16.0).reshape(2, 8).to("neuron").requires_grad_()
    windows = x.unfold(1, size, step)
    assert windows.tolist() == x.detach().cpu().unfold(1, size, step).tolist()
    windows.sum().backward()
    assert x.grad.tolist() == [seen, seen]  # counted by hand


def test_what_the_chip_lacks_is_refused():
    with pytest.raises(UnsupportedError, match="float64") as caught:
        torch.zeros(3, dtype=torch.float64).to("neuron")
    assert caught.value.at.file == __file__
    with pytest.raises(UnsupportedError, match="complex"):
        torch.zeros(3, dtype=torch.complex64, device="neuron")
    with pytest.raises(UnsupportedError, match="complex64") as caught:
        torch.view_as_complex(torch.ones(3, 2).to("neuron"))
    assert (caught.value.code, caught.value.at.file) == ("frameworks.complex", __file__)
    with pytest.raises(UsageError, match="neuron:8"):
        torch.zeros(3, device="neuron:8")
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device="neuron") + torch.ones(3)


# ---------------------------------------------------------------------- ops

X = torch.linspace(-2, 2, 24).reshape(4, 6)
OPS = {
    "arithmetic": lambda x: (x * 2 + x / 3 - 1).abs(),
    "scalars": lambda x: 2 - x * torch.tensor(3.0),
    "compare": lambda x: (x > 0) & (x < 1),
    "where": lambda x: torch.where(x > 0, x, -x),
    "product": lambda x: x @ x.t(),
    "batched": lambda x: torch.bmm(x[None], x.t()[None]),
    "sums": lambda x: x.sum(1) + x.mean(1) + x.amax(1),
    "softmax": lambda x: x.softmax(-1),
    "cat": lambda x: torch.cat([x, x * 2], 1),
    "stack": lambda x: torch.stack([x, x]),
    "gather": lambda x: x.index_select(1, torch.tensor([2, 0], device=x.device)),
    "in place": lambda x: x.clone().add_(1).mul_(2).clamp_(0, 3),
    "fill": lambda x: torch.full_like(x, 3).fill_(4),
    "out": lambda x: torch.add(x, x, out=torch.empty(4, 6, device=x.device)),
    "out of another shape": lambda x: torch.add(x, x, out=torch.empty(0, device=x.device)),
    "argmax": lambda x: x.argmax(1),
    "max": lambda x: x.max(1).values,
    "norm": lambda x: F.layer_norm(x, (6,)),
    "gelu": lambda x: F.gelu(x),
    "convert": lambda x: x.to(torch.bfloat16).to(torch.int32),
    "embedding": lambda x: F.embedding(torch.tensor([1, 3], device=x.device), x),
    "image": lambda x: F.conv2d(x[None, None], x[None, None, :2, :3], padding=1),
    "pool": lambda x: F.max_pool2d(x[None, None], 2),
    "attention": lambda x: F.scaled_dot_product_attention(*[x[None, None]] * 3, is_causal=True),
    "tri": lambda x: x.tril(),
    "cumsum": lambda x: x.cumsum(1),
    "many": lambda x: torch.meshgrid(x[0], x[1], indexing="ij")[1] + x[0],
    "split": lambda x: x.split(2, 1)[1] * 2,
}


@pytest.mark.parametrize("name", OPS)
def test_ops_give_the_cpus_numbers(name):
    found, wanted = OPS[name](X.to("neuron")), OPS[name](X)
    close(found, wanted, rtol=2e-5, atol=2e-5)


def test_integers_are_counted_in_bins():
    """As on accelerators; PyTorch's CPU does not."""
    n = torch.tensor([0, 3, 3, 1, 9, 2, 3], dtype=torch.int32).to("neuron")
    found = torch.histc(n, bins=4, min=0, max=3)
    assert found.dtype == torch.int32
    assert found.tolist() == [1, 1, 1, 3]


def test_empty_tensors():
    x = torch.ones(0, 3, device="neuron")
    assert (x + 1).shape == (0, 3)
    assert x.sum().item() == 0
    assert torch.cat([x, torch.ones(2, 3, device="neuron")]).shape == (2, 3)


def test_ops_without_a_kernel_run_on_the_cpu_and_say_so():
    x = torch.tensor([1.0, 0.0, 2.0], device="neuron")
    with pytest.warns(OnCpuWarning, match="nonzero") as caught:
        found = torch.nonzero(x)
    assert caught[0].filename == __file__
    close(found, torch.tensor([[0], [2]]))
    assert any("nonzero" in op and n for op, _, n in torch.neuron.on_cpu())


def test_an_op_is_compiled_once_for_its_operands():
    from opentrn.frameworks.torch import eager

    x = torch.randn(3, 5, device="neuron")
    x.tanh()
    before = len(eager._programs)
    for _ in range(3):
        x.tanh()
    assert len(eager._programs) == before
    torch.randn(3, 6).to("neuron").tanh()
    assert len(eager._programs) == before + 1


# ---------------------------------------------------------------------- training


class Net(nn.Module):
    """Convolution, batch norm, pooling, dropout and a classifier."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.drop, self.out = nn.Dropout(0.0), nn.Linear(4 * 4 * 4, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.out(self.drop(x.flatten(1)))


@pytest.mark.parametrize("make", [
    lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), lambda p: torch.optim.AdamW(p, 0.01),
])  # fmt: skip
def test_training_gives_the_cpus_losses(make):
    model = Net()
    twin = copy.deepcopy(model).to("neuron")
    assert all(p.device.type == "neuron" for p in twin.parameters())
    x, y = torch.randn(4, 1, 8, 8), torch.tensor([0, 2, 1, 2])
    losses = []
    for net, device in ((model, "cpu"), (twin, "neuron")):
        opt, mine = make(net.parameters()), []
        for _ in range(3):
            opt.zero_grad()
            loss = F.cross_entropy(net(x.to(device)), y.to(device))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            mine.append(loss.item())
        losses.append(mine)
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[1][-1] < losses[1][0]
    close(twin.norm.running_var, model.norm.running_var, rtol=1e-4, atol=1e-4)


def test_state_is_saved_and_loaded(tmp_path):
    model = nn.Linear(3, 2).to("neuron")
    held = io.BytesIO()
    torch.save(model.state_dict(), held)
    for where, kind in ((None, "neuron"), ("cpu", "cpu"), ("neuron:1", "neuron")):
        held.seek(0)
        state = torch.load(held, map_location=where)
        assert state["weight"].device.type == kind
        assert torch.equal(state["weight"].cpu(), model.weight.detach().cpu())
    other = nn.Linear(3, 2).to("neuron")
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.weight.detach().cpu(), model.weight.detach().cpu())
    twin = copy.deepcopy(model)
    twin.weight.data.zero_()
    assert model.weight.detach().cpu().abs().sum() > 0


def test_compiled_models_take_and_give_tensors_of_the_device():
    model, x = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)), torch.randn(3, 4)
    wanted = model(x)
    wanted.sum().backward()
    twin = copy.deepcopy(model).to("neuron")
    twin.zero_grad()
    torch._dynamo.reset()
    found = torch.compile(twin, backend="neuron")(x.to("neuron"))
    close(found.detach(), wanted.detach(), rtol=1e-5, atol=1e-5)
    found.sum().backward()
    close(twin[0].weight.grad, model[0].weight.grad, rtol=1e-4, atol=1e-5)
    traced = neuron.trace(model.eval(), x)
    close(traced(x.to("neuron")), wanted.detach(), rtol=1e-5, atol=1e-5)


def test_autocast():
    model, x = nn.Linear(8, 4).to("neuron"), torch.randn(2, 8, device="neuron")
    with torch.autocast("neuron", dtype=torch.bfloat16):
        y = model(x)
        assert y.dtype == torch.bfloat16
        assert F.gelu(y).dtype == torch.bfloat16
        assert y.softmax(-1).dtype == torch.float32
        assert (y + x[:, :4]).dtype == torch.float32
    assert model(x).dtype == torch.float32
    exact = F.linear(x.cpu().bfloat16().double(), model.weight.cpu().bfloat16().double(),
                     model.bias.cpu().bfloat16().double())  # fmt: skip
    torch.testing.assert_close(y.detach().cpu().double(), exact, rtol=2**-8, atol=2**-8)
    loss = F.cross_entropy(y, torch.tensor([1, 2], device="neuron"))
    loss.backward()
    assert model.weight.grad.dtype == torch.float32


# ---------------------------------------------------------------------- torch.neuron


def test_random_numbers_follow_seeds():
    torch.manual_seed(5)
    first = torch.randn(64, device="neuron").cpu()
    torch.manual_seed(5)
    assert torch.equal(torch.randn(64, device="neuron").cpu(), first)
    state = torch.neuron.get_rng_state()
    second = torch.rand(64, device="neuron").cpu()
    torch.neuron.set_rng_state(state)
    assert torch.equal(torch.rand(64, device="neuron").cpu(), second)
    assert 0 <= second.min() <= second.max() < 1
    assert sorted(torch.randperm(9, device="neuron").tolist()) == list(range(9))
    kept = F.dropout(torch.ones(4096, device="neuron"), 0.25).cpu()
    assert kept.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    assert float((kept == 0).float().mean()) == pytest.approx(0.25, abs=0.03)


def test_events_measure_simulated_time():
    x = torch.randn(256, 256, device="neuron")
    start, middle, end = (torch.neuron.Event(enable_timing=True) for _ in range(3))
    start.record()
    y = x @ x
    middle.record()
    y @ x
    y @ x
    end.record()
    torch.neuron.synchronize()
    one, two = start.elapsed_time(middle), middle.elapsed_time(end)
    assert two == pytest.approx(2 * one)
    assert 1e-3 < one < 1.0  # milliseconds: bytes alone take 0.8 MB / 360 GB/s = 2 us
    with pytest.raises(UsageError, match="no time"):
        torch.neuron.Event().elapsed_time(end)
    before = torch.neuron.device_seconds()
    x.relu()
    assert torch.neuron.device_seconds() > before


def test_memory_is_accounted():
    gc.collect()
    before = torch.neuron.memory_allocated()
    x = torch.zeros(1024, 4, device="neuron")
    assert torch.neuron.memory_allocated() == before + 1024 * 4 * 4
    y = x[:10]
    del x
    assert torch.neuron.memory_allocated() == before + 1024 * 4 * 4
    del y
    assert torch.neuron.memory_allocated() == before
    assert torch.neuron.max_memory_allocated() >= before + 16384
    free, total = torch.neuron.mem_get_info()
    assert total - free == before
    assert total == 12 * 2**30  # 96 GiB of a trn2 among 8 cores
    with pytest.raises(CapacityError, match="neuron:0") as caught:
        torch.empty(4 * 2**30, device="neuron")
    assert caught.value.code == "frameworks.memory"
    assert torch.neuron.memory_allocated() == before


def test_devices_and_what_is_not_built():
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator().type == "neuron"
    assert torch.accelerator.device_count() == torch.neuron.device_count() == 8
    with torch.neuron.device(3):
        assert torch.ones(2, device="neuron").device.index == 3
    assert torch.neuron.current_device() == 0
    assert "NC 3" in torch.neuron.get_device_name(3)
    with pytest.raises(NotBuiltError, match="ipc_collect"):
        torch.neuron.ipc_collect()
