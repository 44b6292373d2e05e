"""The fast exponential of the Vector Engine, from NeuronCore-v4 on.

Meaning: NKI 0.6 API reference, nki.isa.exponential.  Speed: Trainium3 architecture guide (NG4),
"Fast Exponential Evaluation": four times the Scalar Engine's.
"""

import numpy as np

from opentrn.base import UsageError, dtypes, float32
from opentrn.isa.enums import reduce_cmd
from opentrn.isa.operands import Flag, ImmediateForm, In, OperandForm, Out, Scalar, derived
from opentrn.isa.operators import act, op, reduce
from opentrn.isa.vector_accumulators import accumulate_part, accumulator_laws, lanes
from opentrn.isa.vector_laws import VectorInstr, engine_cycles, floats, vector

TILE = "sbuf|psum"
FLOATS = (dtypes.float8_e4m3, dtypes.float8_e5m2, dtypes.float16, dtypes.bfloat16, float32)
SMALL = (dtypes.int8, dtypes.int16, dtypes.int32, dtypes.uint8, dtypes.uint16)
COMMANDS = (
    reduce_cmd.idle,
    reduce_cmd.reset_reduce,
    reduce_cmd.reduce,
    reduce_cmd.load_reduce,
)
SUM, EXP = op("add"), act("exp")
# Elements a lane takes each cycle: four times the Scalar Engine, which takes one at this clock.
WIDTH = 4


class exponential(VectorInstr):
    """dst[P,F] = exp(src[P,F] − max_value[P,1]) in float32, with an optional sum over F.

    The sum goes through the Vector Engine's accumulators: from 0 (reset_reduce), from what they
    hold (reduce) or from `reduce_init` (load_reduce); `reduce_res` receives them.
    """

    generations = (4,)
    gathers = ("dst", "src")
    state = "accumulators"
    dst = Out(TILE, "P F", *FLOATS, dtypes.tfloat32, *SMALL)
    src = In(TILE, "P F", *FLOATS, *SMALL, dtypes.uint32)
    max_value = Scalar(TILE, "P 1", float32, default=0.0)
    reduce_res = Out(TILE, "P 1", *FLOATS, dtypes.tfloat32, default=None)
    reduce_cmd = Flag(reduce_cmd.idle, "idle, reset_reduce, reduce or load_reduce")
    reduce_init = Scalar(TILE, "P 1", float32, default=0.0)

    def laws(i):
        """Commands, start values, ranks."""
        yield from accumulator_laws(i, COMMANDS)
        yield (
            i.reduce_cmd is reduce_cmd.load_reduce or not isinstance(i.reduce_init, OperandForm),
            f"`reduce_init` is ignored with {i.reduce_cmd.name}",
            "pass reduce_cmd=nisa.reduce_cmd.load_reduce, or leave `reduce_init` out",
        )
        yield (
            i.reduce_cmd is not reduce_cmd.load_reduce or i.reduce_init is not None,
            "load_reduce needs `reduce_init`",
            "pass a number, or a float32 tile with one element for each partition",
        )
        yield (
            max(len(i.src.shape), len(i.dst.shape)) <= 4,
            "`src` and `dst` have at most four dimensions",
            "flatten the free dimensions",
        )

    def run(i, src, accumulators, max_value=None, reduce_init=None):
        """Exponentials, and the accumulators after them."""
        loads = i.reduce_cmd is reduce_cmd.load_reduce
        if isinstance(i.reduce_init, ImmediateForm) and not loads and reduce_init != 0:
            i.bad(
                UsageError,
                f"`reduce_init` = {reduce_init} is ignored with {i.reduce_cmd.name}",
                "`reduce_init` serves load_reduce only",
                "pass reduce_cmd=nisa.reduce_cmd.load_reduce, or leave `reduce_init` out",
                "reduce_init",
            )
        x = floats(i.src, src).reshape(i.P, i.F)
        if max_value is not None:
            with np.errstate(all="ignore"):
                x = x - np.float32(vector(i.max_value, max_value))
        result = EXP(x)
        part = reduce(SUM, result, 1)
        after = accumulate_part(i, i.src, accumulators, SUM, part, reduce_init)
        held = after[lanes(i.src)].reshape(i.P, 1)
        return {"dst": result, "reduce_res": held, "accumulators": after}

    cycles = derived(
        "NG4: 4 times the throughput of activation(op=exp), max(MIN_II, N/4); + MIN_II to read the "
        "accumulators, as tensor_scalar_reduce (ISA v2.26.1)",
        lambda i, chip: engine_cycles(
            i,
            i.F / WIDTH,
            extra=0.0 if i.reduce_res is None else float(chip.vector.min_cycles),
        ),
    )


__all__ = ["exponential"]
