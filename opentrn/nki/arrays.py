"""Arrays in and out of kernels: NumPy, ml_dtypes and torch become HBM tensors, results in kind."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np

from opentrn.base import DtypeError, UsageError, declare, numerics
from opentrn.base import dtype as as_dtype
from opentrn.isa import Buffer, view_of
from opentrn.nki import versions
from opentrn.nki.session import Session
from opentrn.nki.tensor import Handle, MemoryRegion, NkiTensor
from opentrn.sim import Finding

declare(
    "nki.argument_dtype",
    "A kernel argument has a dtype the chip does not have.",
    rule="NeuronCores have no 64-bit floating-point and NKI no 64-bit integer tensors",
    fix="convert the array to a 32-bit (or smaller) dtype first",
)
declare(
    "nki.argument_values",
    "A kernel argument has a shape but no values.",
    rule="a kernel runs on values; shapes alone can be checked",
    fix="pass a tensor with values, or nki.check(kernel, target, {name: tensor})",
)
declare(
    "nki.read_only",
    "A kernel writes into an input whose array is read-only.",
    rule="what a kernel writes into an input is written back into the caller's array; this one "
    "keeps its values",
    fix="pass a copy (x.copy()), or return an output",
    fault="undefined",
)


def framework(value: Any) -> str:
    """The array kind of a value, "numpy", "torch" or "jax", or ""; imports neither of them."""
    if isinstance(value, np.ndarray):
        return "numpy"
    for kind in type(value).__mro__:
        top = kind.__module__.split(".")[0]
        if top == "torch" and hasattr(value, "detach"):
            return "torch"
        if top in ("jax", "jaxlib") and hasattr(value, "__array__") and hasattr(value, "dtype"):
            return "jax"
    return ""


def home(value: Any) -> str:
    """The array kind of a value, and for a torch tensor that is not on the CPU its device."""
    kind = framework(value)
    there = kind == "torch" and value.device.type != "cpu"
    return f"{kind} {value.device}" if there else kind


def is_traced(value: Any) -> bool:
    """Whether `value` is an array that JAX is tracing: a shape without values."""
    return any(k.__name__ == "Tracer" and k.__module__[:3] == "jax" for k in type(value).__mro__)


def is_torch(value: Any) -> bool:
    """Whether `value` is a torch tensor, without importing torch."""
    return framework(value) == "torch"


def is_array(value: Any) -> bool:
    """Whether `value` becomes an HBM tensor of the kernel."""
    return framework(value) != ""


def to_numpy(value: Any) -> np.ndarray:
    """The array as contiguous NumPy memory (shared where it can be), bfloat16 through its bits.

    JAX arrays never change, so theirs is copied: a kernel may write into its inputs.
    """
    kind = framework(value)
    if kind == "jax":
        return np.array(value)
    if isinstance(value, np.ma.MaskedArray):
        raise UsageError(
            "an argument is a masked array of NumPy",
            code="nki.argument_values",
            rule="tensors of a kernel have a value at every place and no mask",
            fix="pass x.filled(value), and the mask as an array of its own",
        )
    if kind != "torch":
        return np.ascontiguousarray(value)
    import torch

    if value.is_meta:
        raise UsageError(
            "an argument is a torch tensor on the device `meta`, which holds no values",
            code="nki.argument_values",
        )
    _refuse_not_plain(value, torch)
    value = value.detach().cpu().contiguous().resolve_conj().resolve_neg()
    name = str(value.dtype).removeprefix("torch.")
    if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        bits = torch.int16 if value.element_size() == 2 else torch.uint8
        return value.view(bits).numpy().view(as_dtype(name).storage)
    return value.numpy()


def _apart(value: Any) -> bool:
    """Whether a value is a torch tensor whose NumPy array does not share its memory: one on another
    device, or with strides of its own."""
    if not is_torch(value):
        return False
    lazy = value.is_conj() or value.is_neg()
    return value.device.type != "cpu" or not value.is_contiguous() or lazy


def _refuse_not_plain(value: Any, torch: Any) -> None:
    """UsageError for sparse, nested and quantised torch tensors."""
    if value.is_quantized:
        sort, fix = "quantised", "pass x.dequantize(), or x.int_repr() and the scale"
    elif value.is_nested:
        sort, fix = "nested", "pass torch.nested.to_padded_tensor(x, value)"
    elif value.layout is not torch.strided:
        sort, fix = "sparse", "pass x.to_dense()"
    else:
        return
    raise UsageError(
        f"an argument is a {sort} torch tensor",
        code="nki.argument_values",
        rule="tensors of a kernel hold one plain number at every place",
        fix=fix,
    )


def from_numpy(array: np.ndarray, like: str) -> Any:
    """The array in the caller's kind: "numpy", "jax", "torch", or "torch" and a device."""
    if like == "jax":
        import jax.numpy

        return jax.numpy.asarray(array)
    kind, _, device = like.partition(" ")
    if kind != "torch":
        return array
    import torch

    try:
        made = torch.from_numpy(array)
    except TypeError:
        name = array.dtype.name
        bits = array.view(np.int16 if array.itemsize == 2 else np.uint8)
        made = torch.from_numpy(bits).view(getattr(torch, name))
    return made.to(device) if device else made


def rebuilt(container: list | tuple, parts: Iterable[Any]) -> Any:
    """A list or (named) tuple of the same kind, with these parts."""
    kind = type(container)
    return kind(*parts) if hasattr(container, "_fields") else kind(parts)


def argument(session: Session, name: str, value: Any) -> Any:
    """The kernel's view of one argument: arrays become input tensors, containers are walked."""
    if is_array(value):
        array = to_numpy(value)
        made = _input(session, name, array, value.shape)
        own = framework(value) == "numpy" or _apart(value)
        session.arguments.append((made._view.buffer, value if own else array))
        return made
    if isinstance(value, list | tuple):
        parts = [argument(session, f"{name}_{n}", v) for n, v in enumerate(value)]
        return rebuilt(value, parts)
    if isinstance(value, dict):
        return {k: argument(session, f"{name}_{k}", v) for k, v in value.items()}
    return value


def _input(session: Session, name: str, array: np.ndarray, shape) -> NkiTensor:
    kind = as_dtype(array.dtype)
    if not kind.on_chip:
        raise DtypeError(
            f"argument `{name}` is {kind}",
            code="nki.argument_dtype",
            rule="NeuronCores have no 64-bit floating-point and NKI no 64-bit integer tensors",
            fix="convert the array to a 32-bit (or smaller) dtype first",
        )
    buffer = session.buffer("hbm", tuple(shape) or (1,), kind, name=name, kind="input")
    session.builder.inputs.append(buffer)
    array = array.view(kind.storage) if array.dtype.names else array
    session.adopt(buffer, array if buffer.dtype.narrow is None else numerics.decode(array, kind))
    # As the vendor's simulator guide says: arguments are HBM, shared HBM on several cores.
    alone = session.grid == (1,)
    region = MemoryRegion.private_hbm if alone else MemoryRegion.shared_hbm
    return whole(session, buffer, region)


def write_back(
    pairs: Iterable[tuple[Buffer, np.ndarray]],
    mutated: Collection[Buffer],
    held: Callable[[Buffer], np.ndarray],
) -> list[Finding]:
    """Give the caller's arrays what the kernel wrote into them; notice those that are read-only.

    `held` says what a buffer holds, in its storage dtype.  The vendor's simulator writes back too;
    a JAX array never changes, its copy takes the write.
    """
    found = []
    for buffer, given in pairs:
        if buffer not in mutated:
            continue
        if _apart(given):
            made = from_numpy(held(buffer).reshape(given.shape), "torch")
            given.detach().copy_(made)
            continue
        array = given if framework(given) == "numpy" else to_numpy(given)
        if array.flags.writeable:
            np.copyto(array, held(buffer).reshape(array.shape))
        else:
            what = f"input `{buffer.name}` is written, but the caller's array is read-only"
            found.append(versions.finding("nki.read_only", what, buffer.where))
    return found


def whole(session: Session, buffer, region: MemoryRegion) -> NkiTensor:
    """The tensor that covers a buffer."""
    return NkiTensor(view_of(buffer), Handle(session.machine, buffer, region, session.room))
