"""Accumulation groups: what the matmuls into one place of PSUM add up to, and who may look when.

A matmul overwrites what no matmul has touched since something else was written there, and adds to
the rest.  `Storage.touched` marks the results of matmuls, `Storage.seen` those that were read.
"""

import numpy as np

from opentrn.base import float32
from opentrn.isa import Instruction, View
from opentrn.sim.late import product
from opentrn.sim.memory import Storage, put


def add(
    machine, instruction: Instruction, storage: Storage, view: View, given: dict, late: bool = False
) -> None:
    """Run a matmul on the inputs `given`: overwrite, add, or either for each location.

    With `late` a plain product may be put off until `machine.catch_up`; its checks are made now.
    """
    form, window = instruction.form, storage.ahead(view)
    group = opened(machine, storage, view, instruction)
    whole = group is None or group is True
    if whole and form.adds and window.ndim == 2 and _direct(storage, view):
        if late:
            product(machine, form, given, window, group is True)
        else:
            form.run(**given, out=window, add=group is True)
    else:
        machine.catch_up()
        value = form.run(**given, out=_room(machine, form))["dst"].reshape(window.shape)
        if group is True and _direct(storage, view):
            np.add(window, value, out=window)
        else:
            put(window, added(storage.read(view), value, group), view.dtype, storage.raw)
    if storage.touched.cells is not True:
        storage.touched.add(view)
    if storage.written.cells is not True:
        storage.written.add(view)


def _direct(storage: Storage, view: View) -> bool:
    """Whether sums can be made where they are kept."""
    return view.dtype == float32 and not storage.raw


def _room(machine, form) -> np.ndarray:
    """Room for one product, used again and again because fresh pages cost more than the sum."""
    shape = (form.M, form.N)
    if shape not in machine.products:
        machine.products[shape] = np.empty(shape, np.float32)
    return machine.products[shape]


def opened(machine, storage: Storage, view: View, instruction: Instruction):
    """Where the product is added: None nowhere, True everywhere, or a mask."""
    mode = instruction.form.accumulate
    group = None if mode is False else storage.touched.some_of(view)
    if mode is True and group is not True:
        storage.blank()
        if on_any_value(instruction) and storage.written.all_of(view):
            return True
        machine.notice(
            "accumulate_unset",
            f"{instruction.opcode}: accumulate=True, but no matmul has initialised "
            f"`{view.buffer.name or 'dst'}` {list(view.shape)}",
            instruction.where,
        )
        group = True
    if storage.seen.cells is not None:
        if group is not None and storage.seen.some_of(view) is not None:
            machine.notice(
                "read_open_group",
                f"{instruction.opcode}: adds to PSUM that was read after the previous matmul",
                instruction.where,
            )
        storage.seen.remove(view)
    return group


def on_any_value(instruction: Instruction) -> bool:
    """Whether a matmul may add to what another instruction wrote: from NeuronCore-v4 on.

    NKI ISA reference, nc_matmul: it is undefined on v2 and v3.
    """
    return instruction.form.chip.generation >= 4


def close(machine, storage: Storage, view: View, instruction: Instruction) -> None:
    """Something else than a matmul overwrites matmul results."""
    if machine.checking and storage.unread_group(view):
        machine.notice(
            "reset_in_reduction",
            f"{instruction.opcode}: PSUM tile `{view.buffer.name or view.buffer.id}` is "
            "overwritten before its matmul results were read",
            instruction.where,
        )
    storage.touched.remove(view)
    storage.seen.remove(view)


def added(old, value, group):
    """Old contents plus the product where the group is open, the product elsewhere."""
    if group is None:
        return value
    if group is True:
        return old + value.reshape(old.shape)
    return np.where(group.reshape(old.shape), old + value.reshape(old.shape), value)


__all__ = ["add", "close", "on_any_value", "opened"]
