"""Which algorithm a collective uses, by its size, and what its speed is worth on the wires.

Ranges (AWS Neuron, intra-node collectives, table of algorithms): mesh below 1 MB, recursive
doubling and halving to 56 MB, KangaRing above where all ranks of a chip take part, a ring
otherwise.  KangaRing pairs ranks to save memory traffic; what arrives where is that of a ring, so
the ring stands for it.
"""

from functools import cache

import numpy as np

from opentrn.base import UnknownNameError, declare, nearest
from opentrn.comm import mesh, rdh, ring
from opentrn.comm.schedule import Schedule

declare(
    "comm.collective",
    "There is no collective of this name.",
    rule="all_reduce, all_gather, reduce_scatter, all_to_all, permute",
    fix="use one of these names",
)

declare(
    "comm.algorithm",
    "The collective has no algorithm of this name.",
    rule="mesh, mesh1, rdh, ring, kangaring, tree; on several nodes hier or flat; mesh for "
    "all_to_all, permute for permute",
    fix="use one of these names",
)

MESH_BYTES = 1_000_000
RDH_BYTES = 56_000_000
ALGORITHMS = ("all_reduce", "all_gather", "reduce_scatter")

# Bytes each rank must send, as a share of the collective's size (AWS Neuron, nccom-test guide,
# table of bus bandwidth factors; all_gather_v has the factor of all_gather).
_FACTORS = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "all_gather_v": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "all_to_all": lambda ranks: (ranks - 1) / ranks,
    "all_to_all_v": lambda ranks: (ranks - 1) / ranks,
    "sendrecv": lambda ranks: 1.0,
    "permute": lambda ranks: 1.0,
}


def _unknown(name: str, known) -> UnknownNameError:
    return UnknownNameError(
        f"there is no collective `{name}`",
        code="comm.collective",
        rule=f"collectives are {', '.join(known)}",
        fix=f"nearest names: {', '.join(nearest(name, known)) or 'none'}",
    )


@cache
def _made(family: str, collective: str, ranks: int) -> Schedule:
    return getattr({"mesh": mesh, "rdh": rdh, "ring": ring}[family], collective)(ranks)


def choose(collective: str, nbytes: int, ranks: int) -> Schedule:
    """The schedule of a collective of `nbytes` (the larger of its two buffers) among `ranks`.

    Raises UnknownNameError `comm.collective`.
    """
    if collective not in (*ALGORITHMS, "all_to_all"):
        raise _unknown(collective, [*ALGORITHMS, "all_to_all"])
    family = "ring"
    if nbytes < MESH_BYTES or collective == "all_to_all":
        family = "mesh"
    elif nbytes <= RDH_BYTES and rdh.fits(ranks):
        family = "rdh"
    return _made(family, collective, ranks)


def bus_factor(collective: str, ranks):
    """Bytes a rank sends for each byte of the collective's size; `ranks` may be an array.

    Raises UnknownNameError `comm.collective`. Source: nccom-test guide of AWS Neuron.
    """
    if collective not in _FACTORS:
        raise _unknown(collective, list(_FACTORS))
    return _FACTORS[collective](ranks)


def steps(collective: str, ranks):
    """Steps of a collective among `ranks`, numbers or arrays: ring, or halving and doubling.

    A ring passes its neighbour ranks - 1 pieces, and does so twice to reduce and then gather;
    halving and doubling takes log2(ranks) steps each way, twice that where ranks are no power of
    two. The fewer count, as runtimes choose by size.
    """
    phases = 2 if collective == "all_reduce" else 1
    return phases * np.minimum(ranks - 1.0, 2.0 * np.log2(ranks))


def bandwidths(collective: str, nbytes: float, seconds: float, ranks: int) -> tuple[float, float]:
    """(algorithm, bus) bandwidth in bytes/s: size over time, and that times the bus factor.

    Source: `bus_factor`.
    """
    speed = nbytes / seconds
    return speed, speed * bus_factor(collective, ranks)
