"""Element-wise instructions of the Vector Engine: copies, fills, and up to two operators.

Meaning and limits: NKI 0.6 API reference (nki.isa).  Costs: NKI ISA reference v2.26.1 with the
speed modes of the architecture guides (see `vector_laws`).
"""

from functools import cached_property

import numpy as np

from opentrn.base import UsageError, dtypes
from opentrn.isa.enums import engine
from opentrn.isa.operands import (
    REQUIRED,
    Flag,
    ImmediateForm,
    In,
    InOut,
    OperandForm,
    Out,
    Scalar,
    derived,
    stated,
)
from opentrn.isa.operators import op
from opentrn.isa.vector_laws import (
    INT32,
    VectorInstr,
    alike,
    apply,
    arithmetic_only,
    as_bits,
    binary_only,
    engine_cycles,
    fitting,
    floats,
    idle_operand,
    maybe_op,
    not_both_in_psum,
    one,
    op_laws,
    operand_laws,
    pair_cycles,
    speed,
    vector,
)

ENGINES = ("vector", "scalar", "gpsimd")
TILE = "sbuf|psum"
RECIPROCAL = op("reciprocal")
PREDICATES = (dtypes.uint8, dtypes.uint16, dtypes.uint32)
# What the Scalar Engine computes before NeuronCore-v4 (nki.isa.tensor_scalar).
SCALAR_PAIRS = {("multiply", "add"), ("multiply", ""), ("add", "")}


class tensor_copy(VectorInstr):
    """dst[P,F] = src[P,F], bit by bit between equal dtypes, otherwise through float32."""

    waits = True
    engines = ENGINES
    gathers = ("dst", "src")
    packs = True
    dst = Out(TILE, "P F")
    src = In(TILE, "P F")
    engine = Flag(engine.unknown, "vector, scalar (not on trn1) or gpsimd (SBUF only)")

    def laws(i):
        """Engines with their memories, packed types."""
        yield (
            i.engine_name != "scalar" or i.chip.scalar.copies,
            f"the Scalar Engine of {i.chip.name} has no tensor_copy",
            "use nisa.activation(op=nl.copy), or engine=nisa.engine.vector",
        )
        packed = "packed" in (i.src.dtype.kind, i.dst.dtype.kind)
        yield (
            not packed or i.src.dtype == i.dst.dtype,
            f"packed types are copied bit by bit only: {i.src.dtype} to {i.dst.dtype}",
            "give both tiles one dtype",
        )
        scattered = i.dst.indirect == "tensor" and i.dst.space == "psum"
        yield (
            i.engine_name != "scalar" or not scattered,
            "on the Scalar Engine a scattered `dst` cannot be in PSUM",
            "use engine=nisa.engine.vector, or scatter into SBUF",
        )
        gathered = "tensor" in (i.dst.indirect, i.src.indirect)
        yield (
            i.engine_name != "gpsimd" or not gathered,
            "GpSimd copies without tensor indirection",
            "use engine=nisa.engine.vector or scalar",
        )

    def run(i, src):
        """The values themselves; the store converts."""
        return {"dst": src}

    def exact(i) -> bool:
        """Whether every value already is one of the dtype of `dst`."""
        return i.src.dtype == i.dst.dtype

    cycles = derived(
        "NKI ISA v2.26.1 tensor_copy: max(MIN_II, N); NG3:222-236 4x and 2x for 16-bit types; "
        "NG4:218 2x on the Scalar Engine",
        lambda i, chip: engine_cycles(i, i.F / speed(i, i.src, i.dst)),
    )


class memset(VectorInstr):
    """dst[P,F] = value, converted to the dtype of dst."""

    waits = True
    engines = ("vector", "gpsimd")
    packs = True
    dst = Out(TILE, "P F")
    value = Flag(REQUIRED, "the number to fill with (zero fills 16-bit tiles twice as fast)")
    engine = Flag(engine.unknown, "vector or gpsimd (SBUF only)")

    def laws(i):
        """Packed types hold no numbers but zero."""
        yield (
            i.dst.dtype.kind != "packed" or i.value == 0,
            f"a {i.dst.dtype} tile can only be filled with 0",
            "pass value=0",
        )
        number = isinstance(i.value, int | float | np.number)
        yield number, f"`value` is a number, not {i.value!r}", "pass a number"
        whole = isinstance(i.value, int | np.integer)
        yield (
            whole or not number or not i.dst.dtype.is_integer,
            f"an {i.dst.dtype} tile is filled with an integer, not {i.value!r}",
            f"pass value={int(i.value)}" if number and i.value % 1 == 0 else "pass an integer",
        )

    def undefined(i):
        """`[(operand, reason), …]`: an integer that the dtype of dst does not have."""
        kept = int(one(i.value, i.dst.dtype).flat[0]) if i.dst.dtype.is_integer else i.value
        if kept == i.value:
            return []
        why = f"{i.value} is no {i.dst.dtype}; it saturates to {kept} here, as casts of engines do"
        return [("value", why)]

    def run(i):
        """One element; the store repeats it."""
        return {"dst": one(i.value, i.dst.dtype)}

    cycles = stated(
        "NKI ISA v2.26.1 memset: max(MIN_II, N/2) for zero in bfloat16 or float16, else "
        "max(MIN_II, N)",
        lambda i, chip: engine_cycles(i, i.F / i.fill_rate()),
    )

    def fill_rate(i) -> int:
        """Elements written each cycle."""
        return 2 if i.value == 0 and i.dst.dtype in (dtypes.bfloat16, dtypes.float16) else 1


class tensor_tensor(VectorInstr):
    """dst[P,F] = data1[P,F] <op> data2[P,F].

    In float32, or on bits for bitvec operators.  On GpSimd, tiles that are all int32 or uint32
    are computed in native integers, exact modulo 2^32.
    """

    waits = True
    engines = ("vector", "gpsimd")
    delivers = True
    gathers = ("dst", "data1")
    dst = Out(TILE, "P F")
    data1 = In(TILE, "P F")
    data2 = In(TILE, "P F")
    op = Flag(REQUIRED, "a binary operator", read=op)
    engine = Flag(engine.unknown, "vector or gpsimd; unknown: gpsimd for 32-bit integers in SBUF")

    def in_integers(i) -> bool:
        """Whether all tiles are 32-bit integers and the operator is exact on them."""
        tiles = (i.dst, i.data1, i.data2)
        return i.op.native and all(t.dtype in INT32 for t in tiles)

    def choose(i):
        """GpSimd for power and for 32-bit integers in SBUF, else the Vector Engine."""
        if i.op.name == "power":
            return "gpsimd"
        in_psum = "psum" in (i.dst.space, i.data1.space, i.data2.space)
        return "gpsimd" if i.in_integers() and not in_psum else "vector"

    def laws(i):
        """Binary operators on an engine that has them; one stream from PSUM at most."""
        yield binary_only("op", i.op)
        yield from op_laws(i, "op", i.op, "dst", "data1", "data2")
        yield (
            i.op.name != "power" or i.engine_name == "gpsimd",
            "power runs on GpSimd only",
            "leave `engine` out, or use nisa.activation",
        )
        yield (
            not i.op.bitvec or i.engine_name == "vector",
            "bitvec operators run on the Vector Engine only",
            "leave `engine` out",
        )
        yield not_both_in_psum("data1", i.data1, "data2", i.data2)

    @cached_property
    def of_floats(i) -> bool:
        """Whether both inputs are what the arithmetic takes, one element for each."""
        alike = i.data1.shape == i.data2.shape == i.dst.shape
        return alike and i.data1.dtype.is_float and i.data2.dtype.is_float and not i.op.bitvec

    def run(i, data1, data2, out=None):
        """Element by element, in the arithmetic of the engine."""
        if i.of_floats:
            return {"dst": i.op(data1, data2, out=out)}
        data1, data2 = alike(data1, data2)
        if i.op.bitvec:
            return {"dst": as_bits(i.op(data1, as_bits(data2, data1.dtype)), i.dst.dtype.carrier)}
        if i.engine_name == "gpsimd" and i.in_integers():
            return {"dst": as_bits(i.op(data1, data2), i.dst.dtype.carrier)}
        out = fitting(out, data1)
        return {"dst": i.op(floats(i.data1, data1), floats(i.data2, data2), out=out)}

    cycles = derived(
        "NKI ISA v2.26.1 tensor_tensor: max(MIN_II, N) for SBUF with PSUM or dense bfloat16 add, "
        "multiply, subtract, else max(MIN_II, 2N); NG3:237 2x for 16-bit types in SBUF. GpSimd: "
        "its start of 150 cycles (affine_select) and 2N for two tiles (NG2:393)",
        lambda i, chip: i.estimate(),
    )

    def estimate(i):
        """Cycles on the engine it runs on."""
        if i.engine_name == "gpsimd":
            return engine_cycles(i, i.chip.gpsimd.start_cycles + 2.0 * i.F)
        simple = i.op.name in ("add", "multiply", "subtract")
        return engine_cycles(i, pair_cycles(i, i.data1, i.data2, i.dst, simple))


class tensor_scalar(VectorInstr):
    """dst[P,F] = (data[P,F] <op0> operand0[P,1]) <op1> operand1[P,1].

    Both operators arithmetic (in float32) or both bitvec (on integer bits).  `reverse0` and
    `reverse1` put the operand to the left of its operator.
    """

    waits = True
    engines = ENGINES
    delivers = True
    gathers = ("dst", "data")
    dst = Out(TILE, "P F")
    data = In(TILE, "P F")
    op0 = Flag(REQUIRED, "the first operator", read=op)
    operand0 = Scalar(TILE, "P 1", nullable=True)
    reverse0 = Flag(False, "operand0 <op0> data")
    op1 = Flag(None, "the second operator; costs nothing", read=maybe_op)
    operand1 = Scalar(TILE, "P 1", default=None)
    reverse1 = Flag(False, "operand1 <op1> the first result")
    engine = Flag(engine.unknown, "vector, scalar (some operators) or gpsimd (rsqrt)")

    def names(i) -> tuple[str, str]:
        """Names of the operators; "" for none."""
        return i.op0.name, i.op1.name if i.op1 else ""

    def choose(i):
        """GpSimd for rsqrt (the Scalar Engine of trn3 where PSUM is involved), else vector."""
        if "rsqrt" not in i.names():
            return "vector"
        in_psum = "psum" in (i.dst.space, i.data.space)
        return "scalar" if in_psum and i.chip.generation >= 4 else "gpsimd"

    def laws(i):
        """Operators of one family with their operands, on an engine that has them."""
        yield from op_laws(i, "op0", i.op0, "dst", "data", "operand0")
        yield from operand_laws(i, "op0", "operand0")
        yield from operand_laws(i, "op1", "operand1")
        yield (
            i.op1 is not None or i.operand1 is None,
            "`operand1` without op1 would be ignored",
            "pass op1, or leave operand1 out",
        )
        if i.op1 is not None:
            yield from op_laws(i, "op1", i.op1, "dst", "data", "operand1")
            yield (
                i.op0.bitvec == i.op1.bitvec,
                f"op0={i.op0} and op1={i.op1} must both be bitvec or both arithmetic",
                "use two instructions",
            )
        yield from _scalar_engine_laws(i)

    def run(i, data, operand0, operand1=None, out=None):
        """One or two operators; the second works in place."""
        idle_operand(i, "op0", "operand0", operand0)
        idle_operand(i, "op1", "operand1", operand1)
        if i.op0.bitvec:
            first, second = _bit_operand(i, data, operand0), _bit_operand(i, data, operand1)
            out = None
        else:
            first, second = vector(i.operand0, operand0), vector(i.operand1, operand1)
            data = floats(i.data, data)
        result = apply(i.op0, data, first, i.reverse0, out=out)
        if i.op1 is not None:
            out = None if result is data else result
            result = apply(i.op1, result, second, i.reverse1, out=out)
        if i.op0.bitvec:
            result = as_bits(result, i.dst.dtype.carrier)
        return {"dst": result}

    cycles = derived(
        "NKI ISA v2.26.1 tensor_scalar: max(MIN_II, N); NG3:222-236 4x and 2x for 16-bit types; "
        "NG4:218 2x on the Scalar Engine; rsqrt on GpSimd at a quarter of that (nki.api.shared)",
        lambda i, chip: engine_cycles(
            i, i.F * (4.0 if i.engine_name == "gpsimd" else 1 / speed(i, i.data, i.dst))
        ),
    )


def _bit_operand(i, data, y):
    """An operand of a bitvec operator with the carrier of `data`, one for each partition."""
    if y is None:
        return None
    if isinstance(y, np.ndarray):
        return as_bits(y, data.dtype).reshape(-1, 1)
    if int(y) != y:
        i.bad(
            UsageError,
            f"{y} is not an integer",
            "bitvec operators take integers",
            "pass an integer operand, or use an arithmetic operator",
            "operands",
        )
    return int(y)


def _scalar_engine_laws(i):
    vector_only = i.op0.bitvec or "reciprocal" in i.names()
    yield (
        not vector_only or i.engine_name == "vector",
        "bitvec operators and reciprocal run on the Vector Engine",
        "leave `engine` out, or pass engine=nisa.engine.vector",
    )
    yield (
        "rsqrt" not in i.names() or i.engine_name != "vector",
        "rsqrt runs on GpSimd (in SBUF) or the Scalar Engine",
        "copy the tile into SBUF for GpSimd, or use nisa.activation(op=nl.rsqrt)",
    )
    yield (
        i.engine_name != "gpsimd" or "rsqrt" in i.names(),
        "in tensor_scalar GpSimd serves rsqrt only",
        "pass engine=nisa.engine.vector",
    )
    yield (
        i.engine_name != "scalar" or i.chip.generation >= 4 or i.names() in SCALAR_PAIRS,
        "before NeuronCore-v4 the Scalar Engine computes multiply, add, or multiply then add: "
        f"not op0={i.op0}, op1={i.op1}",
        "pass engine=nisa.engine.vector, or use nisa.activation",
    )
    scattered = i.dst.indirect == "tensor" and i.dst.space == "psum"
    yield (
        i.engine_name != "scalar" or not scattered,
        "on the Scalar Engine a scattered `dst` cannot be in PSUM",
        "use engine=nisa.engine.vector, or scatter into SBUF",
    )
    words = i.data.dtype in INT32 and i.dst.dtype in INT32 and not i.op0.bitvec
    yield (
        not words or "tensor" not in (i.data.indirect, i.dst.indirect),
        "arithmetic from 32-bit integers to 32-bit integers is address arithmetic, which knows no "
        "tensor indirection",
        "gather with nisa.tensor_copy first",
    )


class scalar_tensor_tensor(VectorInstr):
    """dst[P,F] = (data[P,F] <op0> operand0[P,1]) <op1> operand1[P,F], in float32."""

    waits = True
    delivers = True
    dst = Out(TILE, "P F")
    data = In(TILE, "P F")
    op0 = Flag(REQUIRED, "operator on data and operand0", read=op)
    operand0 = Scalar(TILE, "P 1", nullable=True)
    op1 = Flag(REQUIRED, "operator on the first result and operand1", read=op)
    operand1 = In(TILE, "P F")
    reverse0 = Flag(False, "operand0 <op0> data")
    reverse1 = Flag(False, "operand1 <op1> the first result")

    def laws(i):
        """Arithmetic only; one stream from PSUM at most."""
        yield arithmetic_only("op0", i.op0)
        yield arithmetic_only("op1", i.op1)
        yield binary_only("op1", i.op1)
        yield from op_laws(i, "op0", i.op0)
        yield from op_laws(i, "op1", i.op1)
        yield from operand_laws(i, "op0", "operand0", wide=False)
        yield not_both_in_psum("data", i.data, "operand1", i.operand1)

    def run(i, data, operand0, operand1, out=None):
        """The two operators in float32."""
        idle_operand(i, "op0", "operand0", operand0)
        data, operand1 = alike(floats(i.data, data), floats(i.operand1, operand1))
        out = fitting(out, data)
        first = apply(i.op0, data, vector(i.operand0, operand0), i.reverse0, out=out)
        return {"dst": apply(i.op1, first, operand1, i.reverse1, out=out)}

    cycles = stated(
        "NKI ISA v2.26.1 scalar_tensor_tensor: N when data and operand1 are bfloat16, op0 is "
        "subtract, op1 multiply and N even, else 2N; MIN_II as for every instruction",
        lambda i, chip: engine_cycles(i, i.F * (1.0 if i.lean() else 2.0)),
    )

    def lean(i) -> bool:
        """Whether it is the one pair of operators that takes N cycles."""
        pair = (i.op0.name, i.op1.name) == ("subtract", "multiply")
        bf16 = i.data.dtype == i.operand1.dtype == dtypes.bfloat16
        return pair and bf16 and i.F % 2 == 0


class reciprocal(VectorInstr):
    """dst[P,F] = 1 / data[P,F], in float32."""

    waits = True
    delivers = True
    dst = Out(TILE, "P F")
    data = In(TILE, "P F")

    def run(i, data, out=None):
        """One division for each element."""
        return {"dst": RECIPROCAL(floats(i.data, data), out=out)}

    cycles = stated(
        "NKI ISA v2.26.1 reciprocal and nki.api.shared: max(MIN_II, 8N)",
        lambda i, chip: engine_cycles(i, 8.0 * i.F),
    )


class tensor_copy_predicated(VectorInstr):
    """dst[P,F] = src[P,F] where predicate[P,F] is not zero; dst stays elsewhere.

    `src` may be a number.  With `reverse_pred` the elements with predicate zero are copied.
    """

    gathers = ("dst", "predicate")
    packs = True
    dst = InOut(TILE, "P F")
    src = In(TILE, "P F", immediate=True)
    predicate = In(TILE, "P F", *PREDICATES)
    reverse_pred = Flag(False, "copy where the predicate is zero")

    def laws(i):
        """One dtype, and one stream from PSUM at most."""
        yield (
            isinstance(i.src, ImmediateForm) or i.src.dtype == i.dst.dtype,
            f"`src` and `dst` must have one dtype: {getattr(i.src, 'dtype', '')} and {i.dst.dtype}",
            "cast `src` with nisa.tensor_copy first",
        )
        yield (
            not isinstance(i.src, ImmediateForm) or i.dst.dtype.kind != "packed",
            f"a number cannot be copied into a {i.dst.dtype} tile",
            "memset a tile with 0 and pass it as `src`",
        )
        yield not_both_in_psum("src", i.src, "predicate", i.predicate)

    def run(i, dst, src, predicate):
        """A choice for each element, bits unchanged."""
        chosen = np.equal(predicate, 0) if i.reverse_pred else np.not_equal(predicate, 0)
        number = isinstance(i.src, ImmediateForm)
        src = one(src, i.dst.dtype) if number else src.reshape(dst.shape)
        return {"dst": np.where(chosen.reshape(dst.shape), src, dst)}

    cycles = derived(
        "NKI ISA v2.26.1 tensor_copy_predicated: max(MIN_II, N) when src and predicate come from "
        "SBUF and PSUM, max(MIN_II, 2N) when both come from SBUF; N for a number (one stream)",
        lambda i, chip: engine_cycles(i, i.F * (2.0 if i.two_streams() else 1.0)),
    )

    def two_streams(i) -> bool:
        """Whether two tiles come from SBUF."""
        return isinstance(i.src, OperandForm) and i.src.space == i.predicate.space


__all__ = [
    "memset",
    "reciprocal",
    "scalar_tensor_tensor",
    "tensor_copy",
    "tensor_copy_predicated",
    "tensor_scalar",
    "tensor_tensor",
]
