"""Calls of nki.isa that are nearly right: a value, or a refusal that names what is wrong.

Operands are tiles of mostly one shape, flags mostly of the right kind; so what instructions say of
each other's operands is reached, which wholly random calls seldom do (`test_fuzz`).
"""

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import TrnError
from opentrn.isa import INSTRUCTIONS, REQUIRED
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from tests.nki.test_fuzz import CALL, Draw
from tests.nki.test_fuzz import no_hang as no_hang  # a fixture of this module too

SEEDS = 8  # times the functions of nki.isa, times CALLS
CALLS = 12
FUNCTIONS = [
    name for name, one in INSTRUCTIONS.items()
    if one.module == "nki.isa" and name not in ("core_barrier", "sendrecv")
]  # fmt: skip
DTYPES = (
    *[nl.float32] * 6, *[nl.bfloat16] * 3, nl.float16, nl.int32, nl.uint32, nl.int8, nl.uint8,
    nl.uint16, nl.float8_e4m3, nl.float8_e4m3fn, nl.float8_e4m3fn_x4, nl.tfloat32,
)  # fmt: skip
OPERATORS = (
    nl.add, nl.subtract, nl.multiply, nl.maximum, nl.divide, nl.power, nl.bitwise_and, nl.equal,
    nl.less, nl.abs, nl.rsqrt, nl.exp, nl.copy, nl.left_shift, nl.bypass, None,
)  # fmt: skip
NUMBERS = (0, 1, 2, -1, 0.5, 8, 16, 127, 255, True, None)
CHOICES = {
    "axis": (1, (1,), 2, (1, 2), 0, -1),
    "axes": (None, (1, 0), (2, 1, 0), (3, 1, 2, 0)),
    "pattern": ([[1, 16]], [[1, 16], [0, 1]], [[8, 2], [1, 8]], [[-1, 16]], [[1, 64]], []),
    "shuffle_mask": (list(range(32)), [255] * 32, [0] * 32, list(range(31)), [32] * 32),
    "tile_position": ((), (0, 0), (32, 0), (64, 64), None, (0,)),
    "tile_size": ((), (128, 128), (32, 128), (64, 64), None, (64,)),
    "scales": (None, [1.0], [1.0, 1.0], [2.0, 1.0], 1.0),
    **dict.fromkeys(("op", "op0", "op1", "reduce_op", "cmp_op", "comp_op0", "comp_op1"), OPERATORS),
    **{kind.__name__: tuple(kind) for kind in (
        nisa.engine, nisa.reduce_cmd, nisa.dge_mode, nisa.oob_mode, nisa.dma_engine,
    )},
    "perf_mode": tuple(nisa.matmul_perf_mode),
}  # fmt: skip


def tile(draw, calm):
    """A tile of 128 × 16 elements; when not calm, or now and then, of another shape or type."""
    if calm and draw.rng.random() < 0.9:
        made = nl.ndarray((128, 16), nl.float32, buffer=nl.sbuf)
        nisa.memset(made, 1)
        return made
    shape = draw.one([(128, 16)] * 8 + [(128, 1), (128, 8), (128, 2, 8), (32, 32), (64, 16)])
    dtype = draw.one(DTYPES)
    made = nl.ndarray(shape, dtype, buffer=draw.one([nl.sbuf] * 7 + [nl.psum, nl.private_hbm]))
    if made.buffer is not nl.private_hbm:
        nisa.memset(made, 0 if dtype is nl.float8_e4m3fn_x4 else 1)
    return made


def argument(draw, name, one, calm):
    if name == "srcs":
        return [tile(draw, calm) for _ in range(draw.one([1, 2, 2, 3]))]
    if name.startswith("register") or (one.__name__.startswith("register") and name == "dst"):
        return nisa.register_alloc(draw.one([None, 0, 5]))
    if name in CHOICES:
        return draw.one(CHOICES[name])
    if name in one.operands and draw.rng.random() < 0.85:
        return tile(draw, calm)
    return draw.one(NUMBERS)


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", FUNCTIONS)
def test_nearly_right_calls_end_in_a_value_or_a_reason(name, seed):
    draw, one = Draw([seed, FUNCTIONS.index(name)]), INSTRUCTIONS[name]

    told = []

    def kernel(x):
        for _ in range(CALLS):
            calm = draw.rng.random() < 0.7
            given = {
                parameter: argument(draw, parameter, one, calm)
                for parameter, declared in one.parameters.items()
                if declared.default is REQUIRED or draw.rng.random() < 0.25
            }
            try:
                with np.errstate(all="ignore"):
                    getattr(nisa, name)(**given)
            except (TrnError, TypeError) as error:
                told.append(error)
        return x

    with nki.use_target(draw.one(["trn1", "trn2", "trn3"])):
        try:
            nki.run(kernel, np.ones((1, 1), np.float32))
        except TrnError as error:
            told.append(error)
    for error in told:
        if isinstance(error, TrnError):
            assert error.code != "nki.argument", error.what  # Python's words about our own lines
            assert all([error.rule, error.fix]), error.code
        else:
            assert CALL.search(str(error)), error
