"""The machinery that makes one class the only home of an instruction.

A subclass of `Instr` declares operands, dimensions, flags, rules, meaning (`run`) and cost
(`cycles` or `transfer`).  An *instance* is a form: the class applied to one combination of shapes,
dtypes, spaces and flags on one chip, already checked and priced.  Checks and costs depend on
nothing else, so forms are made once and remembered; an `isa.program.Instruction` is a form with
its actual views.
"""

import inspect
from collections.abc import Iterator
from enum import Enum
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from opentrn.base import (
    DtypeError,
    LimitError,
    ShapeError,
    SpaceError,
    TrnError,
    UnknownNameError,
    UsageError,
    declare,
)
from opentrn.isa.indirection import indirection_rules
from opentrn.isa.operands import (
    READS,
    REQUIRED,
    WRITES,
    CostLaw,
    Cycles,
    Dim,
    Flag,
    ImmediateForm,
    Operand,
    OperandForm,
    RegIn,
    RegisterForm,
    RegOut,
    Several,
    Value,
)

declare(
    "isa.unknown_instruction",
    "There is no instruction of this name.",
    rule="instructions have the names of nki.isa",
    fix="see `opentrn explain` for all names",
)

INSTRUCTIONS: dict[str, type["Instr"]] = {}

# Formats that exist only from one NeuronCore generation on (hardware facts §8: OCP FP8 and the
# MX formats came with NeuronCore-v4).
FIRST_GENERATION = {
    "float8_e4m3fn": 4,
    "float8_e5m2_x4": 4,
    "float8_e4m3fn_x4": 4,
    "float4_e2m1fn_x4": 4,
    "float8_e8m0fnu": 4,
}


class Cost(NamedTuple):
    """Time of one instruction on its engine, in nanoseconds, with the formula's grade and source.

    `busy_ns` occupies the engine, `latency_ns` more pass before the result is visible,
    `background_ns` may overlap the engine's previous instruction.
    """

    busy_ns: float
    latency_ns: float
    background_ns: float
    grade: str
    source: str


def legal_starts(partitions: int) -> tuple[int, ...]:
    """Start partitions an engine operand of this many partitions may have.

    Source: Trainium/Inferentia2 architecture guide (NG2), quadrant rules.
    """
    if partitions > 64:
        return (0,)
    if partitions > 32:
        return (0, 64)
    return (0, 32, 64, 96)


class Instr:
    """One instruction of a NeuronCore: declare it here and nowhere else.

    Class attributes: `engines` (legal engines, preferred first), operands, `Dim`, `Flag`, `Value`,
    `RegIn`/`RegOut`, optional `state` (name of the engine state `run` reads and returns),
    `gathers` (operands that may use tensor indirection; the one after `dst` is the stream a
    scatter follows), `example` (sizes of a legal form that reference pages may show), `partial`
    (operands are used in `parts`), `limited` (whether `outside` must be asked), `cycles` (a
    CostLaw returning engine cycles) or `transfer` (DMA), `flops` (default 0).
    Methods: `run(i, **inputs) -> {output: value}`, optional `rules(i)` yielding
    `(holds, rule, fix)`, optional `choose(i) -> engine`.
    """

    engines: tuple[str, ...] = ()
    state: str | None = None
    gathers: tuple[str, ...] = ()
    example: dict[str, int] = {}
    named = True  # the public function takes `name=`
    partial = False
    limited = False
    generations: tuple[int, ...] = (2, 3, 4)
    meets: bool = False  # needs to know of other cores or ranks: who runs them carries it out
    plan: Any = None  # of one form: how it runs, kept here by who runs it
    adds: bool = False  # run can add to its output in place (out=, add=True)
    waits: bool = False  # run takes all values and may come later, behind a matmul
    delivers: bool = False  # run can write float32 results of `dst` straight into memory (out=)
    module: str = "nki.isa"  # the public module its function belongs to
    parameters: dict[str, Any] = {}
    returned: str | None = None  # the register its function makes and returns
    operands: dict[str, Any] = {}
    flags: dict[str, Flag] = {}
    values: dict[str, Value] = {}
    dims: dict[str, Dim] = {}

    def __init_subclass__(cls, abstract: bool = False):
        def pick(kind):
            own = {}
            for base in reversed(cls.__mro__):
                own.update({k: v for k, v in vars(base).items() if isinstance(v, kind)})
            return own

        cls.operands = {}
        for name, declared in pick((Operand, RegIn, RegOut, Several)).items():
            several = isinstance(declared, Several)
            cls.operands.update(declared.operands(name) if several else {name: declared})
        cls.flags, cls.values, cls.dims = pick(Flag), pick(Value), pick(Dim)
        cls.parameters = pick((Operand, RegIn, RegOut, Several, Flag, Value))
        made = [n for n, d in cls.parameters.items() if getattr(d, "returned", False)]
        cls.returned = made[0] if made else None
        for name in made:
            del cls.parameters[name]
        if abstract:
            return
        cls._must_be_whole()
        names = list(cls.operands)
        roles = [getattr(o, "role", "register") for o in cls.operands.values()]
        cls.inputs = tuple(n for n, r in enumerate(roles) if r in ("in", "inout"))
        cls.reads = tuple(n for n, r in enumerate(roles) if r in READS)
        cls.writes = tuple(n for n, r in enumerate(roles) if r in WRITES)
        cls.operand_names = tuple(names)
        cls.value_names = tuple(cls.values)
        INSTRUCTIONS[cls.__name__] = cls

    @classmethod
    def _must_be_whole(cls) -> None:
        """A class that lacks a part does not import."""
        missing = [] if cls.__doc__ else ["a docstring"]
        missing += [] if cls.engines else ["engines"]
        missing += [] if callable(getattr(cls, "run", None)) else ["run"]
        priced = isinstance(getattr(cls, "cycles", None), CostLaw)
        priced |= isinstance(getattr(cls, "transfer", None), CostLaw)
        missing += [] if priced else ["cycles or transfer"]
        for operand in cls.operands.values():
            if isinstance(getattr(operand, "dims", None), str):
                names = {d for d in operand.dims.split() if not d.isdigit() and d != "*"}
                missing += sorted(names - set(cls.dims))
        if missing:
            raise TypeError(f"instruction {cls.__name__}: define {', '.join(missing)}")

    # ---------------------------------------------------------------- making a form

    def __init__(self, chip, operands: tuple, flags: tuple):
        """Check and price one form.

        `operands` holds an OperandForm, ImmediateForm, RegisterForm or None for each declared
        operand in order, `flags` the flag values in order.  Raises ShapeError, DtypeError,
        SpaceError, LimitError or UsageError naming the broken rule.
        """
        self.chip, self.sizes = chip, {}
        self._read_flags(flags)
        for (name, declared), given in zip(self.operands.items(), operands, strict=True):
            setattr(self, name, given)
            self._check_operand(name, declared, given)
        self.given = operands
        self._check_generation()
        self.engine_name = self._pick_engine()
        self._check_rules()
        self.cost = self._price()
        self.flop_count = int(self.flops())
        vars(self).update(self.sizes)  # from now on read without going through Dim

    def _read_flags(self, flags: tuple) -> None:
        for (name, flag), value in zip(self.flags.items(), flags, strict=True):
            known = type(flag.default)
            named = isinstance(flag.default, Enum) and flag.read is None
            if named and not isinstance(value, known):
                self.bad(
                    UsageError,
                    f"{name}={value!r} is not a nisa.{known.__name__}",
                    f"`{name}` is one of "
                    + ", ".join(f"nisa.{known.__name__}.{member.name}" for member in known),
                    "pass the member itself (NKI 0.3 dropped numbers)",
                    name,
                )
            if (flag.truth or known is bool) and value is not flag.default:
                value = self._truth(name, value)
            setattr(self, name, flag.read(value) if flag.read else value)

    def _truth(self, name: str, value: Any) -> bool:
        """True or False as the user wrote it; 0 and 1 are taken for them."""
        if not isinstance(value, bool | np.bool_ | int | np.integer) or value not in (0, 1):
            self.bad(
                UsageError,
                f"{name}={value!r} is neither True nor False",
                f"`{name}` is True or False",
                f"compare first, e.g. {name}=(k > 0)",
                name,
            )
        return bool(value)

    def bad(self, kind: type[TrnError], what: str, rule: str, fix: str, part: str, neuron=""):
        """Raise `kind` about this instruction, with the code `<instruction>.<part>`."""
        name = type(self).__name__
        raise kind(f"{name}: {what}", rule=rule, fix=fix, code=f"{name}.{part}", neuron=neuron)

    def _check_operand(self, name: str, declared, given) -> None:
        if isinstance(declared, RegIn | RegOut):
            self._check_register(name, declared, given)
            return
        if given is None:
            if not declared.optional:
                self.bad(
                    UsageError,
                    f"`{name}` is missing",
                    f"`{name}` must be {'a number or ' * declared.immediate}a tile in "
                    f"{' or '.join(declared.spaces)}",
                    f"pass `{name}=`",
                    name,
                )
            return
        if isinstance(given, ImmediateForm | RegisterForm):
            self._check_immediate(name, declared, given)
            return
        self._check_space(name, declared, given)
        self._check_dtype(name, declared, given)
        self._check_shape(name, declared, given)
        if declared.engine_side and given.space != "hbm":
            self._check_start(name, given)

    def _check_immediate(self, name: str, declared, given) -> None:
        allowed = declared.immediate
        if isinstance(given, RegisterForm):
            allowed = declared.register
        if not allowed:
            self.bad(
                UsageError,
                f"`{name}` is a {given.kind}, not a tile",
                f"`{name}` must be a tile in {' or '.join(declared.spaces)}",
                "memset a tile with the number, or load the register into a tile",
                name,
            )

    def _check_register(self, name: str, declared, given) -> None:
        number = isinstance(declared, RegIn)
        if not isinstance(given, RegisterForm | ImmediateForm if number else RegisterForm):
            self.bad(
                UsageError,
                f"`{name}` is no register",
                f"`{name}` must be a register{' or a number' if number else ''}",
                "pass what nisa.register_alloc returned; nisa.register_load reads a tile",
                name,
            )

    def _check_space(self, name: str, declared, given) -> None:
        if given.space in declared.spaces:
            return
        want = " or ".join(declared.spaces)
        if declared.role in WRITES:
            fix = f"allocate `{name}` with buffer=nl.{declared.spaces[0]}"
        elif given.space == "hbm":
            fix = f"load `{name}` with nisa.dma_copy into a tile in {declared.spaces[0]} first"
        elif declared.spaces == ("hbm",):
            fix = f"copy `{name}` into a tensor in hbm with nisa.dma_copy first"
        else:
            near = [space for space in declared.spaces if space != "hbm"]
            fix = f"copy `{name}` into a tile in {near[0]} with nisa.tensor_copy first"
        self.bad(
            SpaceError, f"`{name}` is in {given.space}", f"`{name}` must be in {want}", fix, name
        )

    def _check_dtype(self, name: str, declared, given) -> None:
        first = FIRST_GENERATION.get(given.dtype, 0)
        if first > self.chip.generation:
            self.bad(
                DtypeError,
                f"`{name}` is {given.dtype}, which {self.chip.name} does not have",
                f"{given.dtype} exists from NeuronCore-v{first} (trn3) on",
                "use float8_e4m3 (max 240) or float8_e5m2, or target trn3",
                f"{name}.dtype",
                neuron="NCC_EVRF051",
            )
        if declared.dtypes and given.dtype not in declared.dtypes:
            self.bad(
                DtypeError,
                f"`{name}` is {given.dtype}",
                f"`{name}` must be {_one_of(declared.dtypes)}",
                f"copy it into a {declared.dtypes[0]} tile with nisa.tensor_copy (it casts)",
                f"{name}.dtype",
            )

    def _check_shape(self, name: str, declared, given) -> None:
        text = declared.dims(self) if callable(declared.dims) else declared.dims
        if text == "*":
            return
        names = text.split()
        shape = given.shape
        if len(shape) < len(names):
            if len(shape) != 1 or len(names) != 2:
                self.bad(
                    ShapeError,
                    f"`{name}` has shape {list(shape)}",
                    f"`{name}` is [{', '.join(names)}]",
                    "reshape the view",
                    name,
                )
            shape = (*shape, 1)
        head, tail = len(names) - 1, 1
        for size in shape[head:]:
            tail *= size
        for dim, size in zip(names, (*shape[:head], tail), strict=True):
            self._check_dim(name, dim, size, names, shape)

    def _check_dim(self, name: str, dim: str, size: int, names, shape) -> None:
        if dim == "*":
            return
        form = f"`{name}` is [{', '.join(names)}]"
        known = int(dim) if dim.isdigit() else self.sizes.setdefault(dim, size)
        if known != size:
            has = f"`{name}` has shape {list(shape)}"
            what = has if dim.isdigit() else f"`{name}` says {dim} = {size}, but {dim} = {known}"
            self.bad(ShapeError, what, f"{form}; sizes must agree", "make the tiles agree", name)
        if dim.isdigit():
            return
        law = self.dims[dim]
        most = law.limit(self, self.chip)
        if most is not None and size > most:
            tiles = -(-size // most)
            self.bad(
                LimitError,
                f"`{name}` is too big: {dim} = {size}, at most {most} on {self.chip.name}",
                f"{dim} ≤ {most}: {law.why}",
                f"cut {dim} into {tiles} tiles of at most {most}",
                dim,
            )
        if size < law.least or size % law.multiple:
            self.bad(
                LimitError,
                f"`{name}` has {dim} = {size}",
                f"{dim} must be at least {law.least} and a multiple of {law.multiple}: {law.why}",
                "change the tile",
                dim,
            )

    def _check_start(self, name: str, given) -> None:
        if given.partition_step > 1:
            self.bad(
                LimitError,
                f"`{name}` takes one partition in {given.partition_step}",
                "an engine walks partitions one after another",
                "copy the rows into a dense tile with nisa.dma_copy",
                "start_partition",
            )
        starts = legal_starts(given.partitions)
        if given.partition not in starts:
            self.bad(
                LimitError,
                f"`{name}` has {given.partitions} partitions starting at {given.partition}",
                "an engine reads more than 64 partitions from 0, 33 to 64 from 0 or 64, "
                "up to 32 from 0, 32, 64 or 96",
                f"start at one of {', '.join(map(str, starts))}, or use fewer partitions",
                "start_partition",
            )

    def _check_generation(self) -> None:
        if self.chip.generation not in self.generations:
            names = {2: "trn1/inf2", 3: "trn2", 4: "trn3"}
            self.bad(
                UsageError,
                f"{self.chip.name} does not have this instruction",
                f"it exists on {', '.join(names[g] for g in self.generations)}",
                "choose another target or another instruction",
                "generation",
            )

    def _pick_engine(self) -> str:
        wanted = getattr(self, "engine", None)
        wanted = None if wanted is None or wanted.name == "unknown" else wanted.name
        if wanted is None:
            return self.choose()
        if wanted not in self.engines:
            self.bad(
                UsageError,
                f"it cannot run on the {wanted} engine",
                f"it runs on {' or '.join(self.engines)}",
                f"pass engine=nki.isa.engine.{self.engines[0]} or leave `engine` out",
                "engine",
            )
        return wanted

    def _check_rules(self) -> None:
        for holds, rule, fix in chain(indirection_rules(self), self.rules()):
            if not holds:
                # What a rule says of these operands follows its colon; the headline is the law.
                self.bad(LimitError, rule.partition(": ")[0], rule, fix, "rules")

    def _price(self) -> Cost | None:
        law = getattr(type(self), "cycles", None)
        if law is None:
            law = type(self).transfer
            self.move = law.formula(self, self.chip)
            return Cost(0.0, 0.0, 0.0, law.grade, law.source)
        cycles = law.formula(self, self.chip)
        cycles = cycles if isinstance(cycles, Cycles) else Cycles(float(cycles))
        ns = 1e9 / getattr(self.chip, self.engine_name).clock
        busy, latency, background = (c * ns for c in cycles)
        return Cost(busy, latency, background, law.grade, law.source)

    # ---------------------------------------------------------------- for subclasses to override

    def choose(self) -> str:
        """The engine when the caller names none: the first legal one."""
        return self.engines[0]

    def rules(self) -> Iterator[tuple[bool, str, str]]:
        """Yield `(holds, rule, fix)` for laws that are not dimension limits."""
        return iter(())

    def flops(self) -> int:
        """Floating-point operations counted by the profiler (Tensor Engine work only)."""
        return 0

    def exact(self) -> bool:
        """Whether `run` returns values the output dtype already holds: a move, no arithmetic."""
        return False

    def ignored(self) -> list[tuple[str, str]]:
        """`[(operand, reason), …]`: operands given that have no effect, for a finding."""
        return []

    def disputed(self) -> list[tuple[str, str]]:
        """`[(operand, reason), …]`: operands that chips were seen to treat otherwise, a finding."""
        return []

    def undefined(self) -> list[tuple[str, str]]:
        """`[(operand, reason), …]`: operands of which nothing says what chips do, a finding."""
        return []

    def parts(self, name: str, view) -> tuple:
        """The parts of an operand's view that are read or written (when `partial` is set)."""
        return (view,)

    def outside(self, **inputs) -> int:
        """How many inputs lie where the operator is not defined (when `limited` is set)."""
        return 0

    def range_text(self, count: int) -> str:
        """What is said about `count` inputs outside."""
        return f"{count} inputs are outside the valid range"

    def relate(self, operands: tuple) -> None:
        """Refuse operands (views, not forms) that do not belong together; UsageError."""

    def fresh(self) -> np.ndarray:
        """The engine state before any instruction changed it: zero in every lane."""
        return np.zeros(int(self.chip.core.partitions), np.float32)

    def tiles(self) -> list[tuple[str, OperandForm]]:
        """The memory operands given, by name."""
        pairs = zip(self.operand_names, self.given, strict=True)
        return [(n, g) for n, g in pairs if isinstance(g, OperandForm)]


def _one_of(dtypes) -> str:
    return ", ".join(dtypes[:-1]) + " or " + dtypes[-1] if len(dtypes) > 1 else str(dtypes[0])


_FORMS: dict[tuple, Instr] = {}
_FORM_LIMIT = 200_000


def form(cls: type[Instr], chip, operands: tuple, flags: tuple) -> Instr:
    """The checked and priced form, made once for each (class, chip, operand forms, flags)."""
    try:
        key = (cls, chip, operands, *(told_apart(flags) if flags else PLAIN))
        found = _FORMS.get(key)
    except TypeError:
        flags = tuple(freeze(f) for f in flags)
        key = (cls, chip, operands, *told_apart(flags))
        found = _FORMS.get(key)
    if found is None:
        if len(_FORMS) >= _FORM_LIMIT:
            _FORMS.clear()
        found = _FORMS[key] = cls(chip, operands, flags)
    return found


_WITH_FLOATS: dict[tuple, bool] = {}
PLAIN = ((), ())  # told_apart of no flags


def told_apart(flags: tuple) -> tuple[tuple, tuple]:
    """Flags as a key in which 0, 0.0, -0.0 and False differ, which Python calls equal."""
    kinds = tuple(map(type, flags))
    floats = _WITH_FLOATS.get(kinds)
    if floats is None:
        floats = any(issubclass(kind, float | np.floating) for kind in kinds)
        _WITH_FLOATS[kinds] = floats
    if floats:
        flags = tuple(repr(f) if isinstance(f, float | np.floating) else f for f in flags)
    return flags, kinds


def freeze(value: Any) -> Any:
    """A hashable twin of a flag value: lists become tuples, deeply."""
    if isinstance(value, list | tuple):
        return tuple(freeze(v) for v in value)
    return value


def instruction_class(name: str) -> type[Instr]:
    """The instruction class of this name; UnknownNameError with the nearest names."""
    if name in INSTRUCTIONS:
        return INSTRUCTIONS[name]
    import difflib

    near = ", ".join(difflib.get_close_matches(name, INSTRUCTIONS, 3, 0.6)) or "none"
    raise UnknownNameError(
        f"there is no instruction `{name}`",
        code="isa.unknown_instruction",
        rule="instructions have the names of nki.isa",
        fix=f"nearest names: {near}",
    )


def signature(cls: type[Instr]) -> inspect.Signature:
    """The public Python signature: declared order, declared defaults, then mostly `name=None`."""
    parameters = []
    for name, declared in cls.parameters.items():
        default = declared.default
        default = inspect.Parameter.empty if default is REQUIRED else default
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
        )
    if cls.named:
        parameters.append(
            inspect.Parameter("name", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
        )
    return inspect.Signature(parameters)
