"""Compile a module ahead of time: `trace(module, args)`, a callable that can be saved and loaded.

The file is an executable of ours; loading one runs no code from it.
"""

import os
import shlex
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from opentrn import compiler, runtime
from opentrn.base import Bug, FileFormatError, UsageError, declare
from opentrn.frameworks import rounding
from opentrn.frameworks.torch.capture import as_module
from opentrn.frameworks.torch.fake import fake_call
from opentrn.frameworks.torch.memory import on_device
from opentrn.frameworks.torch.nesting import Nest
from opentrn.frameworks.torch.piece import home_of, refuse_dtypes, to_device, to_host
from opentrn.frameworks.torch.settings import Settings
from opentrn.graph import Graph, from_torch
from opentrn.isa import Executable
from opentrn.isa import load as load_executable

NOT_TRACED = declare(
    "frameworks.not_traced",
    "A file is an executable, but was not made from a torch module.",
    rule="`load` reads what `save` or `TracedModel.save` wrote",
    fix="use opentrn.load for executables of kernels and graphs",
)
ARGUMENT = declare(
    "frameworks.compiler_args",
    "A flag for the compiler means nothing here, or has no such value.",
    rule="flags are --target, --auto-cast none|matmult|all, --auto-cast-type "
    "bf16|fp16|tf32|fp8_e4m3, and those "
    "that only steer the vendor's compiler (-O…, --model-type, --verbose, --logfile, --lnc, …)",
    fix="leave the flag out",
)
STATE = declare(
    "frameworks.state",
    "A module that changes its buffers was to be traced ahead of time.",
    rule="a traced program holds no state: running statistics and counters do not change in it",
    fix="call module.eval() first, or torch.compile(module, backend='neuron'), which keeps buffers",
)
# Flags that change nothing a simulated chip computes.
HARMLESS = (
    "--model-type", "--optlevel", "--logfile", "--verbose", "--enable-saturate-infinity",
    "--enable-mixed-precision-accumulation", "--enable-fast-loading-neuron-binaries", "--lnc",
    "--logical-nc-config", "--distribution-strategy", "--framework", "--retry_failed_compilation",
    "--cache_dir", "--enable-fast-context-switch", "--internal-hlo2tensorizer-options",
    "--tensorizer-options",
)  # fmt: skip


KINDS = ("bf16", "fp16", "tf32", "fp8_e4m3")


class TracedModel:
    """A compiled module: call it with tensors like those it was traced with.

    `executable` is what was compiled, `model` the same on its device (`model.time()`,
    `model.memory`).
    """

    def __init__(self, executable: Executable, nests: tuple[Nest, Nest] | None = None) -> None:
        if "torch" not in executable.meta:
            raise FileFormatError(f"{executable.name} was not traced from torch", code=NOT_TRACED)
        self.executable = executable
        self.model = runtime.load(executable)
        told = executable.meta["torch"]
        self.arguments, self.results = nests or (
            Nest.read(told["arguments"]), Nest.read(told["results"])
        )
        self._outputs = told["outputs"]

    def __call__(self, *args: Any) -> Any:
        """The module's outputs, nested as it nests them.

        Raises UsageError `frameworks.traced_argument` for arguments unlike those it was traced
        with, errors of `runtime.Model`, `frameworks.complex`, `.float64`."""
        import torch

        tensors = self.arguments.taken(args)
        refuse_dtypes(tensors)
        home = home_of(tensors)
        found = rounding.call(self.model, home or 0, *map(to_device, tensors))
        found = found if isinstance(found, tuple) else (found,)
        leaves = [
            to_host(one, torch.empty(shape, dtype=getattr(torch, dtype), device="meta"))
            for one, (shape, dtype) in zip(found, self._outputs, strict=True)
        ]
        if home is not None:
            leaves = [on_device(leaf, home) for leaf in leaves]
        return self.results.filled(leaves)

    def save(self, path: str | os.PathLike) -> Any:
        """Write the executable; returns its path.

        Raises UsageError `frameworks.written_nest` when arguments or results nest in classes that
        a file cannot name."""
        nests = {"arguments": self.arguments.json(), "results": self.results.json()}
        told = {**self.executable.meta["torch"], **nests}
        return replace(self.executable, meta={**self.executable.meta, "torch": told}).save(path)

    def __repr__(self) -> str:
        return f"<TracedModel {self.executable.name} for {self.executable.target}>"


def trace(
    module: Any,
    example_inputs: Any,
    *,
    target: str = "",
    dtype: str = "keep",
    numerics: str = "",
    compiler_args: str | Sequence[str] | None = None,
    **ignored: Any,
) -> TracedModel:
    """Compile a module for inputs like the examples; parameters become constants.

    `target`, `dtype` and `numerics` are as in `Settings`; `compiler_args` are flags as people pass
    them to the vendor's compiler.  `compiler_workdir`, `cpu_backend`, `inline_weights_to_neff` and
    `partitioner_config`, which scripts pass, change nothing here.  Raises UnsupportedError naming
    every op without a rule or a kernel, UsageError `frameworks.compiler_args`, `frameworks.leaf`,
    `frameworks.state`.
    """
    import torch

    settings = Settings.of({"target": target, "dtype": dtype, "numerics": numerics})
    settings = with_flags(settings, compiler_args)
    refuse_keywords(ignored)
    args = example_inputs if isinstance(example_inputs, tuple | list) else (example_inputs,)
    refuse_dtypes([x for x in torch.utils._pytree.tree_leaves(args) if hasattr(x, "dtype")])
    held = module if isinstance(module, torch.nn.Module) else as_module(module)
    graph = from_torch(held, tuple(args))
    _refuse_state(graph)
    result = fake_call(module, args)
    nests = Nest.of(tuple(args), "takes"), Nest.of(result, "returns")
    outputs = _outputs(result, len(graph.outputs))
    executable = compiler.compile(
        graph, target=settings.chip, **settings.casts, numerics=settings.computed
    )
    if isinstance(executable, compiler.Outline):
        raise UsageError(
            f"a traced module computes, but its numerics are none: {executable.why}",
            code="runtime.no_numbers",
            fix="numerics='fast' or 'exact'; torch.compile and compiler.compile also only time",
        )
    meta = {**executable.meta, "torch": {"outputs": outputs}}
    return TracedModel(replace(executable, meta=meta), nests)


def _refuse_state(graph: Graph) -> None:
    """UsageError `frameworks.state` for a module that changes its buffers."""
    changed = [n.removeprefix("buffer:") for n in graph.output_names if n.startswith("buffer:")]
    if changed:
        raise UsageError(f"the module changes its buffer {changed[0]}", code=STATE)


def refuse_keywords(given: Any) -> None:
    """UsageError for a keyword of the vendor's `trace` that would change what is computed."""
    harmless = ("compiler_workdir", "cpu_backend", "inline_weights_to_neff", "partitioner_config",
                "options", "states")  # fmt: skip
    for name, value in given.items():
        if name not in harmless and value not in (None, {}, False):
            raise UsageError(f"trace: `{name}` is not built", code=ARGUMENT)


def _outputs(result: Any, count: int) -> list:
    """[shape, dtype] of each tensor of a result; Bug when the program has another number."""
    import torch

    leaves = [x for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
    if len(leaves) != count:
        raise Bug(f"the module returns {len(leaves)} tensors, its program {count}")
    return [[list(x.shape), str(x.dtype).removeprefix("torch.")] for x in leaves]


def with_flags(settings: Settings, flags: str | Sequence[str] | None) -> Settings:
    """Settings changed by flags such as "--auto-cast all --auto-cast-type bf16"."""
    given = _pairs(flags)
    if "--target" in given:
        settings = replace(settings, target=given.pop("--target"))
    level, kind = given.pop("--auto-cast", "none"), given.pop("--auto-cast-type", "bf16")
    if level not in ("none", "matmult", "all") or kind not in KINDS:
        raise UsageError(f"--auto-cast {level} --auto-cast-type {kind}", code=ARGUMENT)
    if level != "none":
        settings = replace(settings, dtype=kind, auto_cast=level)
    for flag in given:
        if flag not in HARMLESS and not flag.startswith("-O"):
            raise UsageError(f"compiler_args: unknown flag {flag}", code=ARGUMENT)
    return settings


def _pairs(flags: str | Sequence[str] | None) -> dict[str, str]:
    """Each flag with its value, "" where it has none."""
    words = shlex.split(flags) if isinstance(flags, str) else list(flags or ())
    found: dict[str, str] = {}
    last = ""
    for word in words:
        if word.startswith("-"):
            last, _, value = word.partition("=")
            found[last] = value
        elif last:
            found[last] = f"{found[last]} {word}".strip()
    return found


class ExactWarning(UserWarning):
    """A model that was fast is exact once it has been loaded from its file."""


def save(traced: TracedModel, path: str | os.PathLike) -> Any:
    """Write a traced model's executable; returns its path."""
    return traced.save(path)


def load(path: str | os.PathLike) -> TracedModel:
    """The traced model of a file; what reading an executable raises, and `frameworks.not_traced`.

    Nothing in the file is run: TorchScript archives and pickles are refused.  A file holds the
    program, so what is loaded is exact; an `ExactWarning` says so where it was compiled to be fast.
    """
    held = load_executable(path)
    if held.meta.get("numerics", {}).get("mode") == "fast":
        warnings.warn(f"{held.name} was compiled with fast numerics, which a file does not hold: "
                      "the loaded model is exact, with the same roundings, and slower here",
                      ExactWarning, stacklevel=2)  # fmt: skip
    return TracedModel(held)


__all__ = ["ExactWarning", "TracedModel", "load", "refuse_keywords", "save", "trace", "with_flags"]
