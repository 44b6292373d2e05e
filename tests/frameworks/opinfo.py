"""PyTorch's own samples of its ops (OpInfo), on the device `neuron` against the CPU.

    python -m tests.frameworks.opinfo [OP …]   # writes the table of what fails, prints counts

An op passes when all its samples give the CPU's numbers and no part of it ran on the CPU.
"""

import itertools
import json
import sys
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch

import opentrn.frameworks.torch  # noqa: F401  (registers the device)
from opentrn.base import Bug, TrnError
from opentrn.frameworks.torch import eager

EXPECTED = Path(__file__).with_name("opinfo_expected.json")
SAMPLES = {"forward": 3, "gradient": 2}
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}
# What these return is memory nobody has written, so only shapes and dtypes are compared.
UNWRITTEN = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty",
             "new_empty_strided", "resize_", "resize_as_")  # fmt: skip
KINDS = ("passed", "on the CPU", "refused", "differs", "no samples")


@dataclass(frozen=True)
class Outcome:
    """What became of an op: a kind of `KINDS`, and why."""

    kind: str
    why: str = ""


def every():
    """(name, OpInfo) of each op, by name."""
    from torch.testing._internal.common_methods_invocations import op_db

    found = {}
    for one in op_db:
        name = one.name + (f".{one.variant_test_name}" if one.variant_test_name else "")
        found[name] = one
    return dict(sorted(found.items()))


def moved(tree):
    def move(x):
        if not isinstance(x, torch.Tensor):
            return x
        return x.detach().clone().to("neuron").requires_grad_(x.requires_grad)

    return torch.utils._pytree.tree_map(move, tree)


def has(info, dtype, what):
    """Whether PyTorch has samples of an op in a dtype."""
    supported = info.dtypes if what == "forward" else info.backward_dtypes
    return getattr(torch, dtype) in supported and (what == "forward" or info.supports_autograd)


def outcome(name, info, dtype, what):
    """Run an op's samples in a dtype; `what` is "forward" or "gradient"."""
    kind = getattr(torch, dtype)
    if not has(info, dtype, what):
        return Outcome("no samples", "PyTorch has none")
    torch.manual_seed(0)
    eager.FALLBACKS.clear()
    count = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = info.sample_inputs("cpu", kind, requires_grad=what == "gradient")
        for sample in itertools.islice(samples, SAMPLES[what]):
            try:
                problem = one_sample(name, info, sample, dtype, what)
            except TrnError as error:
                return Outcome("refused", error.what.splitlines()[0])
            except Bug as error:
                return Outcome("differs", f"Bug: {error.what}")
            except Exception as error:  # torch's own
                text = f"{type(error).__name__}: {error}".splitlines()[0][:120]
                return Outcome("refused", text)
            if problem is None:
                continue
            if problem:
                return Outcome("differs", problem)
            count += 1
    if eager.FALLBACKS:
        one = next(iter(eager.FALLBACKS))
        return Outcome("on the CPU", f"{one.op}: {one.why}"[:160])
    return Outcome("passed") if count else Outcome("no samples", "the CPU takes none of them")


def one_sample(name, info, sample, dtype, what):
    """"" when the device agrees, what differs when not, None when the CPU refuses the sample."""
    ours = moved((sample.input, sample.args, sample.kwargs))
    theirs = (sample.input, sample.args, sample.kwargs)
    found = []
    for n, (given, seed) in enumerate(((theirs, 1), (ours, 1), (theirs, 2))):
        torch.manual_seed(seed)
        # PyTorch's samples of random ops set a seed of their own, which would hide that they are.
        kept = torch.manual_seed if seed == 1 else (lambda _: None)
        try:
            with mock.patch.object(torch, "manual_seed", kept):
                results = floats = info(given[0], *given[1], **given[2])
            if what == "gradient":
                floats = gradients(sample.output_process_fn_grad(results), given)
        except (RuntimeError, ValueError, IndexError, TypeError):
            if n:
                raise
            return None
        # Copies, for an op may write its input, which the third call is given as well.
        found.append([x.detach().clone() for x in torch.utils._pytree.tree_leaves(floats)
                      if isinstance(x, torch.Tensor)])  # fmt: skip
    wanted, got, reseeded = found
    drawn = name not in UNWRITTEN and difference(name, wanted, reseeded, 0.0)
    # Random numbers of the device are others than the host's: they have shape and dtype.
    return difference("empty" if drawn else name, wanted, got, TOLERANCE[dtype])


def gradients(results, given):
    """Gradients of a fixed weighted sum of the results."""
    leaves = [x for x in torch.utils._pytree.tree_leaves(results)
              if isinstance(x, torch.Tensor) and x.requires_grad]  # fmt: skip
    inputs = [x for x in torch.utils._pytree.tree_leaves(given)
              if isinstance(x, torch.Tensor) and x.requires_grad]  # fmt: skip
    if not leaves:
        raise ValueError("nothing has a gradient")
    weights = []
    for x in leaves:
        line = torch.linspace(0.5, 1.5, x.numel()).reshape(x.shape).to(x.dtype)
        weights.append(line.to(x.device))
    return torch.autograd.grad(leaves, inputs, weights, allow_unused=True)


def difference(name, wanted, found, tolerance):
    if len(wanted) != len(found):
        return f"{len(found)} results, not {len(wanted)}"
    for want, got in zip(wanted, found, strict=True):
        got = got.detach().cpu()
        if (got.shape, got.dtype) != (want.shape, want.dtype):
            return f"{got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
        if name in UNWRITTEN:
            continue
        # Sums of 16-bit numbers are off by roundings of their terms, which may be larger than they.
        scale = 1.0
        if want.dtype == torch.bfloat16 and want.numel():
            scale = max(scale, float(want.detach().abs().nan_to_num(posinf=0).max()))
        try:
            torch.testing.assert_close(
                got, want.detach(), rtol=tolerance, atol=tolerance * scale, equal_nan=True
            )
        except AssertionError as error:
            return " ".join(str(error).split())[:160]
    return ""


def key(dtype, what):
    return f"{dtype} {what}"


PASSES = [(d, w) for d in TOLERANCE for w in SAMPLES]


def main():
    """Run everything (or the ops that are named), note what does not pass, print the counts."""
    chosen = sys.argv[1:]
    expected = json.loads(EXPECTED.read_text()) if chosen else {}
    for name, info in every().items():
        if chosen and name not in chosen:
            continue
        expected.pop(name, None)
        for one in PASSES:
            found = outcome(name, info, *one) if has(info, *one) else Outcome("passed")
            if found.kind != "passed":
                expected.setdefault(name, {})[key(*one)] = [found.kind, found.why]
        print(name, expected.get(name, "passed"), file=sys.stderr, flush=True)
    EXPECTED.write_text(json.dumps(expected, indent=0, sort_keys=True) + "\n")
    counts = {key(*p): Counter() for p in PASSES}
    for name, info in every().items():
        for one in PASSES:
            told = expected.get(name, {}).get(key(*one), ["passed"])
            counts[key(*one)][told[0] if has(info, *one) else "no samples"] += 1
    print("| | " + " | ".join(KINDS) + " |")
    print("|---" * (len(KINDS) + 1) + "|")
    for name, found in counts.items():
        print(f"| {name} | " + " | ".join(str(found[k]) for k in KINDS) + " |")


if __name__ == "__main__":
    main()
