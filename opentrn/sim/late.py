"""Work put off: checked and recorded when it is issued, computed in order before anyone looks.

A tile product drives the interpreter out of the caches.  So from a matmul on, instructions whose
values nothing has to know yet wait in the machine's list `late`: many checked in a row and then
computed in a row take a sixth less time than one by one.  Whoever touches memory first has the
list done (`Storage` does); a storage says in its own `late` whose work on it may be waiting.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from opentrn.isa import Instruction, View
from opentrn.sim.memory import catch_up, move, put

# What may wait at most: with 300 waiting the matrix product of bench/speed takes 7 % longer.
MOST = 2048


class Products:
    """Products of stationary tiles that follow each other with one moving tile.

    They are made together because BLAS takes neighbours in memory as one matrix.
    """

    __slots__ = ("add", "form", "moving", "outs", "stationary")

    def __init__(self, form, stationary: np.ndarray, moving: np.ndarray, out, add: bool):
        self.form, self.moving, self.add = form, moving, add
        self.stationary, self.outs = [stationary], [out]

    def takes(self, form, stationary: np.ndarray, moving: np.ndarray, out, add: bool) -> bool:
        """Take one more product; False when it is of another kind."""
        if moving is not self.moving or form is not self.form or add is not self.add:
            return False
        self.stationary.append(stationary)
        self.outs.append(out)
        return True

    def __call__(self) -> None:
        if len(self.outs) == 1:
            self.form.run(self.stationary[0], self.moving, out=self.outs[0], add=self.add)
        else:
            self.form.run_several(self.stationary, self.moving, self.outs, self.add)


def product(machine, form, given: dict, out: np.ndarray, add: bool) -> None:
    """Put off a matmul whose sums can be made where they are kept."""
    late = machine.late
    if len(late) >= MOST:
        catch_up(late)
    last = late[-1] if late else None
    stationary, moving = given["stationary"], given["moving"]
    if type(last) is not Products or not last.takes(form, stationary, moving, out, add):
        late.append(Products(form, stationary, moving, out, add))


def put_off(machine, instruction: Instruction, plan) -> bool:
    """Have an instruction wait behind those that do; False when it must run now."""
    late, operands = machine.late, instruction.operands
    if not plan.waits or len(late) >= MOST:
        return False
    for view in operands:
        if type(view) is View:
            storage = machine.storage(view.buffer)
            storage.settle(view)
            if storage.late is not late or storage.raw and not plan.moves:
                return False
    late.append((_move if plan.moves else _plain)(machine, instruction, plan))
    return True


def _move(machine, instruction: Instruction, plan) -> Callable[[], None]:
    """As `Machine._run_move`, to be done later; `plan` says no more about copies."""
    to, view = instruction.operands
    source = machine.source(instruction, view, "src")
    target = machine.target(instruction, to)
    target.written.add(to)
    given, window = source.ahead(view), target.ahead(to)
    return partial(move, window, given, view.dtype, target.raw, source.raw)


def _plain(machine, instruction: Instruction, plan) -> Callable[[], None]:
    """As `Machine._run_plain` for one output and no engine state, to be done later."""
    form, operands, values = instruction.form, instruction.operands, instruction.values
    given = dict(zip(form.value_names, values, strict=True)) if values else {}
    for n, name in plan.inputs:
        view = given[name] = operands[n]
        if type(view) is View:
            given[name] = machine.source(instruction, view, name).ahead(view)
    ((n, name),) = plan.outputs
    view = operands[n]
    target = machine.target(instruction, view)
    target.written.add(view)
    known = view.dtype if plan.exact else None
    return partial(_deliver, form.run, given, name, target.ahead(view), view.dtype, known)


def _deliver(run, given: dict, name: str, window: np.ndarray, dtype, known) -> None:
    """Compute and store one result."""
    put(window, run(**given)[name], dtype, False, known)


__all__ = ["product", "put_off"]
