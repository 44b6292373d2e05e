"""The roofline: no program is faster than its arithmetic at peak, nor than its bytes at full rate.

time >= max(flops / peak, bytes / bandwidth)      (Williams, Waterman, Patterson, CACM 52(4), 2009)
"""

from __future__ import annotations

from dataclasses import dataclass

from opentrn.base.errors import DtypeError, LimitError, UnsupportedError, UsageError, declare
from opentrn.cost.estimate import Estimate
from opentrn.hw import Chip, Fact, target

declare(
    "cost.dtype",
    "The Tensor Engine has a peak rate for float32, 16-bit floats, float8 and (trn3) MX types.",
    rule="a type that the Tensor Engine of the chip multiplies",
    fix="use float32, tfloat32, bfloat16, float16, float8_* or mxfp8 / mxfp4",
)
declare(
    "cost.cores",
    "The cores counted must exist.",
    rule="1 <= cores <= cores of the machine",
    fix="leave `cores` out for the whole machine",
)
declare(
    "cost.negative", "Work and time are not negative.", rule="flops, bytes, items and seconds >= 0",
    fix="check the sign of the argument",
)  # fmt: skip

_PEAKS = {
    "float32": "fp32", "fp32": "fp32",
    "tfloat32": "bf16", "tf32": "bf16", "bfloat16": "bf16", "bf16": "bf16",
    "float16": "bf16", "fp16": "bf16",
    # e3m4 runs at the rate of bfloat16 (Trainium2 guide for NKI).
    "float8_e3m4": "bf16",
    "float8_e4m3": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "fp8": "fp8",
    "float8_e4m3fn_x4": "mx", "float8_e5m2_x4": "mx", "float4_e2m1fn_x4": "mx",
    "mxfp8": "mx", "mxfp4": "mx",
}  # fmt: skip
"""dtype -> which peak rate of the Tensor Engine it has."""


@dataclass(frozen=True)
class Roofline:
    """A lower bound of the time and what makes it.

    `seconds` is the bound, `bound` is "compute" or "memory"; `peak` (flop/s) and `bandwidth`
    (byte/s) are the two roofs; `intensity` and `ridge` are flops per byte.
    """

    seconds: Estimate
    bound: str
    flops: float
    nbytes: float
    peak: float
    bandwidth: float
    compute_seconds: float
    memory_seconds: float
    chip: str
    cores: int
    dtype: str

    @property
    def intensity(self) -> float:
        """Flops for each byte of this work; infinite when it moves nothing."""
        return self.flops / self.nbytes if self.nbytes else float("inf")

    @property
    def ridge(self) -> float:
        """Flops for each byte from which on the arithmetic is what takes time."""
        return self.peak / self.bandwidth

    def __str__(self) -> str:
        return (
            f"at least {self.seconds} on {self.cores} core(s) of {self.chip}: {self.bound} bound, "
            f"{self.intensity:,.1f} flop/byte, the ridge is at {self.ridge:,.1f}"
        )


def peak_fact(chip: str | Chip, dtype: str, whole: bool = False) -> Fact:
    """The Tensor Engine's peak for a dtype: of one core, or of the whole chip as advertised.

    Raises DtypeError or, when this chip has no such rate, UnsupportedError `cost.dtype`.
    """
    chip = target(chip)
    kind = _PEAKS.get(str(dtype))
    if kind is None:
        raise DtypeError(f"the Tensor Engine has no peak rate for {dtype}", code="cost.dtype")
    path = f"{'chip' if whole else 'core'}.peak_{kind}"
    if path not in chip.facts:
        raise UnsupportedError(
            f"{chip.name} has no {dtype} rate", code="cost.dtype", fix="MX types need trn3"
        )
    return chip.fact(path)


def bandwidth_facts(chip: str | Chip, cores: int) -> tuple[float, tuple[Fact, ...]]:
    """(byte/s between HBM and that many cores, the facts it rests on).

    The DMA engines of the cores carry engines x engine_rate each; all cores together get what the
    HBM gives. One core of trn1 cannot use its half of the HBM, one of trn2 just about can.
    """
    chip = target(chip)
    engines, rate = chip.fact("dma.engines"), chip.fact("dma.engine_rate")
    carried = cores * engines.value * rate.value
    hbm = chip.fact("chip.hbm_bandwidth")
    return (carried, (engines, rate)) if carried < hbm.value else (float(hbm.value), (hbm,))


def roofline(
    flops: float,
    nbytes: float,
    chip: str | Chip,
    dtype: str = "bfloat16",
    *,
    cores: int | None = None,
) -> Roofline:
    """Least seconds for `flops` Tensor Engine flops and `nbytes` HBM bytes, both over all cores.

    Without `cores` the whole chip works, at its advertised peak; with it that many physical cores,
    at the peak of a core each. The bound rests on the grade of the roof that is hit.
    Raises LimitError `cost.cores`, UsageError `cost.negative`, and the errors of `peak_fact`.

    Source: peaks and bandwidths of `hw`, each graded.
    """
    chip = target(chip)
    if flops < 0 or nbytes < 0:
        raise UsageError("flops and bytes cannot be negative", code="cost.negative")
    if cores is not None and not 1 <= cores <= chip.cores:
        raise LimitError(f"{chip.name} has {chip.cores} cores, not {cores}", code="cost.cores")
    whole = cores is None
    fact = peak_fact(chip, dtype, whole)
    count = chip.cores if whole else cores
    peak = fact.value * (1 if whole else count)
    bandwidth, carriers = bandwidth_facts(chip, count)
    compute, memory = flops / peak, nbytes / bandwidth
    facts = (fact,) if compute >= memory else carriers
    return Roofline(
        seconds=Estimate.resting_on(max(compute, memory), "s", *facts),
        bound="compute" if compute >= memory else "memory",
        flops=flops,
        nbytes=nbytes,
        peak=peak,
        bandwidth=bandwidth,
        compute_seconds=compute,
        memory_seconds=memory,
        chip=chip.name,
        cores=count,
        dtype=str(dtype),
    )
