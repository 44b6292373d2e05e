"""Models: executables loaded on a device, called like functions, timed, and accounted for."""

import os
import threading
import time
from collections.abc import Iterable
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from opentrn.base import UsageError, declare
from opentrn.isa import Executable, Loop, Register, exe
from opentrn.runtime.device import Device, devices
from opentrn.runtime.memory import MemoryUse, check_memory, memory_use
from opentrn.runtime.tensors import is_torch, to_arrays, to_torch, writer
from opentrn.sim import Replay, Timeline, timeline

declare(
    "runtime.target",
    "An executable runs only on the chip it was compiled for.",
    rule="the device's chip is the executable's target",
    fix="compile the model for this chip, or leave `device` out",
    neuron="NRT_UNSUPPORTED_NEFF_VERSION 10",
)
declare(
    "runtime.not_run",
    "The program loops as often as its data say, so its time is known only after it has run.",
    rule="a device loop bounded by registers is timed by the counts of the last run",
    fix="call the model once, then ask for its time",
)

declare(
    "runtime.fast",
    "An executable has no fast numerics.",
    rule="fast numerics are made when a model is compiled, and are not saved: a file holds the "
    "program, which is interpreted",
    fix="compile the model with numerics='fast', or leave `numerics` out",
)

PATIENCE = 2.0
"""Seconds after which a batch loop shows its progress."""


def load(
    executable: Executable | str | os.PathLike, device: Device | None = None, numerics: str = ""
) -> "Model":
    """Load an executable, or the file of one, on a device (left out: a core of its target).

    `numerics` is "exact" or "fast"; left out, it is what the executable was compiled for.  Raises
    what reading the file raises, UsageError `runtime.target` and `runtime.fast`, CapacityError
    `runtime.hbm`.
    """
    held = executable if isinstance(executable, Executable) else exe.load(executable)
    return Model(held, devices(held.target)[0] if device is None else device, numerics)


class Model:
    """An executable on a device: call it with inputs to get outputs.

    `inputs` and `outputs` are the specs (name, shape, dtype) of the executable.  Calls from several
    threads run one after another, as on one core.  `numerics` says who computes: "exact" the
    program's instructions, "fast" the vectorised code it was compiled with; its time is that of the
    instructions either way.
    """

    def __init__(self, executable: Executable, device: Device, numerics: str = ""):
        if device.chip.name != executable.target:
            raise UsageError(
                f"{executable.name} was compiled for {executable.target}, "
                f"{device.name} is {device.chip.name}",
                code="runtime.target",
            )
        self.executable, self.device = executable, device
        self.numerics = numerics or ("exact" if executable.fast is None else "fast")
        if self.numerics not in ("exact", "fast" if executable.fast else "exact"):
            raise UsageError(f"{executable.name} has no numerics {numerics!r}", code="runtime.fast")
        self.name, self.program = executable.name, executable.program
        empty = executable.meta.get("empty", {})
        self.inputs = exe.with_empty(executable.inputs, empty.get("inputs", ()))
        self.outputs = exe.with_empty(executable.outputs, empty.get("outputs", ()))
        self._timelines: dict[tuple, Timeline] = {}
        self._trips: list | None = None
        self._running = threading.Lock()
        self._scalars = set(executable.meta.get("scalars", ()))
        check_memory(self.memory, self.name)

    def __repr__(self) -> str:
        return f"<Model {self.name} on {self.device.name} ({self.device.chip.name})>"

    @cached_property
    def memory(self) -> MemoryUse:
        """What the model takes of the device's memory, by category."""
        return memory_use(self.program, self.device)

    @cached_property
    def _replay(self) -> Replay:
        return Replay(self.program, self.device.chip)

    def __call__(self, *inputs: Any) -> Any:
        """The outputs for these inputs: one array, or a tuple when there are several (or none).

        Inputs are NumPy arrays, torch tensors, or what NumPy can read; with a torch tensor among
        them the outputs are torch tensors.  Inputs the program writes are written in place.
        Raises the errors of `runtime.tensors.to_arrays`, and UsageError `runtime.read_only`.
        """
        arrays = [a for a in to_arrays(self.inputs, inputs) if a.size]
        writers = self._writers(inputs)
        with self._running:
            if self.numerics == "fast":
                found = self.executable.fast(arrays)
            else:
                found = self._replayed(arrays, writers)
        found = [a.reshape(()) if n in self._scalars else a for n, a in enumerate(found)]
        if len(found) < len(self.outputs):
            rest = iter(found)
            found = [next(rest) if prod(s.shape) else np.zeros(s.shape, s.dtype.storage)
                     for s in self.outputs]  # fmt: skip
        if any(map(is_torch, inputs)):
            found = [to_torch(array) for array in found]
        return found[0] if len(found) == 1 else tuple(found)

    def _replayed(self, arrays: list, writers: list) -> list:
        """The outputs the program's instructions compute."""
        replay = self._replay
        replay.machine.trips.clear()
        found = replay(arrays)
        self._trips = list(replay.machine.trips)
        for buffer, write in writers:
            write(replay.read(buffer))
        return found

    def _writers(self, inputs) -> list:
        """How to store each input that the program writes."""
        mutated = set(self.program.mutated)
        given = [(s, v) for s, v in zip(self.inputs, inputs, strict=True) if prod(s.shape)]
        rows = ((b, *each) for b, each in zip(self.program.inputs, given, strict=True))
        return [(b, writer(spec, value)) for b, spec, value in rows if b in mutated]

    def map(self, batches: Iterable[Any], progress: bool = True) -> list[Any]:
        """The outputs for each batch (a tuple of inputs, or one input), in order.

        With `progress`, a bar on stderr shows how far it is once it has lasted two seconds.
        """
        total = len(batches) if hasattr(batches, "__len__") else None
        found: list[Any] = []
        bar = _Progress(self.name, total) if progress else None
        try:
            for batch in batches:
                found.append(self(*batch) if isinstance(batch, tuple | list) else self(batch))
                if bar is not None:
                    bar.advance(len(found))
        finally:
            if bar is not None:
                bar.stop()
        return found

    def time(self) -> Timeline:
        """When every instruction runs on the device; computed once for each set of trip counts.

        Raises UsageError `runtime.not_run` when a loop's count is known only from a run.
        """
        trips = [(loop, n) for loop, n in self._trips or () if _is_open(loop)]
        if self._trips is None and any(map(_is_open, _loops(self.program.body))):
            raise UsageError(f"{self.name} has not run yet", code="runtime.not_run")
        key = tuple(count for _, count in trips)
        found = self._timelines.get(key)
        if found is None:
            found = self._timelines[key] = timeline(
                self.program, self.device.chip, trips=trips or None
            )
        return found


def _loops(body) -> Iterable[Loop]:
    for node in body:
        if isinstance(node, Loop):
            yield node
            yield from _loops(node.body)


def _is_open(loop: Loop) -> bool:
    """Whether the trip count depends on data."""
    return loop.while_true is not None or any(
        isinstance(bound, Register) for bound in (loop.start, loop.stop)
    )


class _Progress:
    """A bar that appears when the work has lasted longer than PATIENCE."""

    def __init__(self, name: str, total: int | None):
        self.name, self.total, self.bar, self.task = name, total, None, None
        self.begin = time.monotonic()

    def advance(self, done: int) -> None:
        """Note that `done` batches are finished."""
        if self.bar is None:
            if time.monotonic() - self.begin < PATIENCE or done == self.total:
                return
            self._show()
        self.bar.update(self.task, completed=done)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        self.bar = Progress(
            "{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            console=Console(stderr=True), transient=True,
        )  # fmt: skip
        self.task = self.bar.add_task(self.name, total=self.total)
        self.bar.start()

    def stop(self) -> None:
        """Take the bar away."""
        if self.bar is not None:
            self.bar.stop()
