"""One captured graph on the device: compiled when first called, and again for what changed."""

import time
from collections.abc import Sequence
from typing import Any

from opentrn import compiler, runtime
from opentrn.base import UnsupportedError
from opentrn.frameworks import rounding
from opentrn.frameworks.torch.memory import COMPLEX, FLOAT64, near, on_device
from opentrn.frameworks.torch.places import user_place
from opentrn.frameworks.torch.report import HISTORY, Compilation
from opentrn.frameworks.torch.seeds import fresh, seeded
from opentrn.frameworks.torch.settings import Settings
from opentrn.frameworks.torch.shapes import shape_only
from opentrn.graph import BYTES, Traced, from_fx

# After so many changes of a frozen weight, weights become inputs.
PATIENCE = 2


class Piece:
    """A traced module that runs on the device.

    Called with the tensors and numbers of its placeholders, it returns the list of its outputs.
    Sizes that vary are fixed at each call: a program is compiled for each set of sizes.  `frozen`
    are positions of parameters and buffers that become constants while they do not change; the
    last `shown` arguments are those whose shapes people want to read (0: all).
    """

    def __init__(
        self, module: Any, name: str, settings: Settings, frozen: Sequence[int] = (),
        shown: int = 0,
    ) -> None:  # fmt: skip
        self.module, self.name, self.settings = module, name, settings
        self.frozen, self.shown = tuple(frozen), shown
        self.programs: dict[Any, Loaded] = {}
        self.changes = 0
        self.varies = _varies(module)

    def __call__(self, *args: Any) -> list[Any]:
        """Run on these arguments; compile first where no program fits them."""
        import torch

        with torch.no_grad():
            return self.program(args)(args)

    def program(self, args: Sequence[Any]) -> "Loaded":
        """The compiled program for these arguments."""
        key = _key(args) if self.varies else None
        found = self.programs.get(key)
        if found is not None and not found.stale(args):
            return found
        why = "first call" if not self.programs else "other sizes"
        if found is not None:
            why = "a weight changed that was a constant of the program"
            self.changes += 1
            found.record.model = None  # its memory is not needed any more
            if self.changes > PATIENCE:
                why += "; weights are inputs from now on"
                self.frozen = ()
        self.programs[key] = made = self._compiled(args, why)
        return made

    def _compiled(self, args: Sequence[Any], why: str) -> "Loaded":
        refuse_dtypes(args)
        begin = time.perf_counter()
        module = _specialised(self.module, args) if self.varies else self.module
        constants = {i: args[i] for i in self.frozen}
        traced = from_fx(module, constants, self.name.replace(" ", "_"))
        settings = self.settings
        traced, seeds = seeded(traced, settings.chip)
        compiled = compiler.compile(
            traced.graph, target=settings.chip, **settings.casts,
            numerics=settings.computed,
        )  # fmt: skip
        record = Compilation(
            graph=self.name, why=why, shapes=shapes_text(args[-self.shown :]),
            compile_seconds=time.perf_counter() - begin, nodes=len(traced.graph), **_told(compiled),
        )  # fmt: skip
        timed = isinstance(compiled, compiler.Outline)
        record.model = runtime.TimedOnly(compiled) if timed else runtime.load(compiled)
        HISTORY.compilations.append(record)
        return Loaded(traced, record, examples_of(module), constants, seeds)


def _told(compiled: Any) -> dict[str, Any]:
    """What a report says of a compiled program, or of an outline."""
    if isinstance(compiled, compiler.Outline):
        calls = sum(part.calls for part in compiled.parts)
        return {"instructions": compiled.instructions, "kernel_calls": calls,
                "numerics": "none", "numerics_why": compiled.why}  # fmt: skip
    meta = compiled.meta
    choice = {"numerics": meta["numerics"]["mode"], "numerics_why": meta["numerics"]["why"]}
    return {"instructions": len(compiled.program), "kernel_calls": meta["kernel_calls"], **choice}


class Loaded:
    """A program in the device's memory, and how its inputs and outputs are the traced code's."""

    def __init__(
        self, traced: Traced, record: Compilation, examples: list[Any], constants: dict[int, Any],
        seeds: int = 0,
    ) -> None:  # fmt: skip
        self.traced, self.record, self.examples, self.seeds = traced, record, examples, seeds
        self.constants = [(i, t, t._version) for i, t in constants.items()]

    def stale(self, args: Sequence[Any]) -> bool:
        """Whether a tensor that became a constant is another one, or has been written since."""
        return any(
            args[i].data_ptr() != t.data_ptr() or args[i]._version != version
            for i, t, version in self.constants
        )

    def __call__(self, args: Sequence[Any], home: int | None = None) -> list[Any]:
        """The outputs of the traced code for its arguments; shapes alone when it is only timed.

        `home` is the device whose generator gives the seeds (left out: that of the arguments)."""
        begin = time.perf_counter()
        if self.record.model.numerics == "none":
            self.record.calls += 1
            return [self._shape(*one) for one in zip(self.traced.outputs, self.examples,
                                                     strict=True)]  # fmt: skip
        given = [to_device(args[i]) for i in self.traced.inputs]
        home = home_of(args) if home is None else home
        given += fresh(self.seeds, home)
        found = rounding.call(self.record.model, home or 0, *given)
        found = found if isinstance(found, tuple) else (found,)
        results = [
            to_host(found[value], example) if kind == "value" else _still(kind, value, example)
            for (kind, value), example in zip(self.traced.outputs, self.examples, strict=True)
        ]
        self.record.calls += 1
        self.record.host_seconds += time.perf_counter() - begin
        return results

    @staticmethod
    def _shape(output: tuple[str, Any], example: Any) -> Any:
        kind, value = output
        if kind == "value":
            return shape_only(example.shape, example.dtype, example.device)
        return _still(kind, value, example)

    def fixed(self) -> list[Any]:
        """The outputs of code that computes nothing on the device."""
        pairs = zip(self.traced.outputs, self.examples, strict=True)
        return [_still(*one, example) for one, example in pairs]


def _still(kind: str, value: Any, example: Any) -> Any:
    """An output that needs no device: a fixed one, or an array without elements."""
    import torch

    if kind == "fixed":
        return value
    shape = [int(n) for n in example.shape]
    return torch.empty(shape, dtype=example.dtype, device=example.device)


def to_device(tensor: Any) -> Any:
    """A tensor as the runtime takes it: a lone float64 number, as torch makes of a Python float,
    becomes float32."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        return tensor
    held = near(tensor.detach())
    if str(held.dtype) in BYTES:
        held = held.view(torch.uint8)
    return held.float() if held.dtype == torch.float64 and held.dim() == 0 else held


def home_of(args: Sequence[Any]) -> int | None:
    """The index of the device `neuron` that tensors are on; None when all are on the CPU."""
    import torch

    homes = [a.device for a in args if isinstance(a, torch.Tensor) and a.device.type == "neuron"]
    return (homes[0].index or 0) if homes else None


def to_host(result: Any, example: Any) -> Any:
    """A result with the shape, dtype and device torch expects: 64-bit types were narrowed."""
    import torch

    if not isinstance(result, torch.Tensor):
        result = runtime.to_torch(result)
    shape = tuple(int(n) for n in example.shape)
    made = result.reshape(shape).to(example.dtype)
    return on_device(made, example.device.index or 0) if example.device.type == "neuron" else made


def refuse_dtypes(tensors: Sequence[Any]) -> None:
    """Raise UnsupportedError for dtypes the chip does not have and nothing may stand for."""
    import torch

    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            continue
        if tensor.is_complex():
            raise UnsupportedError(f"an input is {tensor.dtype}", code=COMPLEX, at=user_place())
        if tensor.dtype == torch.float64 and tensor.dim():
            raise UnsupportedError(
                f"an input is float64{list(tensor.shape)}",
                code=FLOAT64,
                fix="pass x.float()",
                at=user_place(),
            )


def shapes_text(args: Sequence[Any]) -> str:
    """The first shapes of some arguments, for people."""
    import torch

    shown = [
        f"{str(a.dtype).removeprefix('torch.')}{list(a.shape)}"
        for a in args
        if isinstance(a, torch.Tensor) and not isinstance(a, torch.nn.Parameter)
    ]
    return ", ".join(shown[:4]) + (", …" if len(shown) > 4 else "")


def _key(args: Sequence[Any]) -> tuple:
    return tuple(tuple(a.shape) if hasattr(a, "shape") else a for a in args)


def _varies(module: Any) -> bool:
    """Whether a placeholder is a size, or has one that is not a number."""
    for node in module.graph.nodes:
        if node.op != "placeholder":
            continue
        example = node.meta.get("val")
        sizes = getattr(example, "shape", (example,))
        if any(not isinstance(n, int) for n in sizes if n is not None):
            return True
    return False


def examples_of(module: Any) -> list[Any]:
    """What torch says of each output."""
    import torch

    output = next(n for n in module.graph.nodes if n.op == "output")
    leaves = torch.utils._pytree.tree_leaves(output.args[0], is_leaf=lambda x: x is None)
    return [n.meta.get("val") if isinstance(n, torch.fx.Node) else n for n in leaves]


def _specialised(module: Any, args: Sequence[Any]) -> Any:
    """The traced module with the sizes of these arguments, traced again."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    def run(*given: Any) -> Any:
        return torch.fx.Interpreter(module).run(*given)

    with torch.fx.traceback.preserve_node_meta():
        return make_fx(run, tracing_mode="fake")(*args)


__all__ = ["Loaded", "Piece", "examples_of", "home_of", "refuse_dtypes", "shapes_text", "to_device",
           "to_host"]  # fmt: skip
