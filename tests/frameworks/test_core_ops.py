"""Every op that PyTorch tags as core ATen, forward and backward: on the device, or told why not."""

import json

import pytest

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
opinfo = pytest.importorskip("tests.frameworks.opinfo", reason="PyTorch's OpInfo tables")
from opentrn.frameworks.torch import eager  # noqa: E402

F, aten = torch.nn.functional, torch.ops.aten

# What does not pass although it is core: the OpInfo entry, and the reason.
TOLD = {
    "as_strided.partial_views": "its samples reach outside the tensor they are given",
    "grid_sampler_2d": "its gradient has no rule; places of bfloat16 are rounded",
    "index_put": "the gradient of values at the Trues of a mask has a size the data say",
    "nonzero": "its size depends on the data",
    "prod": "PyTorch's gradient asks where the zeros are, a size the data say",
    "sort": "samples of rows longer than the kernel sorts",
    "tan": "near its poles",
    "topk": "the order of equal elements in bfloat16",
}
# Complex results, which the chip has no dtype for; numbers on the host; sizes, which are numbers.
NOT_TENSORS = {"_fft_c2r", "_fft_r2c", "_local_scalar_dense", "sym_is_contiguous", "sym_numel",
               "sym_size", "sym_storage_offset", "sym_stride"}  # fmt: skip
# Core ops that OpInfo has under no name of their own.
CALLS = {
    "_adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
    "_adaptive_avg_pool2d_backward": lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
    "_adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x, (2, 3, 2)),
    "_cdist_forward": lambda x: torch.cdist(x, x + 1),
    "_embedding_bag": lambda x: F.embedding_bag(
        where(x).reshape(-1), x[0, 0], torch.tensor([0, 2]).to(x.device), mode="sum"),
    "_log_softmax": lambda x: F.log_softmax(x, 1),
    "_native_batch_norm_legit_no_training": lambda x: F.batch_norm(
        x, x[0, :, 0, 0].detach(), x[0, :, 0, 0].detach() ** 2),
    "_pdist_forward": lambda x: F.pdist(x[0, 0]),
    "_softmax": lambda x: F.softmax(x, 1),
    "_to_copy": lambda x: x.to(torch.bfloat16),
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x[0], 3),
    "alias": lambda x: aten.alias(x) * 2,
    "avg_pool2d_backward": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "col2im": lambda x: F.fold(x.reshape(2, 8, 15), (6, 4), 2),
    "convolution": lambda x: F.conv2d(x, x[:, :, :2, :3]),
    "convolution_backward": lambda x: F.conv_transpose2d(x, x[0, :, None, :3, :2], stride=2),
    "copy": lambda x: torch.zeros_like(x).copy_(x) * 2,
    "elu": lambda x: F.elu(x),
    "embedding": lambda x: F.embedding(where(x), x[0, 0]),
    "embedding_dense_backward": lambda x: F.embedding(where(x), x[0, 0]),
    "index": lambda x: x[:, where(x)[0]],
    "max_pool2d_with_indices": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "max_pool3d_with_indices": lambda x: F.max_pool3d(x, 2),
    "native_dropout": lambda x: F.dropout(x, 0.5) * 0 + x,
    "native_group_norm_backward": lambda x: F.group_norm(x, 2),
    "native_layer_norm_backward": lambda x: F.layer_norm(x, (5,)),
    "rand": lambda x: (torch.rand(3, device=x.device) < 1).float() + x[0, 0, 0, 0],
    "randperm": lambda x: torch.randperm(5, device=x.device).sort()[0] + x[0, 0, 0, 0],
    "reflection_pad1d": lambda x: F.pad(x[0], (1, 2), "reflect"),
    "reflection_pad2d": lambda x: F.pad(x, (1, 2, 0, 3), "reflect"),
    "reflection_pad3d": lambda x: F.pad(x, (1, 2, 0, 3, 2, 1), "reflect"),
    "replication_pad2d": lambda x: F.pad(x, (1, 2, 0, 3), "replicate"),
    "replication_pad3d": lambda x: F.pad(x, (1, 2, 0, 3, 2, 1), "replicate"),
    "upsample_bilinear2d": lambda x: F.interpolate(x, (9, 7), mode="bilinear"),
    "upsample_nearest2d": lambda x: F.interpolate(x, (9, 7)),
}


def where(x):
    return torch.tensor([[3, 0, 0], [1, 2, 3]]).to(x.device)


def core():
    """Names of the ops PyTorch tags `core`."""
    found = set()
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        packet = getattr(aten, name, None) if space == "aten" else None
        overloads = packet.overloads() if packet is not None else ()
        if any(torch.Tag.core in getattr(packet, one).tags for one in overloads):
            found.add(name)
    return found


def test_every_core_op_is_accounted_for():
    sampled = {info.aten_name for info in opinfo.every().values()}
    assert len(core()) > 150
    assert core() - sampled == set(CALLS) | NOT_TENSORS


def test_core_ops_pass_opinfo_but_for_those_told():
    expected = json.loads(opinfo.EXPECTED.read_text())
    names = core()
    assert {n for n, info in opinfo.every().items()
            if info.aten_name in names and n in expected} == set(TOLD)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CALLS)
def test_a_core_op_without_samples(name, dtype):
    kind, found = getattr(torch, dtype), []
    if dtype == "bfloat16" and name in ("_cdist_forward", "_pdist_forward", "_to_copy"):
        kind = torch.float32  # the CPU has no bfloat16 of these
    shape = (2, 4, 6, 5)
    start = torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(kind)
    eager.FALLBACKS.clear()
    for device in ("cpu", "neuron"):
        x = start.detach().clone().to(device).requires_grad_()
        made = CALLS[name](x)
        made.float().backward(torch.linspace(0.5, 1.5, made.numel()).reshape(made.shape).to(device))
        found.append((made.detach(), x.grad))
    assert not eager.FALLBACKS
    room = opinfo.TOLERANCE[str(kind).removeprefix("torch.")]
    for want, got in zip(*found, strict=True):
        assert got.dtype == want.dtype
        scale = max(1.0, float(want.abs().max()))
        torch.testing.assert_close(got.cpu(), want, rtol=room, atol=room * scale)
