"""`NkiTensor`: the tensor a kernel holds, a view of a buffer of the running program."""

import dataclasses
import operator
from enum import Enum
from typing import Any

import numpy as np

from opentrn.base import BoundsError, DType, UsageError, declare, user_line
from opentrn.base import dtype as as_dtype
from opentrn.isa import Register, View
from opentrn.nki import versions
from opentrn.nki.session import current, running
from opentrn.nki.unknown import Unknown, Valueless

declare(
    "nki.operand",
    "An instruction was given something that is not a tile.",
    rule="operands are NkiTensors (nl.ndarray and views of it), numbers where allowed, registers",
    fix="allocate a tile with nl.ndarray and load the data into it",
)
declare(
    "nki.counter",
    "The counter of a device loop was used as a Python number.",
    rule="the body of a device loop is built once, for every value of the counter",
    fix="use the counter as scalar_offset or in nl.ds, or a static range",
)
declare(
    "nki.migrate.while",
    "A `while` or `if` asks a register for its value while the kernel is built.",
    rule="NKI 0.6 deprecates `while reg:`; it will be removed (migration guide, 0.5 to 0.6)",
    fix="nl.while_loop(reg, body), where body(r) returns the register of the next condition",
)
declare(
    "nki.migrate.ap",
    "The offset of an access pattern counts from the view since NKI 0.5.",
    rule="up to NKI 0.4 the offset of `.ap` counted from the start of the storage (stubs of 2.30 "
    "and 2.31)",
    fix="subtract the offset of the view, or take the pattern of the whole tensor",
)
declare(
    "nki.truth",
    "A kernel asks whether a tile is true: it always is, whatever it holds.",
    rule="the truth of a tensor tells it from None and says nothing of its values, which the "
    "compiler does not know",
    fix="write `is not None`; select by values with nl.where or nisa.select_reduce",
)
declare(
    "nki.value_branch",
    "A kernel's Python depends on values: this holds here, the compiler cannot know it.",
    rule="a comparison counts as true here when it holds everywhere; on the chip nothing checks it",
    fix="keep such assertions for simulation, or compare after the kernel",
)
declare(
    "nki.other_call",
    "A tile, a tensor or a register of another kernel call is used.",
    rule="what a kernel allocates is gone when the call ends; only arrays go from call to call",
    fix="return it as an output (in nl.shared_hbm) and pass the array to the next call",
)
declare(
    "nki.assign",
    "A tile was assigned with `tile[...] = value`.",
    rule="NKI 0.6 instructions write through `dst=`; indexing makes views",
    fix="use nisa.tensor_copy(dst=tile[...], src=value), nl.store for HBM",
)


class MemoryRegion(Enum):
    """Where a tensor lives; `space` is the memory space of `isa.Buffer`."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"

    def __init__(self, name: str) -> None:
        self.space = name if name in ("sbuf", "psum") else "hbm"


class NKIObject:
    """Base class for kernel configuration objects: keyword arguments become attributes.

    A dataclass made of it takes what the kernel language takes, which is more than Python's: names
    that it does not declare, and fields left out that have no default.  Kernels of the NKI Library
    at d2ad3a57 do both (SectionParams of attention_cte, the sizes of mlp_tkg_constants).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        known = dataclasses.fields(self) if dataclasses.is_dataclass(self) else ()
        names = [field.name for field in known if field.init]
        if len(args) > len(names):
            given, most = len(args), len(names)
            raise TypeError(f"{type(self).__name__} takes {most} values by place, not {given}")
        values = _defaults(known) | dict(zip(names, args, strict=False))
        for name in kwargs:
            if name in names[: len(args)]:
                raise TypeError(f"{type(self).__name__} got `{name}` twice")
        for name, value in (values | kwargs).items():
            object.__setattr__(self, name, value)
        if known and hasattr(self, "__post_init__"):
            self.__post_init__()

    def __init_subclass__(cls, **more: Any) -> None:
        """Keep this `__init__` where a dataclass would write its own (it never replaces one)."""
        super().__init_subclass__(**more)
        if cls.__init__ is NKIObject.__init__:
            cls.__init__ = NKIObject.__init__


def _defaults(fields: tuple) -> dict[str, Any]:
    """The values of the fields that have one without being given it."""
    found = {}
    for field in fields:
        if field.default is not dataclasses.MISSING:
            found[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
    return found


class Handle:
    """Keeps a buffer's simulated memory alive as long as some tensor can reach it."""

    __slots__ = ("buffer", "machine", "region", "room")

    def __init__(self, machine, buffer, region: MemoryRegion, room=None):
        self.machine, self.buffer, self.region, self.room = machine, buffer, region, room
        if room is not None and buffer.on_chip:
            room.enter(buffer)

    def __del__(self):
        # HBM outputs are read after the kernel returned; on-chip tiles may go back to the pool.
        if self.buffer.on_chip:
            self.machine.release(self.buffer)
            if self.room is not None:
                self.room.leave(self.buffer)


# A `while reg:` of more iterations, each recorded again, is taken for one that never ends.
ASKED_LIMIT = 100_000


class VirtualRegister(Unknown, Register):
    """A 32-bit register of an engine, as `nisa.register_alloc` returns it."""

    __slots__ = ("loop", "machine")
    sort = "a register"
    instead = {
        "nki.compare": "branch on numbers Python knows (nl.static_range), or let the device loop "
        "while a register is not zero (nl.while_loop)",
        "nki.arithmetic": "compute in a tile between nisa.register_store and nisa.register_load; "
        "an address moves by a register with nl.ds or scalar_offset",
    }

    def __init__(self, number: int, machine, name: str = "", loop: bool = False):
        super().__init__(number, name)
        self.machine, self.loop = machine, loop

    def __int__(self) -> int:
        """The value it holds now; refused for loop counters, which the device alone knows."""
        if self.loop:
            raise UsageError(
                "the counter of a device loop was used as a Python number",
                code="nki.counter",
                rule="the body of a device loop is built once, for every value of the counter",
                fix="use the counter as scalar_offset or in nl.ds, or a static range",
            )
        return self.machine.register(self)

    __index__ = __int__

    def __bool__(self) -> bool:
        """Whether it holds another value than zero: the condition of a deprecated `while reg:`.

        Raises UsageError `sim.step_limit` when that was asked too often to ever end.
        """
        session = current() if running() else None
        if session is not None:
            session.note("nki.migrate.while", f"`{self.name or 'reg'}` decides a branch or loop")
            session.asked += 1
            if session.asked > ASKED_LIMIT:
                raise UsageError(
                    f"a register was asked {ASKED_LIMIT:,} times whether it is zero",
                    code="sim.step_limit",
                )
        return int(self) != 0

    def __repr__(self) -> str:
        held = self.machine.registers.get(self.number, "unset")
        return f"VirtualRegister({self.name or self.number} = {held})"


STATIC = (slice, int)


def _runtime(index: Any) -> Any:
    """What isa.View takes for an index: views for tensors, registers as they are."""
    return index._view if isinstance(index, NkiTensor) else index


class NkiTensor(Unknown, Valueless, NKIObject):
    """A tensor in SBUF, PSUM or HBM: shape, dtype and an access pattern over its storage.

    Every view method returns a new tensor over the same memory.  Constraints and errors are those
    of `isa.View` (codes `view.<method>`).
    """

    __slots__ = ("_compared", "_handle", "_indices", "_view")

    def __init__(self, view: View, handle: Handle, indices: tuple = ()):
        self._view, self._handle, self._compared = view, handle, False
        # The tensors a runtime index is read from live as long as this one.
        self._indices = indices

    # ------------------------------------------------------------ facts

    shape = property(lambda self: self._view.shape, doc="Sizes of the dimensions.")
    strides = property(lambda self: self._view.strides, doc="Element strides of the dimensions.")
    offset = property(lambda self: self._view.offset, doc="First element in the storage.")
    dtype = property(lambda self: self._view.dtype, doc="Element type.")
    ndim = property(lambda self: self._view.ndim, doc="Number of dimensions.")
    size = property(lambda self: self._view.size, doc="Number of elements.")
    name = property(lambda self: self._view.buffer.name, doc="Name given at allocation.")
    buffer = property(lambda self: self._handle.region, doc="Memory region.")

    def is_contiguous(self) -> bool:
        """Whether the view is dense in row-major order (within a partition on chip)."""
        return self._view.is_contiguous()

    def get_pattern(self) -> list[list[int]]:
        """The access pattern `[[stride, count], ...]`."""
        return self._view.pattern()

    def is_indirect(self) -> bool:
        """Whether an index known only on the device takes part."""
        return self._view.is_indirect()

    def form(self):
        """What instruction checks and costs may know of this operand (`isa.OperandForm`)."""
        return self._view.form

    # ------------------------------------------------------------ views

    def _with(self, view: View, *indices: Any) -> "NkiTensor":
        return NkiTensor(view, self._handle, self._indices + indices)

    def __getitem__(self, key) -> "NkiTensor":
        """NumPy-style indexing; see `isa.View.at`.  What lies outside is refused when used."""
        keys = key if type(key) is tuple else (key,)
        cut = self._view.plain(keys)
        if cut is not None:
            return NkiTensor(cut, self._handle, self._indices)
        for k in keys:
            # Only a static nl.ds has a number as its start; a slice may have one, or None.
            if type(k) not in STATIC and type(getattr(k, "start", None)) is not int:
                moved = self._view.at(tuple([_runtime(k) for k in keys]))
                return NkiTensor(moved, self._handle, (*self._indices, *keys))
        try:
            return NkiTensor(self._view.at(keys), self._handle, self._indices)
        except BoundsError as error:
            return Beyond(error)

    def __iter__(self):
        """The positions of the first dimension, one after the other."""
        return (self[n] for n in range(self.shape[0]))

    def __setitem__(self, key, value):
        """Refused: NKI 0.6 has no tile assignment."""
        raise UsageError(
            "a tile cannot be assigned with `[...] =`",
            code="nki.assign",
            rule="NKI 0.6 instructions write through `dst=`; indexing makes views",
            fix="use nisa.tensor_copy(dst=tile[...], src=value), or nl.store for HBM",
        )

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> "NkiTensor":
        """Positions of one dimension."""
        return self._with(self._view.slice(dim, start, end, step))

    def select(self, dim: int, index) -> "NkiTensor":
        """One position of a dimension, which is removed; the index may be a tensor."""
        return self._with(self._view.select(dim, _runtime(index)), index)

    def vector_select(self, dim: int, vector_offset: "NkiTensor") -> "NkiTensor":
        """A row for each partition, by a vector of indices."""
        return self._with(self._view.vector_select(dim, _runtime(vector_offset)), vector_offset)

    def permute(self, dims) -> "NkiTensor":
        """The dimensions in another order."""
        return self._with(self._view.permute(dims))

    def broadcast(self, dim: int, size: int) -> "NkiTensor":
        """Repeat a dimension of size 1."""
        return self._with(self._view.broadcast(dim, size))

    def expand_dim(self, dim: int) -> "NkiTensor":
        """Insert a dimension of size 1."""
        return self._with(self._view.expand_dim(dim))

    def squeeze_dim(self, dim: int) -> "NkiTensor":
        """Remove a dimension of size 1."""
        return self._with(self._view.squeeze_dim(dim))

    def reshape_dim(self, dim: int, shape) -> "NkiTensor":
        """Split one dimension."""
        return self._with(self._view.reshape_dim(dim, shape))

    def flatten_dims(self, start_dim: int, end_dim: int) -> "NkiTensor":
        """Merge dimensions `start_dim` to `end_dim` (inclusive)."""
        return self._with(self._view.flatten_dims(start_dim, end_dim))

    def reshape(self, shape) -> "NkiTensor":
        """Another shape of the same elements."""
        return self._with(self._view.reshape(shape))

    def rearrange(self, src_pattern, dst_pattern, fixed_sizes=None) -> "NkiTensor":
        """Split, reorder and merge by names."""
        return self._with(self._view.rearrange(src_pattern, dst_pattern, fixed_sizes))

    def ap(
        self,
        pattern,
        offset=None,
        scalar_offset=None,
        vector_offset=None,
        indirect_dim=0,
        dtype=None,
    ) -> "NkiTensor":
        """An explicit access pattern over the storage; one that leaves it is refused when used."""
        if self._view.offset and versions.before("0.5") and _users_call():
            given = offset or 0
            what = f"offset {given} of a view that begins at {self._view.offset}"
            current().note("nki.migrate.ap", what, f"pass offset={given - self._view.offset}")
            offset = given - self._view.offset
        try:
            made = self._view.ap(
                pattern,
                offset,
                _runtime(scalar_offset),
                _runtime(vector_offset),
                indirect_dim,
                None if dtype is None else as_dtype(dtype),
            )
        except BoundsError as error:
            return Beyond(error, tuple(count for _, count in pattern))
        return self._with(made, scalar_offset, vector_offset)

    def view(self, dtype: DType) -> "NkiTensor":
        """The same bytes as another dtype."""
        return self._with(self._view.view(as_dtype(dtype)))

    reinterpret_cast = view

    def indirect(self, index: "NkiTensor", num_elem: int | None = None) -> "NkiTensor":
        """Columns chosen by an index tile (NeuronCore-v4 and later)."""
        return self._with(self._view.indirect(_runtime(index), num_elem), index)

    # ------------------------------------------------------------ looking at values

    def __bool__(self) -> bool:
        """True, as for any object; the result of a comparison: whether it holds everywhere.

        Kernels ask so whether an optional argument was given (mlp_tkg_constants of the NKI Library
        at d2ad3a57); of a tile on the chip it is noticed (`nki.truth`).  `assert nl.equal(a, b)` is
        noticed too (`nki.value_branch`), as the compiler cannot know.
        """
        if not self._compared:
            if self._view.buffer.on_chip:
                what = f"the truth of a tile {self.dtype}{list(self.shape)}, which is always true"
                current().note("nki.truth", what)
            return True
        session = current()
        session.note("nki.value_branch", "the truth of a comparison of tiles")
        if session.recording_only:
            return True
        return bool(np.all(self._handle.machine.value(self._view) != 0))

    def compared(self) -> "NkiTensor":
        """This tile marked as the result of a comparison, which may be asserted."""
        self._compared = True
        return self

    def numpy(self) -> np.ndarray:
        """A copy of the values now, in the dtype's storage type (a debugging aid)."""
        from opentrn.base import numerics

        values = self._handle.machine.value(self._view)
        return numerics.encode(values, self.dtype)

    def __repr__(self) -> str:
        head = f"NkiTensor({f'{self.name} ' if self.name else ''}{list(self.shape)} {self.dtype}"
        body = np.array2string(self._handle.machine.value(self._view), threshold=16)
        return f"{head} in {self.buffer.value})\n{body}"


def refuse_foreign(given: Any, machine: Any) -> None:
    """UsageError `nki.other_call` when a tensor, a register or an index of it is not of `machine`.

    `machine` is that of the running kernel call.
    """
    if isinstance(given, VirtualRegister):
        owner, what = given.machine, f"register {given.name or given.number}"
    elif isinstance(given, NkiTensor):
        owner, buffer = given._handle.machine, given._view.buffer
        what = f"{buffer.name or 'a tensor'} {given.dtype}{list(given.shape)}"
    else:
        return
    if owner is not machine:
        raise UsageError(f"{what} belongs to another call of a kernel", code="nki.other_call")
    for index in getattr(given, "_indices", ()):
        refuse_foreign(index._index if isinstance(index, DynamicSlice) else index, machine)


def _users_call() -> bool:
    """Whether the kernel's author makes this call, not the kernel library."""
    where = user_line()
    return where is None or not where.portable.startswith("opentrn/nki/kernels/")


class DynamicSlice:
    """`nl.ds(start, size)`: `size` positions from `start`, which may be a register or tensor."""

    __slots__ = ("_index", "size", "start")

    def __init__(self, start, size):
        self.start, self._index = _runtime(start), start
        self.size = operator.index(size)


def identity(n: int, dtype: Any = "float32") -> np.ndarray:
    """The n × n identity as data for `nl.shared_constant` (the older `nki.tensor.identity`)."""
    return np.eye(n, dtype=as_dtype(dtype).storage)


class Beyond(NkiTensor):
    """A view that leaves its tensor, or is empty: whatever is done with it raises the BoundsError.

    Kernels may make one and not use it: the NKI Library takes the pattern of a tile's weights
    before it asks whether there is such a tile (output_projection_tkg at d2ad3a57), and a core's
    share of positions where there is none for it (cross_entropy).  The `shape` of a pattern may be
    asked, as it makes a tile of that shape (bwmm_shard_on_block).
    """

    def __init__(self, error: BoundsError, sizes: tuple[int, ...] = ()) -> None:
        object.__setattr__(self, "_error", error)
        object.__setattr__(self, "_sizes", sizes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the pattern."""
        if self._sizes:
            return self._sizes
        raise self._error

    def __getattr__(self, name: str) -> Any:
        """Nothing of a tensor is here."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._error
