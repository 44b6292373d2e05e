"""`neuronxcc.nki.nccl`: collectives between ranks, on tensors of the older API.

Run kernels that use them with `nki.simulate(kernel, ranks=N)` or `nki.run_ranks` of `opentrn.nki`;
called alone, a kernel is the only rank.  There is no public reference: parameters are those that
public kernels give by name and in order, and they mean what `nki.collectives` of the NKI 0.6 API
reference says.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

from opentrn.base import NotBuiltError, UsageError, declare
from opentrn.base import dtype as as_dtype
from opentrn.nki import collectives as newer
from opentrn.nki.beta1 import elements
from opentrn.nki.beta1.pending import current
from opentrn.nki.beta1.tile import Tensor

declare(
    "beta1.collectives",
    "A collective of the older API that does not exist here, or in a way that does not.",
    rule="nccl has all_reduce, all_gather, reduce_scatter, all_to_all and collective_permute on "
    "tensors of one dtype",
    fix="use one of these, or write the kernel with nki.collectives",
)

# Imported under its older name it is a package: `.collectives` lies below it, and importing that
# binds the name `collectives` here, which nothing else may have.
__path__: list[str] = []


def _group(replica_groups: Sequence) -> newer.ReplicaGroup:
    """Lists of ranks; one flat list is one group."""
    lists = [list(one) if isinstance(one, Sequence) else one for one in replica_groups]
    return newer.ReplicaGroup(lists if lists and isinstance(lists[0], list) else [lists])


def _sides(srcs: Any, dsts: Any, dtype: Any) -> tuple[list, list]:
    """What is sent and where it arrives, as tensors of `nki`; both have the dtype, if given."""
    current().flush()
    sources = [elements.tile(one, "srcs") for one in srcs]
    targets = [elements.tile(one, "dsts") for one in dsts]
    for one in (*sources, *targets):
        if dtype is not None and as_dtype(dtype) != one.element:
            what = f"dtype={dtype} of a collective on {one.element}{list(one.shape)}"
            raise UsageError(what, code="beta1.collectives")
    return [_fit(a, b).read() for a, b in zip(sources, targets, strict=False)], [
        one.write() for one in targets
    ]


def _fit(source: Tensor, target: Tensor) -> Tensor:
    """The source with the dimensions of 1 that indexing took from the target."""
    return source.squeezed(target.shape) if source.size == target.size else source


def _first(sides: tuple[list, list], dim: int) -> tuple[list, list, int]:
    """Both sides and a dimension; one that only sizes of 1 stand before becomes the first."""
    tensors = [*sides[0], *sides[1]]
    if dim and all(0 < dim < t.ndim and prod(t.shape[:dim]) == 1 for t in tensors):
        orders = [(dim, *range(dim), *range(dim + 1, t.ndim)) for t in tensors]
        moved = [t.permute(order) for t, order in zip(tensors, orders, strict=True)]
        return moved[: len(sides[0])], moved[len(sides[0]) :], 0
    return *sides, dim


def all_reduce(op, srcs, dsts, replica_groups, dtype=None):
    """dsts = `op` over the srcs of the ranks of a group, on each of them."""
    sent, received = _sides(srcs, dsts, dtype)
    name = elements.operator_name(op)
    newer.all_reduce(sent, received, _group(replica_groups), name)


def all_gather(op, srcs, dsts, replica_groups, all_gather_dim, dtype=None):
    """dsts = the srcs of the ranks one after another along a dimension; `op` means nothing."""
    sent, received, dim = _first(_sides(srcs, dsts, dtype), all_gather_dim)
    newer.all_gather(sent, received, _group(replica_groups), dim)


def reduce_scatter(op, srcs, dsts, replica_groups, reduce_scatter_dim, dtype=None):
    """dsts = this rank's part, along a dimension, of `op` over the srcs of the ranks."""
    sent, received, dim = _first(_sides(srcs, dsts, dtype), reduce_scatter_dim)
    name = elements.operator_name(op)
    newer.reduce_scatter(sent, received, _group(replica_groups), dim, name)


def all_to_all(op, srcs, dsts, replica_groups, split_dim, concat_dim, dtype=None):
    """Part n of each src goes to rank n, where the parts lie one after another; no `op` is used."""
    if split_dim != concat_dim:
        what = f"all_to_all split along {split_dim} and joined along {concat_dim}"
        raise NotBuiltError(what, code="beta1.collectives")
    sent, received, dim = _first(_sides(srcs, dsts, dtype), split_dim)
    newer.all_to_all(sent, received, _group(replica_groups), dim)


def collective_permute(dst, src, source_target_pairs):
    """dst on rank b = src on rank a, for each pair (a, b)."""
    sent, received = _sides([src], [dst], None)
    newer.collective_permute(sent, received, source_target_pairs)


def __getattr__(name: str):
    """A clear refusal for names that do not exist here."""
    if name.startswith("collective_permute_"):
        raise NotBuiltError(f"nccl.{name} is not built", code="beta1.collectives")
    raise AttributeError(f"module neuronxcc.nki.nccl has no attribute {name!r}")


__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "collective_permute",
    "reduce_scatter",
]
