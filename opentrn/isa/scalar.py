"""Instructions of the Scalar Engine: activation functions with scale, bias and a running sum.

Costs: NKI ISA reference v2.26.1 (the last to print them): max(MIN_II, N) cycles, and one more
instruction of MIN_II cycles to read the accumulators out (ActReadAccumulator, NG2:492).  How long a
result takes to become visible comes from `latency` and `function_latency` of hw/chips [scalar].
"""

from math import inf

import numpy as np

from opentrn.base import ON_CHIP, UsageError, declare, float32, numerics, tfloat32
from opentrn.isa.define import Instr
from opentrn.isa.enums import reduce_cmd
from opentrn.isa.operands import (
    REQUIRED,
    Cycles,
    Dim,
    Flag,
    ImmediateForm,
    In,
    OperandForm,
    Out,
    Scalar,
    assumed,
    stated,
)
from opentrn.isa.operators import act, op, reduce

declare(
    "isa.reduce_cmd",
    "A command for the accumulator registers is not one of the commands there are.",
    rule="`reduce_cmd` is a member of nisa.reduce_cmd",
    fix="pass for example reduce_cmd=nisa.reduce_cmd.reset_reduce",
)

VALUES = tuple(d for d in ON_CHIP if d.kind != "packed")
BIAS = tuple(d for d in VALUES if d != tfloat32)
REDUCING = (reduce_cmd.reduce, reduce_cmd.reset_reduce)
RESETTING = (reduce_cmd.reset, reduce_cmd.reset_reduce)
# Operators of the three-stage form of NeuronCore-v4 (NKI 0.6 API reference, activate2).
STAGES = {
    ("multiply", "add"),
    ("multiply", "subtract"),
    ("multiply", "bypass"),
    ("add", "bypass"),
    ("subtract", "bypass"),
    ("bypass", "bypass"),
}
SUM, PRODUCT = op("add"), op("multiply")
REDUCTIONS = ("add", "maximum", "minimum", "abs_max", "abs_min")


def _optional_op(value):
    return None if value is None else op(value)


def _stage(value):
    """op0 or op1; None is the same as bypass."""
    return op("bypass" if value is None else value)


def _command(value):
    """A member of `reduce_cmd`; UsageError for anything else."""
    if isinstance(value, reduce_cmd):
        return value
    raise UsageError(
        f"`reduce_cmd` is {value!r}",
        code="isa.reduce_cmd",
    )


def _lanes(chip) -> int:
    return int(chip.core.partitions)


LANES = (lambda i, chip: _lanes(chip), "one lane of the engine for each partition")
ELEMENTS = (None, "one element for each lane and cycle; as many as the memory holds")


# ---------------------------------------------------------------------- meaning


def _column(value, ndim: int):
    """A number, or one value for each partition shaped to broadcast over `ndim` dimensions."""
    if isinstance(value, np.ndarray):
        return value.reshape(value.shape[0], *(1,) * (ndim - 1))
    return value


def _term(form, value, ndim: int):
    """Scale, bias or immediate as float32, ready to broadcast."""
    if isinstance(form, OperandForm) and form.dtype is not float32:
        value = numerics.cast(value, form.dtype, float32)
    return _column(value, ndim)


def _scaled(i, data, scale, bias, out=None):
    """data * scale + bias in float32: two roundings, as the two are separate steps.

    `out` may receive the result; without it, or where nothing is computed, it may be `data`.
    """
    x = data if i.data.dtype.is_float else numerics.cast(data, i.data.dtype, float32)
    if isinstance(i.scale, OperandForm) or scale != 1.0:
        x = out = PRODUCT(x, _term(i.scale, scale, x.ndim), out=out)
    if bias is not None:
        x = SUM(x, _term(i.bias, bias, x.ndim), out=out)
    return x


def _reduced(i, how, command, output, accumulators):
    """The accumulators of all lanes after this instruction; the same array when untouched.

    The published pseudo code adds the old content twice for `reduce`; the prose beside it (and
    the pseudo code of activate2) adds it once, which is what happens here.
    """
    if command is reduce_cmd.idle:
        return accumulators
    lanes = slice(i.data.partition, i.data.partition + i.P)
    after = accumulators.copy()
    if command in RESETTING:
        after[lanes] = how.identity
    if command in REDUCING:
        found = reduce(how, output.reshape(i.P, -1), 1)
        after[lanes] = how(after[lanes], found)
    return after


def _results(i, output, accumulators, before):
    """The values for the operands that were given, and the accumulators when they changed."""
    made = {"dst": output if output.shape == i.dst.shape else output.reshape(i.dst.shape)}
    if i.reduce_res is not None:
        lanes = slice(i.data.partition, i.data.partition + i.P)
        made["reduce_res"] = accumulators[lanes].reshape(i.reduce_res.shape)
    if accumulators is not before:
        made["accumulators"] = accumulators
    return made


# ---------------------------------------------------------------------- laws


def _bias_rules(i):
    yield (
        not isinstance(i.bias, ImmediateForm) or i.chip.generation >= 3,
        f"`bias` is a [P, 1] tile on {i.chip.name}; it may be a number from NeuronCore-v3 on",
        "write the number into a [P, 1] tile with nisa.memset and pass that tile",
    )
    yield (
        not i.op.parameter,
        "`op` needs no slope, for there is none to give here: prelu is not possible",
        "use nisa.activate2(..., relu_param=slope) on trn3, or nl.maximum and nl.minimum",
    )


def _sum_rules(i, command):
    yield (
        i.reduce_op is None or i.reduce_op.name == "add",
        f"`reduce_op` can only be nl.add (it is {i.reduce_op}): the accumulators only sum",
        "pass reduce_op=nl.add, or reduce `dst` with nisa.tensor_reduce",
    )
    yield (
        command not in REDUCING or i.reduce_op is not None,
        "reduce_cmd.reduce and reset_reduce need a `reduce_op`",
        "pass reduce_op=nl.add",
    )
    yield from _command_rules(command)


def _command_rules(command):
    yield (
        command is not reduce_cmd.load_reduce,
        "the accumulators of the Scalar Engine cannot be loaded: no reduce_cmd.load_reduce",
        "use reduce_cmd.reset_reduce, then add the start value to the result",
    )


def _indirect_rules(i):
    """Where scatters may stand (NKI 0.6 API reference, tensor indirection)."""
    yield (
        i.dst.indirect != "tensor" or i.dst.space != "psum",
        "an indirect `dst` is in SBUF: the Scalar Engine does not scatter into PSUM",
        "put `dst` in nl.sbuf",
    )


def _ignored(i, command):
    """Operands that do nothing."""
    if command not in REDUCING and i.reduce_op is not None:
        return [("reduce_op", f"reduce_cmd is {command.name}, so nothing is reduced")]
    return []


def _disputed(i):
    """Operands the specification and the observed hardware disagree about."""
    if i.op.name != "copy" or i.bias is None:
        return []
    why = (
        "bias not applied for op=copy on trn1 with NKI 0.2, as users observed; the specification "
        "applies it, and so does this machine"
    )
    return [("bias", why)]


# ---------------------------------------------------------------------- cost


def _cycles(i, chip) -> Cycles:
    """max(MIN_II, N), plus the instruction that reads the accumulators if there is one."""
    scalar = chip.scalar
    busy = max(scalar.min_cycles, i.F)
    if i.reduce_res is not None:
        busy += scalar.accumulator_cycles
    seconds = scalar.latency if i.op.table == "" else scalar.function_latency
    return Cycles(busy, latency=seconds * scalar.clock)


COST = stated(
    "NKI ISA v2.26.1 activation, activation_reduce: max(MIN_II, N), + MIN_II to read the "
    "accumulators; latency from hw/chips [scalar]",
    _cycles,
)


class ActivationInstr(Instr, abstract=True):
    """An instruction that applies an activation function; some are defined on a range only."""

    engines = ("scalar",)
    gathers = ("dst", "data")
    state = "accumulators"

    P = Dim(*LANES)
    F = Dim(*ELEMENTS)

    @property
    def limited(self) -> bool:
        """Whether the function has a valid range."""
        return self.op.valid_range != (-inf, inf)

    def outside(self, data, bias, scale, **unused) -> int:
        """How many arguments of the function lie outside its valid range."""
        return self.op.outside(_scaled(self, data, scale, bias))

    def range_text(self, count: int) -> str:
        """How many of how many, and the range."""
        low, high = self.op.valid_range
        of = "|x|" if self.op.symmetric else "x"
        return (
            f"{count} of {self.data.size} arguments of {self.op.name} are outside "
            f"{low:.7g} ≤ {of} ≤ {high:.7g}"
        )


# ---------------------------------------------------------------------- instructions


class activation(ActivationInstr):
    """dst = op(data * scale + bias) in float32, with an optional sum in the engine's accumulators.

    `reduce_cmd` acts on one float32 accumulator for each partition: idle leaves them, reset clears
    them, reduce adds the sum of this result along its free dimensions, reset_reduce clears first.
    `reduce_res` then receives their content, by a second instruction.  `bias` and `scale` are
    numbers or [P, 1] tiles.  Outside its valid range an activation function is undefined.
    """

    delivers = True
    dst = Out("sbuf|psum", "P F", *VALUES)
    op = Flag(REQUIRED, "activation function", read=act)
    data = In("sbuf|psum", "P F", *VALUES)
    bias = Scalar("sbuf|psum", "P 1", *BIAS, default=None)
    scale = Scalar("sbuf|psum", "P 1", float32, default=1.0)
    reduce_op = Flag(None, "nl.add, when the result is to be summed", read=_optional_op)
    reduce_res = Out("sbuf|psum", "P 1", *VALUES, default=None)
    reduce_cmd = Flag(reduce_cmd.idle, "what happens to the accumulators", read=_command)

    def rules(i):
        """Bias by generation, sums only, indirection."""
        yield from _bias_rules(i)
        yield from _sum_rules(i, i.reduce_cmd)
        yield from _indirect_rules(i)

    def ignored(i):
        """`[(operand, reason), …]` of operands without effect, for a finding."""
        return _ignored(i, i.reduce_cmd)

    def disputed(i):
        """`[(operand, reason), …]` of operands seen to have no effect, for a finding."""
        return _disputed(i)

    def run(i, data, bias, scale, accumulators, out=None, **unused):
        """The activated values, and the accumulators."""
        output = i.op(_scaled(i, data, scale, bias, out), out=out)
        after = _reduced(i, SUM, i.reduce_cmd, output, accumulators)
        return _results(i, output, after, accumulators)

    cycles = COST


class activation_reduce(ActivationInstr):
    """dst = op(data * scale + bias); reduce_res[p] = Σ dst[p, :], both in float32.

    The same as `activation` with reduce_cmd.reset_reduce: the accumulators are cleared, receive
    the sums, and are read out unless `reduce_res` is None.
    """

    delivers = True
    dst = Out("sbuf|psum", "P F", *VALUES)
    op = Flag(REQUIRED, "activation function", read=act)
    data = In("sbuf|psum", "P F", *VALUES)
    reduce_op = Flag(REQUIRED, "nl.add", read=_optional_op)
    reduce_res = Out("sbuf|psum", "P 1", *VALUES, nullable=True)
    bias = Scalar("sbuf|psum", "P 1", *BIAS, default=None)
    scale = Scalar("sbuf|psum", "P 1", float32, default=1.0)

    def rules(i):
        """Bias by generation, sums only, indirection."""
        yield from _bias_rules(i)
        yield from _sum_rules(i, reduce_cmd.reset_reduce)
        yield from _indirect_rules(i)

    def ignored(i):
        """`[(operand, reason), …]` of operands without effect, for a finding."""
        return _ignored(i, reduce_cmd.reset_reduce)

    def disputed(i):
        """`[(operand, reason), …]` of operands seen to have no effect, for a finding."""
        return _disputed(i)

    def run(i, data, bias, scale, accumulators, out=None, **unused):
        """The activated values and their sums."""
        output = i.op(_scaled(i, data, scale, bias, out), out=out)
        after = _reduced(i, SUM, reduce_cmd.reset_reduce, output, accumulators)
        return _results(i, output, after, accumulators)

    cycles = COST


class activate2(ActivationInstr):
    """dst = op((data op0 imm0) op1 imm1) in float32, with an optional reduction, on NeuronCore-v4.

    `reverse0` and `reverse1` swap the operands of op0 and op1; `relu_param` is the slope of prelu.
    The accumulators work as in `activation`, with add, maximum, minimum, abs_max or abs_min; reset
    fills them with the start value of `reduce_op`.
    """

    generations = (4,)
    dst = Out("sbuf|psum", "P F", *VALUES)
    op = Flag(REQUIRED, "activation function", read=act)
    data = In("sbuf|psum", "P F", *VALUES)
    imm0 = Scalar("sbuf|psum", "P 1", *BIAS)
    imm1 = Scalar("sbuf|psum", "P 1", *BIAS)
    op0 = Flag(REQUIRED, "first operator: multiply, add, subtract or bypass", read=_stage)
    op1 = Flag(REQUIRED, "second operator: add, subtract or bypass", read=_stage)
    relu_param = Scalar("sbuf|psum", "P 1", *BIAS, default=0.0)
    reverse0 = Flag(False, "imm0 op0 data instead of data op0 imm0")
    reverse1 = Flag(False, "imm1 op1 result instead of result op1 imm1")
    reduce_op = Flag(None, "how the result is reduced along its free dimensions", read=_optional_op)
    reduce_res = Out("sbuf|psum", "P 1", *VALUES, default=None)
    reduce_cmd = Flag(reduce_cmd.idle, "what happens to the accumulators", read=_command)

    def rules(i):
        """The six pairs of operators, equal dtypes of tiles, reductions, indirection."""
        yield from _stage_rules(i)
        yield (
            i.reduce_op is None or i.reduce_op.name in REDUCTIONS,
            f"`reduce_op` is one of {', '.join(REDUCTIONS)}, not {i.reduce_op}",
            "choose one of them, or reduce `dst` with nisa.tensor_reduce",
        )
        yield (
            i.reduce_cmd is reduce_cmd.idle or i.reduce_op is not None,
            "any reduce_cmd but idle needs a `reduce_op`",
            "pass for example reduce_op=nl.add",
        )
        yield from _command_rules(i.reduce_cmd)
        yield from _indirect_rules(i)

    def ignored(i):
        """`[(operand, reason), …]` of operands without effect, for a finding."""
        found = []
        if i.op1.name == "bypass" and isinstance(i.imm1, OperandForm):
            found.append(("imm1", "op1 is bypass"))
        if i.op0.name == "bypass" and isinstance(i.imm0, OperandForm):
            found.append(("imm0", "op0 is bypass"))
        if i.reduce_cmd not in REDUCING and i.reduce_op is not None and i.reduce_res is None:
            found.append(("reduce_op", f"reduce_cmd is {i.reduce_cmd.name}: nothing is reduced"))
        return found

    def argument(i, data, imm0, imm1):
        """What the function is applied to."""
        x = numerics.cast(data, i.data.dtype, float32)
        x = _staged(i.op0, x, _term(i.imm0, imm0, x.ndim), i.reverse0)
        return _staged(i.op1, x, _term(i.imm1, imm1, x.ndim), i.reverse1)

    def outside(i, data, imm0, imm1, **unused) -> int:
        """How many arguments of the function lie outside its valid range."""
        return i.op.outside(i.argument(data, imm0, imm1))

    def run(i, data, imm0, imm1, relu_param, accumulators, **unused):
        """The three stages, and the accumulators."""
        x = i.argument(data, imm0, imm1)
        output = i.op(x, _term(i.relu_param, relu_param, x.ndim))
        after = _reduced(i, i.reduce_op, i.reduce_cmd, output, accumulators)
        return _results(i, output, after, accumulators)

    cycles = assumed(
        "no public figure for activate2; as activation: max(MIN_II, N), + MIN_II for reduce_res",
        _cycles,
    )


def _staged(operator, x, immediate, reverse):
    if operator.arity == 1:
        return operator(x)
    with np.errstate(all="ignore"):
        return operator(immediate, x) if reverse else operator(x, immediate)


def _stage_rules(i):
    yield (
        (i.op0.name, i.op1.name) in STAGES,
        f"(op0, op1) is one of the six pairs the engine has, not ({i.op0.name}, {i.op1.name})",
        "use (multiply, add), (multiply, subtract), or one of multiply, add, subtract, bypass "
        "followed by bypass",
    )
    tiles = [t.dtype for t in (i.imm0, i.imm1) if isinstance(t, OperandForm)]
    yield (
        len(set(tiles)) < 2,
        "`imm0` and `imm1` must have one dtype when both are tiles",
        "copy one of them into a tile of the other's dtype",
    )
    yield (
        not (i.reverse0 and i.op0.name == "bypass") and not (i.reverse1 and i.op1.name == "bypass"),
        "reverse0 and reverse1 need an operator to reverse, not bypass",
        "leave reverse0 or reverse1 out",
    )


__all__ = ["activate2", "activation", "activation_reduce"]
