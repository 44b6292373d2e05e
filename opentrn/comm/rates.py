"""What collectives reach of a machine's links and engines, fitted to published measurements.

Fabric files give what links can carry; these numbers say how much of it an algorithm gets, and how
long a step takes.  No vendor page gives them.  Sources of the fits:

    trn1-curves   nccom-test all-reduce on 2, 8, 16 and 32 ranks, 1 KB to 2 GB (public plotting
                  script of 2025; instance inferred to be trn1.32xlarge)
    trn2-sweeps   github.com/jimburtoft/cookbook (2026): nccom-test and NKI kernels on
                  trn2.3xlarge and trn2.48xlarge
    two-nodes     AWS Neuron, nccom-test guide: 64 ranks on two instances (2023), as one flat ring
    page          AWS Neuron, intra-node collectives: 1 to 2 us for a hop; KangaRing overtakes
                  recursive doubling and halving at 56 MB

`bench/published/nccom` compares them with every row, those that were fitted and the others.
"""

from dataclasses import dataclass

from opentrn.hw import Chip

GRADE_ORDER = ("stated", "fitted", "derived", "assumed")


@dataclass(frozen=True)
class Rate:
    """A fitted number in SI units, its grade, and what it rests on."""

    value: float
    grade: str
    source: str


@dataclass(frozen=True)
class Rates:
    """Times in seconds, rates in byte/s, shares of what the links carry.

    `ring_step` between neighbours of a ring; `chip_step` within a chip; `message` plus `passed` for
    each chip on the way of a routed message.  `link` and `mesh` are shares of link bandwidth that
    rings and routed messages get, `network` that of EFA.  `channel` is what each cycle of a flat
    ring adds to a step, because the collective cores serve all cycles in turn.  `core` is what one
    physical core of a rank passes on in a ring inside its chip, `through` in rings that leave it,
    `ring` what one such ring carries; `direct` what a rank exchanges directly (mesh, halving and
    doubling), `copy` sends without adding; `call` is the fixed part of a permute.
    """

    ring_step: Rate
    chip_step: Rate
    message: Rate
    passed: Rate
    link: Rate
    mesh: Rate
    core: Rate
    through: Rate
    ring: Rate
    direct: Rate
    copy: Rate
    call: Rate
    network: Rate
    channel: Rate


_TRN1 = Rates(
    ring_step=Rate(3.6e-6, "fitted", "trn1-curves, 32 ranks"),
    chip_step=Rate(1.05e-6, "fitted", "trn1-curves: 2.1 us for two steps"),
    message=Rate(0.6e-6, "fitted", "trn1-curves"),
    passed=Rate(0.7e-6, "fitted", "trn1-curves"),
    link=Rate(0.69, "fitted", "trn1-curves: 33 of 48 GB/s on 2 and on 4 rings"),
    mesh=Rate(0.53, "fitted", "trn1-curves: the same on 4, 8 and 16 chips"),
    core=Rate(58e9, "fitted", "trn1-curves, 2 ranks"),
    through=Rate(130e9, "fitted", "trn1-curves, 32 ranks"),
    ring=Rate(59e9, "assumed", "as trn2; the links carry less"),
    direct=Rate(58e9, "fitted", "trn1-curves, 2 ranks"),
    copy=Rate(104e9, "assumed", "trn2-sweeps: sendrecv on one die"),
    call=Rate(12e-6, "assumed", "trn2-sweeps: sendrecv of 4 KB"),
    network=Rate(0.53, "fitted", "two-nodes, 256 MB to 1 GB"),
    channel=Rate(0.77e-6, "fitted", "two-nodes, 1 MB: 9.8 us for a step of eight cycles"),
)

_TRN2 = Rates(
    ring_step=Rate(1.5e-6, "derived", "page: the middle of 1 to 2 us"),
    chip_step=Rate(1.05e-6, "assumed", "as trn1"),
    message=Rate(0.6e-6, "assumed", "as trn1"),
    passed=Rate(0.7e-6, "assumed", "as trn1"),
    link=Rate(0.69, "assumed", "as trn1; two chips reach 0.60"),
    mesh=Rate(0.53, "assumed", "as trn1"),
    core=Rate(59e9, "fitted", "trn2-sweeps: 67 at LNC 1, 105 at LNC 2, without the launch"),
    through=Rate(86e9, "fitted", "trn2-sweeps: 173 on four rings at LNC 2, without the launch"),
    ring=Rate(59e9, "fitted", "trn2-sweeps: 117 and 119 on two rings, without the launch"),
    direct=Rate(115e9, "fitted", "trn2-sweeps, nccom-test; page: equal to KangaRing at 56 MB"),
    copy=Rate(104e9, "fitted", "trn2-sweeps: sendrecv on one die"),
    call=Rate(12e-6, "fitted", "trn2-sweeps: sendrecv of 4 KB"),
    network=Rate(0.75, "fitted", "trn2-sweeps: 128 MB on two instances, without the launch"),
    channel=Rate(0.77e-6, "assumed", "as trn1"),
)


def _scaled(rates: Rates, factor: float, why: str) -> Rates:
    """The same laws on another chip: engine rates times a factor, all of it assumed."""
    found = {}
    for name, rate in vars(rates).items():
        scale = factor if name in ("core", "through", "ring", "direct", "copy") else 1.0
        found[name] = Rate(rate.value * scale, "assumed", why)
    return Rates(**found)


def rates(chip: Chip) -> Rates:
    """The rates of a chip: fitted for trn1 and trn2, assumed for the others."""
    if chip.generation >= 4:
        return _scaled(_TRN2, 33 / 23, "as trn2, times the rates of DMA engines, 33 to 23 GB/s")
    if chip.generation == 3:
        return _TRN2
    return _TRN1 if chip.name == "trn1" else _scaled(_TRN1, 1.0, "as trn1")
