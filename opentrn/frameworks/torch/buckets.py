"""One module for inputs of many sizes: a program for each bucket of sizes, inputs padded to it.

    model = trace_buckets(net, (ids, mask), [{0: "batch", 1: "tokens"}] * 2,
                          {"batch": [1, 8], "tokens": [64, 256]})
    model(ids, mask)      # any batch up to 8, any length up to 256

A call takes the least bucket its sizes fit, pads behind the inputs, and cuts the results to what
they would have been.  Whether padding changes the numbers is tried once, on the examples.
"""

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opentrn.base import FileFormatError, UsageError, declare
from opentrn.frameworks.torch.fake import fake_call
from opentrn.frameworks.torch.trace import TracedModel, load, trace

BUCKET = declare(
    "frameworks.bucket",
    "Buckets of sizes do not fit the module or its inputs.",
    rule="each tensor argument has a table of axes and their names, each name a list of sizes; a "
    "call's sizes are at most the largest",
    fix="add a larger size to the buckets, or name the axis that varies",
)
PADDING = declare(
    "frameworks.padding",
    "A module's results depend on what is padded behind its inputs.",
    rule="the results for padded inputs, cut to size, are those for the inputs",
    fix="give the module a mask, and let it leave out what is padded; or trace it without buckets",
)
INDEX = "buckets.json"
NEAR = 1e-3
"""Largest change by padding, as a share of the largest number: sums in another order."""


class BucketedModel:
    """Traced programs of one module by size; call it like the module.

    `programs` holds a `TracedModel` for each bucket, by its sizes in the order of `names`."""

    def __init__(self, programs: Mapping[tuple[int, ...], TracedModel], layout: dict) -> None:
        self.programs, self.layout = dict(programs), layout
        self.names: tuple[str, ...] = tuple(layout["buckets"])

    def __call__(self, *args: Any) -> Any:
        """The module's results for these arguments.

        Raises UsageError `frameworks.bucket` for sizes beyond the largest bucket or that disagree,
        and what `TracedModel` raises."""
        import torch

        leaves, tree = torch.utils._pytree.tree_flatten(args)
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        sizes = _sizes(tensors, self.layout["axes"])
        bucket = _bucket(sizes, self.layout["buckets"])
        padded = iter(_padded(tensors, bucket, self.layout))
        given = [next(padded) if isinstance(x, torch.Tensor) else x for x in leaves]
        key = tuple(bucket[name] for name in self.names)
        made = self.programs[key](*torch.utils._pytree.tree_unflatten(given, tree))
        return _cut(made, sizes, bucket, self.layout["results"])

    def save(self, folder: str | os.PathLike) -> Path:
        """Write every program and their sizes into a folder, which is made; returns its path."""
        home = Path(folder)
        home.mkdir(parents=True, exist_ok=True)
        for sizes, program in self.programs.items():
            program.save(home / f"{_file(sizes)}.trn")
        (home / INDEX).write_text(json.dumps(self.layout))
        return home

    def __repr__(self) -> str:
        return f"<BucketedModel of {len(self.programs)} programs, {', '.join(self.names)}>"


def trace_buckets(module: Any, example_inputs: Any, axes: Sequence[Mapping[int, str]],
                  buckets: Mapping[str, Sequence[int]], *, pad: Sequence[float] = (),
                  **options: Any) -> BucketedModel:  # fmt: skip
    """Compile a module for every combination of sizes.

    `axes` has for each tensor argument the names of the axes that vary, `buckets` the sizes of each
    name; `pad` is what each argument is padded with (0).  `options` are those of `trace`.  Raises
    UsageError `frameworks.bucket`, and `frameworks.padding` for a module whose numbers change when
    the examples are padded to the next bucket; what `trace` raises.
    """
    import torch

    args = tuple(example_inputs) if isinstance(example_inputs, tuple | list) else (example_inputs,)
    leaves, tree = torch.utils._pytree.tree_flatten(args)
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    layout = _layout(tensors, axes, buckets, pad)

    def filled(replaced: Sequence[Any]) -> tuple:
        rest = iter(replaced)
        full = [next(rest) if isinstance(x, torch.Tensor) else x for x in leaves]
        return torch.utils._pytree.tree_unflatten(full, tree)

    layout["results"] = _named_results(module, tensors, layout, filled)
    _refuse_dependence(module, tensors, layout, filled)
    programs = {}
    for sizes in itertools.product(*layout["buckets"].values()):
        named = dict(zip(layout["buckets"], sizes, strict=True))
        programs[sizes] = trace(module, filled(_resized(tensors, named, layout)), **options)
    return BucketedModel(programs, layout)


def load_buckets(folder: str | os.PathLike) -> BucketedModel:
    """What `BucketedModel.save` wrote; nothing in the files is run.

    Raises FileFormatError `frameworks.bucket`, and what `load` raises."""
    home = Path(folder)
    try:
        layout = json.loads((home / INDEX).read_text())
        layout["axes"] = [{int(n): name for n, name in one.items()} for one in layout["axes"]]
        every = list(itertools.product(*layout["buckets"].values()))
        layout["pad"], layout["results"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{home} holds no buckets: {error}", code=BUCKET) from None
    return BucketedModel({s: load(home / f"{_file(s)}.trn") for s in every}, layout)


# ---------------------------------------------------------------------- sizes


def _file(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def _layout(tensors: list, axes: Any, buckets: Any, pad: Any) -> dict:
    """Axes, buckets in order and padding, checked against the examples."""
    if len(axes) != len(tensors) or (pad and len(pad) != len(tensors)):
        raise UsageError(f"axes of {len(axes)} tensors, the examples have {len(tensors)}",
                         code=BUCKET)  # fmt: skip
    table = [{n % max(t.dim(), 1): str(name) for n, name in one.items()}
             for t, one in zip(tensors, axes, strict=True)]  # fmt: skip
    used = {name for one in table for name in one.values()}
    if used != set(buckets) or not used:
        raise UsageError(f"axes are named {sorted(used)}, buckets {sorted(buckets)}", code=BUCKET)
    sizes = {name: sorted({int(n) for n in given}) for name, given in buckets.items()}
    if any(not given or given[0] < 1 for given in sizes.values()):
        raise UsageError("a bucket without sizes, or of size 0", code=BUCKET)
    return {"axes": table, "buckets": sizes, "pad": list(pad) or [0] * len(tensors)}


def _sizes(tensors: list, axes: list) -> dict[str, int]:
    """The size of each name; UsageError where two arguments disagree."""
    found: dict[str, int] = {}
    for number, (tensor, named) in enumerate(zip(tensors, axes, strict=False)):
        for axis, name in named.items():
            size = tensor.shape[axis] if axis < tensor.dim() else 0
            if found.setdefault(name, size) != size:
                raise UsageError(f"`{name}` is {found[name]} and, in tensor {number}, {size}",
                                 code=BUCKET)  # fmt: skip
    return found


def _bucket(sizes: Mapping[str, int], buckets: Mapping[str, list[int]]) -> dict[str, int]:
    """The least bucket that holds these sizes."""
    found = {}
    for name, size in sizes.items():
        fits = [n for n in buckets[name] if n >= size]
        if not fits:
            raise UsageError(f"`{name}` is {size}, the largest bucket {buckets[name][-1]}",
                             code=BUCKET)  # fmt: skip
        found[name] = fits[0]
    return found


def _padded(tensors: list, bucket: Mapping[str, int], layout: dict) -> list[Any]:
    """Each tensor with what is missing behind it."""
    import torch

    made = []
    for tensor, named, value in zip(tensors, layout["axes"], layout["pad"], strict=True):
        after = [bucket[named[n]] - tensor.shape[n] if n in named else 0
                 for n in range(tensor.dim())]  # fmt: skip
        pairs = [n for missing in reversed(after) for n in (0, missing)]
        plain = tensor.dtype == torch.bool
        held = torch.nn.functional.pad(tensor.to(torch.uint8) if plain else tensor, pairs,
                                       value=value)  # fmt: skip
        made.append(held.bool() if plain else held)
    return made


def _resized(tensors: list, sizes: Mapping[str, int], layout: dict) -> list[Any]:
    """Tensors like the examples in other sizes; only shapes matter."""
    return [t.new_zeros([sizes[named[n]] if n in named else size for n, size in enumerate(t.shape)])
            for t, named in zip(tensors, layout["axes"], strict=True)]  # fmt: skip


# ---------------------------------------------------------------------- results


def _tensors_of(tree: Any) -> list[Any]:
    import torch

    leaves = torch.utils._pytree.tree_leaves(tree)
    return [x for x in leaves if isinstance(x, torch.Tensor)]


def _named_results(module: Any, tensors: list, layout: dict, filled: Any) -> list:
    """For each tensor of the results its [axis, name, size, steps]: what grows with a name, how
    large it is at size 0 of it and by how much it grows with each."""
    base = {name: max(sizes[-1] - 3, 2) for name, sizes in layout["buckets"].items()}

    def shapes(sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
        found = fake_call(module, filled(_resized(tensors, sizes, layout)))
        return [tuple(t.shape) for t in _tensors_of(found)]

    first, table = shapes(base), []
    grown = {name: shapes({**base, name: base[name] + 1}) for name in base}
    further = {name: shapes({**base, name: base[name] + 3}) for name in base}
    for number, shape in enumerate(first):
        rows = []
        for axis, size in enumerate(shape):
            steps = {name: grown[name][number][axis] - size for name in base}
            growing = [name for name, step in steps.items() if step]
            if len(growing) > 1 or any(
                further[n][number][axis] - size != 3 * steps[n] for n in growing
            ):
                raise UsageError(f"result {number} grows along axis {axis} with "
                                 f"{' and '.join(growing)}, not by so much for each",
                                 code=BUCKET)  # fmt: skip
            rows += [[axis, n, size - steps[n] * base[n], steps[n]] for n in growing]
        table.append(rows)
    return table


def _cut(made: Any, sizes: Mapping[str, int], bucket: Mapping[str, int], results: list) -> Any:
    """Results as large as they would have been without padding."""
    import torch

    rows = iter(results)

    def cut(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        for axis, name, least, step in next(rows):
            if sizes[name] != bucket[name]:
                x = x.narrow(axis, 0, least + step * sizes[name])
        return x

    return torch.utils._pytree.tree_map(cut, made)


def _refuse_dependence(module: Any, tensors: list, layout: dict, filled: Any) -> None:
    """UsageError `frameworks.padding` when the examples' results change with padding."""
    import torch

    whole = _sizes(tensors, layout["axes"])
    for name, size in whole.items():
        largest = layout["buckets"][name][-1]
        sizes = {**whole, name: min(size, max(largest - 1, 1))}
        larger = {**sizes, name: min(sizes[name] + 3, largest)}
        held = [_short(x, named, sizes) for x, named in zip(tensors, layout["axes"], strict=True)]
        with torch.no_grad():
            wanted = module(*filled(held))
            found = _cut(module(*filled(_padded(held, larger, layout))), sizes, larger,
                         layout["results"])  # fmt: skip
        for number, (got, want) in enumerate(
            zip(_tensors_of(found), _tensors_of(wanted), strict=True)
        ):
            got, want = got.double(), want.double()
            scale = want[want.isfinite()].abs().max() if want.isfinite().any() else 1.0
            if not torch.allclose(got, want, rtol=0, atol=NEAR * float(scale), equal_nan=True):
                raise UsageError(f"result {number} changes when `{name}` is padded from "
                                 f"{sizes[name]} to {larger[name]}", code=PADDING)  # fmt: skip


def _short(tensor: Any, named: Mapping[int, str], sizes: Mapping[str, int]) -> Any:
    """A tensor's first elements along the axes that have names."""
    for axis, name in named.items():
        tensor = tensor.narrow(axis, 0, sizes[name])
    return tensor


__all__ = ["BucketedModel", "load_buckets", "trace_buckets"]
