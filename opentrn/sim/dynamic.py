"""Addresses known only at run time: one dynamic offset, or a row for each partition."""

from collections.abc import Callable

import numpy as np

from opentrn.base import BoundsError, numerics
from opentrn.isa import Register, View
from opentrn.sim.memory import Storage, put


def skips(form) -> bool:
    """Whether the instruction drops transfers whose dynamic address is outside."""
    return getattr(getattr(form, "oob_mode", None), "name", "error") == "skip"


class Link:
    """What the reading side of one transfer tells its writing side.

    `dropped`: nothing is transferred; `bad`: mask of the rows that are not.
    """

    __slots__ = ("bad", "dropped")

    def __init__(self):
        self.dropped, self.bad = False, None


class Access:
    """A view with a runtime index, bound to memory: `read` gathers, `write` scatters."""

    __slots__ = ("instruction", "link", "machine", "name", "skip", "storage", "view")

    def __init__(self, machine, storage: Storage, view: View, instruction, name="", link=None):
        self.machine, self.storage, self.view = machine, storage, view
        self.instruction, self.name, self.link = instruction, name, link or Link()
        self.skip = instruction is not None and skips(instruction.form)
        source = view.index.offset
        if isinstance(source, View):
            machine.storage(source.buffer).settle(source)

    # ------------------------------------------------------------ reading

    def read(self):
        """Carrier values at the addresses of this moment."""
        storage, view = self.storage, self.view
        offsets, bad = self.offsets()
        if view.index.kind == "scalar":
            if bad is not None:
                self.link.dropped = True
                return None
            moved = self.moved(offsets[0])
            if storage.written.cells is not True:
                self._check(storage.written.all_of(moved))
            if storage.touched.cells is not None:
                storage.seen.add(moved)
            window = storage.place(moved)
            return numerics.decode(window, view.dtype) if storage.raw else window
        if bad is not None:
            # A skipped row of the destination stays as it was.
            offsets = np.where(bad, 0, offsets)
        self.link.bad = bad
        reach = self.reach()
        if storage.written.cells is not True:
            used = offsets if bad is None else offsets[~bad]
            self._check(storage.written.all_rows(reach, used))
        picked = storage.place(reach)[offsets]
        return numerics.decode(picked, view.dtype) if storage.raw else picked

    def _check(self, written: bool) -> None:
        if not written:
            self.storage.blank()
        if not written and self.instruction is not None:
            self.machine.unwritten(self.view, self.instruction, self.name)

    # ------------------------------------------------------------ writing

    def write(self, value) -> None:
        """Store at the addresses of this moment; of equal rows the last one stays."""
        storage, view, link = self.storage, self.view, self.link
        offsets, bad = self.offsets()
        value = np.asarray(value)
        if view.index.kind == "scalar":
            if bad is not None:
                return
            moved = self.moved(offsets[0])
            put(storage.place(moved), value, view.dtype, storage.raw)
            storage.written.add(moved)
            storage.touched.remove(moved)
            return
        value = value.reshape(view.shape)
        rows = np.arange(len(offsets))
        for mask in (bad, link.bad):
            if mask is not None:
                rows = rows[~mask[rows]]
        link.bad = None
        # Transfers complete in order: of duplicate rows keep the last.
        _, last = np.unique(offsets[rows][::-1], return_index=True)
        if last.size < rows.size and getattr(self.instruction.form, "unique_indices", False):
            self._repeated(rows.size - last.size)
        rows = rows[::-1][last]
        if not rows.size:
            return
        base, reach = storage.place(self.reach()), self.reach()
        held = np.empty((rows.size, *base.shape[1:]), base.dtype)
        put(held, value[rows], view.dtype, storage.raw)
        base[offsets[rows]] = held
        storage.written.add_rows(reach, offsets[rows])

    def _repeated(self, count: int) -> None:
        """Notice rows that are added to more than once."""
        self.machine.notice(
            "duplicate_indices",
            f"{self.instruction.opcode}: {count} rows of `{self.view.buffer.name or self.name}` "
            "are named more than once; of each only the last sum stays",
            self.instruction.where,
        )

    # ------------------------------------------------------------ addressing

    def offsets(self):
        """Dynamic indices of the view, and a mask of those outside (only when skipping)."""
        view, index = self.view, self.view.index
        source = index.offset
        if isinstance(source, Register):
            raw = self.machine.register(source)
        else:
            raw = self.machine.storage(source.buffer).read(source)
        count = 1 if index.kind == "scalar" else view.shape[0]
        # The columns of an index tile follow each other (NKI ISA reference, dma_transpose).
        raw = np.asarray(raw)
        found = raw.reshape(len(raw) if raw.ndim else 1, -1).T.reshape(-1)[:count].astype(np.int64)
        outside = (found < 0) | (found >= index.limit)
        if not outside.any():
            return found, None
        if self.skip:
            return found, outside
        self.refuse(int(found[outside][0]))
        return None

    def refuse(self, found: int) -> None:
        """Raise the BoundsError of an index that is not legal."""
        view, index = self.view, self.view.index
        raise BoundsError(
            f"dynamic index {found} is outside `{view.buffer.name or self.name}` "
            f"(legal: 0 to {index.limit - 1})",
            code="sim.dynamic_bounds",
            rule="with oob_mode.error every dynamic index must be inside its dimension",
            fix="check the indices, or pass oob_mode=nisa.oob_mode.skip",
            neuron="NRT_EXEC_OOB 1006",
            at=None if self.instruction is None else self.instruction.where,
        )

    def here(self) -> View:
        """The view at the scalar offset of this moment."""
        return self.moved(self.offsets()[0][0])

    def moved(self, offset: int) -> View:
        """The view at one dynamic offset."""
        view = self.view
        start = view.offset + view.index.stride * int(offset)
        return View(view.buffer, start, view.steps, view.dtype)

    def reach(self) -> View:
        """The view with its first dimension running over all legal positions."""
        view, index = self.view, self.view.index
        steps = ((index.stride, index.limit), *view.steps[1:])
        return View(view.buffer, view.offset, steps, view.dtype)


def put_rows(storage: Storage, view: View, value, link: Link) -> None:
    """Store the rows of a gather, leaving alone those whose index was outside."""
    window, bad, link.bad = storage.window(view), link.bad, None
    if bad is None:
        put(window, value, view.dtype, storage.raw)
        storage.written.add(view)
        return
    keep = np.flatnonzero(~bad)
    if keep.size:
        held = np.empty((keep.size, *window.shape[1:]), window.dtype)
        put(held, np.asarray(value).reshape(window.shape)[keep], view.dtype, storage.raw)
        window[keep] = held
        storage.written.add_rows(view, keep)


def step(form, given: dict, moving: list, writers: list, links: Link) -> Callable[[], None]:
    """The fastest closure for this mix of inputs and outputs."""
    run = form.run
    if not moving and len(writers) == 1:
        name, write = writers[0]
        return lambda: write(run(**given)[name])

    def run_now():
        for name, read in moving:
            value = read()
            if links.dropped:
                links.dropped = False
                return
            given[name] = value
        result = run(**given)
        for name, write in writers:
            if name in result:
                write(result[name])

    return run_now
