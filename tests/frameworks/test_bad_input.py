"""What a PyTorch user gets wrong is refused at their line with the way out, or told."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")

import opentrn.frameworks.torch as neuron  # noqa: E402
from opentrn.base import TrnError  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    neuron.reset()


def run(function, *args, **options):
    return torch.compile(function, backend="neuron", options=options or None)(*args)


def refusal(function, *args, **options):
    with pytest.raises(TrnError) as refused:
        run(function, *args, **options)
    return refused.value


def test_every_unsupported_op_is_named_at_once():
    def function(x):
        return torch.special.zeta(x, x) + torch.special.bessel_j0(x) + torch.special.zeta(x, x)

    told = str(refusal(function, torch.rand(3)))
    assert "2 torch ops" in told
    assert "special_zeta" in told
    assert "special_bessel_j0" in told
    assert "test_bad_input.py" in told


def test_data_dependent_shapes_leave_the_graph_and_the_report_says_where():
    def function(x):
        return x[x > 0].sum() * 2

    x = torch.tensor([1.0, -2.0, 3.0])
    assert float(run(function, x)) == 8
    (cut, *_) = neuron.report().breaks
    assert "test_bad_input.py" in str(cut.where)


@pytest.mark.filterwarnings("ignore:neuron. aten")
@pytest.mark.parametrize("name", ["x[x > 0]", "nonzero", "unique", "item"])
def test_after_a_break_the_device_runs_what_depends_on_data(name):
    """Dynamo watches what runs between its graphs; the device's own code is not the user's."""
    made = {"x[x > 0]": lambda x: x[x > 0] * 2, "nonzero": lambda x: (x > 0).nonzero() + 1,
            "unique": lambda x: x.unique() * 2, "item": lambda x: x * int(x[0].item())}  # fmt: skip
    x = torch.tensor([3.0, -2.0, 1.0, 3.0])
    found = run(made[name], x.to("neuron"))
    assert found.device.type == "neuron"
    assert torch.equal(found.cpu(), made[name](x))


def test_int64_runs_narrow_and_refuses_what_does_not_fit():
    assert run(lambda x: x + 1, torch.tensor([1, 2])).tolist() == [2, 3]
    told = refusal(lambda x: x + 1, torch.tensor([2**40]))
    assert told.code == "runtime.input_range"
    large = torch.tensor([2**40]).to("neuron")
    with pytest.raises(TrnError) as refused:
        torch.nn.functional.relu(large)  # a function of torch's between
    assert refused.value.at.text.endswith("# a function of torch's between")


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_dtypes_the_chip_has_not(dtype):
    told = refusal(lambda x: x * 2, torch.ones(3, dtype=dtype))
    assert told.code in ("frameworks.float64", "frameworks.complex")
    with pytest.raises(TrnError):
        torch.ones(3, dtype=dtype).to("neuron")


def test_out_of_memory_says_what_is_held_and_what_there_is():
    with pytest.raises(TrnError) as refused:
        torch.empty(1 << 34, device="neuron")
    assert refused.value.code == "frameworks.memory"
    assert "float32[17179869184] of 64.0 GiB does not fit neuron:0" in refused.value.what
    assert refused.value.fix.endswith("rows of its first axis, not 17,179,869,184")


def test_out_of_memory_shows_what_fills_the_device_and_what_would_fit():
    held = [torch.empty(1000, 1024, 1024, device="neuron") for _ in range(2)]  # 3.9 GiB each
    with pytest.raises(TrnError) as refused:
        torch.empty(1500, 1024, 1024, device="neuron")
    what, fix = refused.value.what, refused.value.fix
    assert "float32[1000, 1024, 1024]                2   7.81 GiB" in what
    free = torch.neuron.mem_get_info()[0]
    assert f"{1500 * free // (1500 * 2**22):,} rows of its first axis" in fix
    assert "a dtype of 2 bytes" in fix
    assert "neuron:1" in fix
    kept = torch.empty(1500, 1024, 1024, device="neuron", dtype=torch.bfloat16)
    rows = torch.empty(10, 1024, 1024, device="neuron")
    assert torch.neuron.memory_allocated() > 2 * 1000 * 2**22
    del held, kept, rows


def test_nan_inputs_are_told_by_the_comparison():
    found = neuron.diff(torch.nn.Linear(3, 3), torch.full((2, 3), float("nan")))
    assert not found.agrees
    assert found.origin == "input 0 is not finite already"


@pytest.mark.parametrize("zipped", [True, False])
def test_pickles_are_refused(tmp_path, zipped):
    torch.save(torch.nn.Linear(2, 2), tmp_path / "model.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(TrnError) as refused:
        neuron.load(tmp_path / "model.pt")
    assert "it is a pickle, which runs code when it is read" in refused.value.what
    assert "safetensors" in refused.value.fix
    assert refused.value.code == "isa.executable"


def test_a_new_number_compiles_no_more_than_once_again():
    """Python's floats and steps become inputs of the second version; tensors never recompile."""
    function = torch.compile(lambda x, rate: x * rate, backend="neuron")
    x = torch.ones(4)
    for step in range(6):
        assert torch.equal(function(x, 0.5 + step), x * (0.5 + step))
    assert neuron.report().recompiles <= 1
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    twin = copy.deepcopy(model)
    other = torch.optim.AdamW(twin.parameters(), lr=1e-2)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.5) for o in (optimizer, other)]
    neuron.reset()
    step = neuron.train_step(model, optimizer, lambda m, x: m(x).square().mean())
    for _ in range(4):
        step(x)
        other.zero_grad()
        twin(x).square().mean().backward()
        other.step()
        for schedule in schedules:
            schedule.step()
    assert len(neuron.report().compilations) == 1
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("rows", [False, True])
def test_scaled_products_of_8_bit_floats(kind, rows):
    a, b = torch.randn(16, 32).to(kind), torch.randn(32, 48).to(kind)
    scales = (torch.rand(16, 1), torch.rand(1, 48)) if rows else (torch.tensor(2.0),
                                                                  torch.tensor(0.5))  # fmt: skip
    bias = torch.randn(48).bfloat16()

    def function(a, b, first, second, bias):
        return torch.ops.aten._scaled_mm(a, b, first, second, bias, None, torch.bfloat16)

    wanted = a.double() @ b.double() * scales[0].double() * scales[1].double() + bias.double()
    given = (a, b.t().contiguous().t(), *scales, bias)
    found = run(function, *given, target="trn3")
    torch.testing.assert_close(found.double(), wanted, rtol=2.0**-8, atol=2e-2)
    if kind == torch.float8_e4m3fn:
        assert "float8_e4m3fn exists from" in str(refusal(function, *given, target="trn2"))
        mixed = (a, b.to(torch.float8_e5m2), *given[2:])
        assert "one dtype" in str(refusal(function, *mixed, target="trn3"))
