"""Tensor indirection: columns of a tile chosen by an index tile (`.indirect()`, NeuronCore-v4).

Column i of a group of G partitions is `index[i % G, i // G]`, taken from the rows of the index tile
beside the group (NKI 0.6 API reference, NkiTensor.indirect).  Of equal columns of a scatter the
last one stays.
"""

import numpy as np

from opentrn.base import numerics
from opentrn.isa import View, indirection
from opentrn.sim.dynamic import Access
from opentrn.sim.groups import on_any_value
from opentrn.sim.memory import put


class Columns(Access):
    """A view indexed by a tile, bound to memory."""

    __slots__ = ()

    def reach(self) -> View:
        """The view with the indexed dimension running over all legal columns."""
        view, index = self.view, self.view.index
        steps = list(view.steps)
        steps[index.dim] = index.stride, index.limit
        return View(view.buffer, view.offset, tuple(steps), view.dtype)

    def places(self) -> np.ndarray:
        """Columns of this moment, shaped for take_along_axis over `reach`."""
        view, index, machine = self.view, self.view.index, self.machine
        found = np.asarray(machine.storage(index.offset.buffer).read(index.offset))
        engine = self.instruction.form.engine_name if self.instruction else "vector"
        size = indirection.group(engine)
        rows, count = view.shape[0], view.steps[index.dim][1]
        snake = found.reshape(-1, size, found.shape[-1]).transpose(0, 2, 1)
        chosen = snake.reshape(len(snake), -1)[:, :count].astype(np.int64)
        outside = (chosen < 0) | (chosen >= index.limit)
        if outside.any():
            self.refuse(int(chosen[outside][0]))
        shape = [1] * view.ndim
        shape[0], shape[index.dim] = rows, count
        return np.repeat(chosen, size, axis=0)[:rows].reshape(shape)

    def read(self):
        """Carrier values of the chosen columns."""
        storage, view, axis = self.storage, self.view, self.view.index.dim
        places, reach = self.places(), self.reach()
        partial = self.instruction is not None and self.instruction.form.partial
        if storage.written.cells is not True and not partial:
            self._check(bool(storage.written.at_places(reach, places, axis).all()))
        if storage.touched.cells is not None:
            storage.seen.add_places(reach, places, axis)
        picked = np.take_along_axis(storage.place(reach), places, axis)
        return numerics.decode(picked, view.dtype) if storage.raw else picked

    def write(self, value) -> None:
        """Store into the chosen columns."""
        self._store(np.asarray(value), self.places(), self.reach())

    def _store(self, value: np.ndarray, places: np.ndarray, reach: View) -> None:
        storage, view, axis = self.storage, self.view, self.view.index.dim
        base = storage.place(reach)
        held = np.empty(view.shape, base.dtype)
        put(held, value if value.size == 1 else value.reshape(view.shape), view.dtype, storage.raw)
        np.put_along_axis(base, places, held, axis)
        storage.written.add_places(reach, places, axis)

    def matmul(self, given: dict, moving: list) -> None:
        """Add a product to the chosen columns, by the rules of accumulation."""
        storage, view, axis = self.storage, self.view, self.view.index.dim
        for name, read in moving:
            given[name] = read()
        places, reach = self.places(), self.reach()
        value = self.instruction.form.run(**given)["dst"].reshape(view.shape)
        adds = self._adds(*(m.at_places(reach, places, axis) for m in self._marks()))
        storage.blank()
        old = np.take_along_axis(storage.place(reach), places, axis)
        old = numerics.decode(old, view.dtype) if storage.raw else old
        with np.errstate(all="ignore"):
            self._store(np.where(adds, old + value, value), places, reach)
        storage.touched.add_places(reach, places, axis)

    def _marks(self) -> tuple:
        """What matmuls wrote, and what they may add to when told so."""
        touched, written = self.storage.touched, self.storage.written
        return touched, written if on_any_value(self.instruction) else touched

    def _adds(self, touched: np.ndarray, initialised: np.ndarray) -> np.ndarray:
        """Where the product is added to what is there."""
        mode = self.instruction.form.accumulate
        if mode is False:
            return np.zeros_like(touched)
        if mode is True and not initialised.all():
            self.machine.notice(
                "accumulate_unset",
                f"{self.instruction.opcode}: accumulate=True, but no matmul has initialised all "
                f"columns of `{self.view.buffer.name or self.name}` it scatters to",
                self.instruction.where,
            )
        return touched if mode is None else np.ones_like(touched)


def access(machine, storage, view: View, instruction, name: str = "", link=None) -> Access:
    """A view with a runtime index of any kind, bound to memory."""
    kind = Columns if view.index.kind == "tensor" else Access
    return kind(machine, storage, view, instruction, name, link)


__all__ = ["Columns", "access"]
