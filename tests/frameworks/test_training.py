"""Training steps as one program, against eager torch: losses, parameters, state, statistics."""

import copy

import pytest

from opentrn.base import UnsupportedError, UsageError

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
nn, F = torch.nn, torch.nn.functional
neuron = pytest.importorskip("opentrn.frameworks.torch", reason="the extra `torch`")


@pytest.fixture(autouse=True)
def fresh():
    neuron.reset()
    torch.manual_seed(0)


def cross_entropy(model, x, y):
    return F.cross_entropy(model(x), y)


def batches(count, *shape, classes=5):
    return [(torch.randn(8, *shape), torch.randint(0, classes, (8,))) for _ in range(count)]


def trained(model, make, data, loss=cross_entropy):
    """Train on the device and, as a copy, in eager torch: (ours, theirs, their optimizers)."""
    twin = copy.deepcopy(model)
    ours, theirs = make(model.parameters()), make(twin.parameters())
    step = neuron.train_step(model, ours, loss)
    for batch in data:
        found = step(*batch)
        theirs.zero_grad()
        wanted = loss(twin, *batch)
        wanted.backward()
        theirs.step()
        torch.testing.assert_close(found, wanted.detach(), rtol=1e-5, atol=1e-6)
    return model, twin, ours, theirs


def assert_same(model, twin, tolerance=1e-5):
    for (name, got), want in zip(model.state_dict().items(), twin.state_dict().values(),
                                 strict=True):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance,
                                   msg=lambda text, name=name: f"{name}: {text}")


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, 1e-2, weight_decay=0.1, betas=(0.8, 0.95)),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2, weight_decay=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_step_as_torchs_do(name):
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 5))
    model, twin, ours, theirs = trained(model, OPTIMIZERS[name], batches(3, 6))
    assert_same(model, twin)
    state, wanted = ours.state_dict()["state"], theirs.state_dict()["state"]
    for n, held in wanted.items():
        for key, value in held.items():
            if value is not None:
                torch.testing.assert_close(state[n][key], value, rtol=1e-4, atol=1e-6)
    assert len(neuron.report().compilations) == 1


def test_a_schedule_needs_no_new_program():
    model = nn.Linear(4, 5)
    twin = copy.deepcopy(model)
    ours, theirs = (torch.optim.SGD(m.parameters(), 1.0) for m in (model, twin))
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.5) for o in (ours, theirs)]
    step = neuron.train_step(model, ours, cross_entropy)
    for batch in batches(3, 4):
        step(*batch)
        theirs.zero_grad()
        cross_entropy(twin, *batch).backward()
        theirs.step()
        for schedule in schedules:
            schedule.step()
    assert_same(model, twin)
    assert len(neuron.report().compilations) == 1


def test_convolutions_norms_and_running_statistics():
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
                          nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2),
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))
    model, twin, *_ = trained(model, OPTIMIZERS["sgd"], batches(2, 2, 8, 8))
    assert_same(model, twin, 2e-5)
    assert int(model[1].num_batches_tracked) == 2


class Attention(nn.Module):
    """A ViT block with a table of places: embedding, attention, softmax over classes."""

    def __init__(self, causal):
        super().__init__()
        self.causal = causal
        self.places = nn.Embedding(6, 8)
        self.norm, self.qkv, self.head = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 5)

    def forward(self, x):
        b, t, d = x.shape
        x = x + self.places(torch.arange(t))
        q, k, v = (y.view(b, t, 2, 4).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.head((x + y.transpose(1, 2).reshape(b, t, d)).mean(1))


@pytest.mark.parametrize("causal", [False, True])
def test_attention_trains_right(causal):
    # With torch's own decompositions the gradients of attention are silently wrong.
    model, twin, *_ = trained(Attention(causal), OPTIMIZERS["sgd"], batches(2, 6, 8))
    assert_same(model, twin)


def test_a_small_llama_trains_right():
    transformers = pytest.importorskip("transformers", reason="the extra `demo`")
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    ids = torch.randint(0, 32, (2, 7))

    def loss(model, ids):
        return model(input_ids=ids, labels=ids, use_cache=False).loss

    model, twin, *_ = trained(model, OPTIMIZERS["sgd"], [(ids,), (ids,)], loss)
    assert_same(model, twin, 1e-4)


def test_frozen_and_unused_parameters_stay():
    model = nn.ModuleDict({"a": nn.Linear(4, 5), "b": nn.Linear(4, 5), "c": nn.Linear(4, 5)})
    for p in model["b"].parameters():
        p.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())

    def loss(model, x, y):
        return F.cross_entropy(model["a"](x) + model["b"](x), y)

    model, twin, *_ = trained(model, OPTIMIZERS["sgd"], batches(2, 4), loss)
    assert_same(model, twin)
    assert torch.equal(model["b"].weight, before["b.weight"])
    assert torch.equal(model["c"].weight, before["c.weight"])


def test_bfloat16_training_is_near_and_differs():
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5))
    twin = copy.deepcopy(model)
    (x, y), = batches(1, 16)
    step = neuron.train_step(model, torch.optim.SGD(model.parameters(), 0.1), cross_entropy,
                             dtype="bfloat16")
    found, wanted = float(step(x, y)), float(cross_entropy(twin, x, y).detach())
    assert 1e-6 < abs(found - wanted) < 0.02
    assert model[0].weight.dtype == torch.float32


def test_what_has_no_functional_form_is_refused():
    model = nn.Linear(4, 5)
    for optimizer in (torch.optim.RMSprop(model.parameters()),
                      torch.optim.Adam(model.parameters(), amsgrad=True)):
        with pytest.raises(UnsupportedError, match=r"RMSprop|amsgrad") as caught:
            neuron.train_step(model, optimizer, cross_entropy)
        assert caught.value.code == "frameworks.optimizer"
    step = neuron.train_step(model, torch.optim.SGD(model.parameters(), 0.1), lambda m, x: m(x))
    with pytest.raises(UsageError, match="not one number"):
        step(torch.ones(2, 4))


def test_a_step_as_a_graph_is_that_of_its_program_and_trains_nothing():
    from opentrn import compiler

    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5))
    before = copy.deepcopy(model.state_dict())
    step = neuron.train_step(model, torch.optim.AdamW(model.parameters()), cross_entropy)
    x, y = torch.randn(8, 16), torch.randint(0, 5, (8,))
    graph = step.graph(x, y)
    assert len(graph.inputs) == 4 * 3 + 3 + 2  # parameters and two moments, rates, the batch
    assert len(graph.outputs) == 1 + 4 * 3
    assert not step.pieces
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    step(x, y)
    (program,) = next(iter(step.pieces.values())).programs.values()
    assert compiler.outline(graph).instructions == program.record.instructions
