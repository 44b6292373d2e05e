"""The kinds of things an instruction class declares: operands, dimensions, flags and costs.

Each declaration is data. `isa.define` turns a class body made of them into the checker, the
function signature, the reference page and the error texts of that instruction.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from opentrn.base import DType
from opentrn.isa.access import DERIVED
from opentrn.isa.view import View

REQUIRED: Any = type("Required", (), {"__repr__": lambda self: "<required>"})()

# The roles an operand can play.  "acc" is a PSUM output that may add to what it holds.
READS = {"in", "inout", "acc"}
WRITES = {"out", "inout", "acc"}


class IndexForm(NamedTuple):
    """What checks may know of the index tile of a vector or tensor indirection.

    `columns` it has; `partition` it begins at, -1 while the compiler is free to choose;
    `tile` tells two index tiles of a tensor indirection apart (number of the buffer, offset);
    `rows` and `dtype` of the index.
    """

    columns: int
    partition: int
    tile: tuple[int, int] = (0, 0)
    rows: int = 0
    dtype: DType | None = None


class OperandForm(NamedTuple):
    """What checks and costs may know of a memory operand: never its values or its buffer.

    `partition` is the first partition, `offset` the first byte within that partition (modulo one
    PSUM bank for PSUM, 0 for HBM), `contiguous` whether the innermost free dimension is dense,
    `indirect` the kind of indirection ("" when there is none), `run` the elements of one dense
    stretch of memory (within a partition on chip),
    `partition_step` the partitions from one row to the next, `index` the index tile of a vector or
    tensor indirection, `repeats` how often a broadcast reads each element of a partition, `span`
    the bytes from the first to the last within a partition (0 stands for a dense operand, see
    `reach`).
    """

    space: str
    shape: tuple[int, ...]
    dtype: DType
    partition: int = 0
    offset: int = 0
    contiguous: bool = True
    indirect: str = ""
    run: int = 1
    partition_step: int = 1
    index: IndexForm | None = None
    repeats: int = 1
    span: int = 0

    @property
    def reach(self) -> int:
        """Bytes of a partition from the operand's first byte to its last, gaps included."""
        return self.span or self.free * self.dtype.itemsize

    @property
    def partitions(self) -> int:
        """Size of the first dimension."""
        return self.shape[0]

    @property
    def free(self) -> int:
        """Elements per partition: the product of all dimensions after the first."""
        n = 1
        for size in self.shape[1:]:
            n *= size
        return n

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.shape[0] * self.free

    @property
    def nbytes(self) -> int:
        """Bytes the operand covers."""
        return self.size * self.dtype.itemsize


_FORMS: dict[tuple, OperandForm] = {}
_FORM_LIMIT = 100_000


def operand_form(view: View, bank: int = 2048) -> OperandForm:
    """What checks and costs may know of a view; `bank` is the size of a PSUM bank in bytes.

    Remembered, because the tiles of a loop have few forms and one form is quick to compare.
    """
    if view.index is not None:
        return _operand_form(view, bank)
    buffer = view.buffer
    key = (buffer.space, view.steps, view.dtype, view.dtype.narrow)
    if buffer.on_chip:
        place = view.offset, buffer.partition, buffer.address, buffer.partition_bytes, bank
        key = (*key, *place)
    found = _FORMS.get(key)
    if found is None:
        if len(_FORMS) >= _FORM_LIMIT:
            _FORMS.clear()
        found = _FORMS[key] = _operand_form(view, bank)
    return found


# Kept on the view, as its other derived facts are: a tile of a loop takes part again and again.
DERIVED["form"] = operand_form


def _operand_form(view: View, bank: int) -> OperandForm:
    buffer, steps, dtype, run = view.buffer, view.steps, view.dtype.narrow or view.dtype, 1
    for stride, count in reversed(steps[1:] if buffer.on_chip else steps):
        if count > 1:
            if stride != run:
                break
            run *= count
    index = view.index.kind if view.index is not None else ""
    contiguous = steps[-1][0] == 1 or steps[-1][1] == 1
    if not buffer.on_chip:
        chosen = _index_form(view) if index == "vector" else None
        return OperandForm("hbm", view.shape, dtype, 0, 0, contiguous, index, run, index=chosen)
    # As start_partition, free_offset and partition_step, without keeping them.
    pitch = buffer.partition_bytes // dtype.itemsize
    first, free = divmod(view.offset, pitch)
    stride, count = steps[0]
    repeats, before, after = 1, 0, 1
    for step, times in steps[1:]:
        if step == 0:
            repeats *= times
        elif step < 0:
            before -= step * (times - 1)
        else:
            after += step * (times - 1)
    start = (buffer.address or 0) + (free - before) * dtype.itemsize
    return OperandForm(
        buffer.space,
        view.shape,
        dtype,
        first + buffer.partition,
        start % bank if buffer.space == "psum" else 0,
        contiguous,
        index,
        run,
        1 if count == 1 else stride // pitch,
        _index_form(view) if index == "tensor" else None,
        repeats,
        (before + after) * dtype.itemsize,
    )


def _index_form(view: View) -> IndexForm:
    index, buffer = view.index.offset, view.index.offset.buffer
    if view.index.kind == "vector":
        rows = index.shape[0]
        return IndexForm(index.size // rows, -1, rows=rows, dtype=index.dtype)
    placed = buffer.address is not None and view.buffer.address is not None
    first = index.start_partition + buffer.partition if placed else -1
    return IndexForm(index.shape[-1], first, (buffer.id, index.offset))


class ImmediateForm(NamedTuple):
    """A compile-time number in place of a memory operand; its value is not part of the form."""

    kind: str = "number"


class RegisterForm(NamedTuple):
    """A 32-bit engine register in place of a memory operand."""

    kind: str = "register"


@dataclass(frozen=True, kw_only=True)
class Operand:
    """A memory operand: role, allowed spaces, named dimensions, allowed dtypes.

    `dims` is "P F": names separated by blanks, the last one standing for the product of all
    remaining dimensions; an integer is that exact size; it may be a function of the flags.
    `immediate` allows a number, `register` a register, in place of the tile; `nullable` allows
    None although the parameter must be written (a unary operator needs no operand).
    """

    role: str
    spaces: tuple[str, ...]
    dims: str | Callable[[Any], str]
    dtypes: tuple[DType, ...] = ()
    default: Any = REQUIRED
    immediate: bool = False
    register: bool = False
    engine_side: bool = True
    nullable: bool = False

    @property
    def optional(self) -> bool:
        """Whether the operand may be None."""
        return self.nullable or self.default is None


def _operand(role: str, spaces: str, dims, dtypes, **more) -> Operand:
    return Operand(role=role, spaces=tuple(spaces.split("|")), dims=dims, dtypes=dtypes, **more)


def In(spaces: str, dims, *dtypes: DType, **more) -> Operand:
    """An operand that is read. `spaces` like "sbuf|psum"; no dtypes means any on-chip dtype."""
    return _operand("in", spaces, dims, dtypes, **more)


def Out(spaces: str, dims, *dtypes: DType, **more) -> Operand:
    """An operand that is written whole."""
    return _operand("out", spaces, dims, dtypes, **more)


def InOut(spaces: str, dims, *dtypes: DType, **more) -> Operand:
    """An operand that is read and partly rewritten."""
    return _operand("inout", spaces, dims, dtypes, **more)


def Acc(spaces: str, dims, *dtypes: DType, **more) -> Operand:
    """A PSUM output the Tensor Engine overwrites or adds to."""
    return _operand("acc", spaces, dims, dtypes, **more)


def Scalar(spaces: str, dims, *dtypes: DType, default: Any = REQUIRED, **more) -> Operand:
    """A number, or a tile holding one element for each partition."""
    return _operand("in", spaces, dims, dtypes, default=default, immediate=True, **more)


@dataclass(frozen=True)
class Several:
    """A parameter that is a list of 1 to `most` memory operands of one kind.

    The instruction has `most` operands for it, called `<parameter>0`, `<parameter>1` and so on;
    those beyond the end of the list are None.  So a list needs nothing of what handles operands.
    `nested`: each element of the list is itself a list of one operand.
    """

    operand: Operand
    most: int
    default: Any = REQUIRED
    nested: bool = False

    def operands(self, name: str) -> dict[str, Operand]:
        """The operands a list parameter of this name stands for; only the first must be given."""
        more = replace(self.operand, default=None)
        return {f"{name}{n}": self.operand if n == 0 else more for n in range(self.most)}


@dataclass(frozen=True)
class RegIn:
    """A register that is read (a plain integer is accepted)."""

    why: str
    default: Any = REQUIRED


@dataclass(frozen=True)
class RegOut:
    """A register that is written.

    `returned`: it is no parameter of the public function, which makes it and returns it.
    """

    why: str
    default: Any = REQUIRED
    returned: bool = False


@dataclass(frozen=True)
class Flag:
    """A compile-time choice that checks and costs may depend on.

    `read` turns what the user wrote into its one canonical form (an `Op`, a tuple, an enum) and
    may raise a TrnError; it runs once for each new form.  `truth`: True or False (or the default);
    a flag whose default is one of them always is.
    """

    default: Any
    why: str
    read: Callable[[Any], Any] | None = None
    truth: bool = False


@dataclass(frozen=True)
class Value:
    """A compile-time number that neither checks nor costs depend on."""

    default: Any
    why: str


class Dim:
    """A named size: on the class it is the law, on a form it is the solved number.

    `most` is an integer or a function of (form, chip); None means no limit of its own.
    """

    def __init__(self, most: Any, why: str, *, multiple: int = 1, least: int = 1):
        self.most, self.why, self.multiple, self.least = most, why, multiple, least
        self.name = "?"

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, form, owner=None):
        return self if form is None else form.sizes[self.name]

    def limit(self, form, chip) -> int | None:
        """The largest legal size on `chip`, or None."""
        return self.most(form, chip) if callable(self.most) else self.most


class Cycles(NamedTuple):
    """Engine cycles of one instruction.

    `busy` occupies the engine, `latency` passes before the result can be read, `background` may
    hide behind the instruction before it (a stationary load on the Tensor Engine).
    """

    busy: float
    latency: float = 0.0
    background: float = 0.0


class Transfer(NamedTuple):
    """What one DMA instruction asks of the DMA engines.

    The rings split it into `descriptors` of `descriptor_bytes`, spread evenly over `engines` DMA
    engines beginning with number `first_engine`; each of them is busy for `busy_ns`.  Before that,
    `issue_ns` occupies the engine that issues it (`issuer`), and `start_ns` pass until the rings
    begin; `finish_ns` pass from the last byte to the semaphore others can see.
    """

    nbytes: int
    descriptors: int
    descriptor_bytes: float
    engines: int
    first_engine: int
    issuer: str
    issue_ns: float
    start_ns: float
    busy_ns: float
    finish_ns: float


@dataclass(frozen=True)
class CostLaw:
    """A cost formula with its source and grade (stated > fitted > derived > assumed)."""

    grade: str
    source: str
    formula: Callable[[Any, Any], Any] = field(repr=False)


def stated(source: str, formula) -> CostLaw:
    """A formula the vendor states."""
    return CostLaw("stated", source, formula)


def fitted(source: str, formula) -> CostLaw:
    """A formula with numbers fitted to published measurements."""
    return CostLaw("fitted", source, formula)


def derived(source: str, formula) -> CostLaw:
    """A formula that follows from stated facts by arithmetic."""
    return CostLaw("derived", source, formula)


def assumed(source: str, formula) -> CostLaw:
    """A formula nobody published; the source says why it is plausible."""
    return CostLaw("assumed", source, formula)
