"""The device's queue: which programs ran, in order, and when each ended in simulated time.

Programs of one queue run one after the other.  Times are computed when somebody asks for them, for
each program once.
"""

from collections.abc import Sequence
from typing import Any

from opentrn import hw, nki
from opentrn.base import UsageError, declare
from opentrn.frameworks import rounding
from opentrn.runtime import to_torch

INDEX = declare(
    "frameworks.device_index",
    "A device `neuron:n` was named that does not exist.",
    rule="neuron:0 … are the physical NeuronCores of one chip",
    fix="use a smaller index; torch.neuron.device_count() tells how many there are",
    neuron="NRT_INVALID 2",
)
UNRECORDED = declare(
    "frameworks.event",
    "The time of an event was asked for that has not been recorded.",
    rule="elapsed_time lies between two recorded events that were made to keep time",
    fix="make them with enable_timing=True and call record() on both",
)


class Queue:
    """What ran on one device since it was made, as models in order."""

    def __init__(self) -> None:
        self.ran: list[Any] = []
        self._ended: list[float] = []

    def seconds(self, count: int | None = None) -> float:
        """When the first `count` programs (by default all) had ended, from the first's start."""
        count = len(self.ran) if count is None else count
        while len(self._ended) < count:
            model = self.ran[len(self._ended)]
            before = self._ended[-1] if self._ended else 0.0
            self._ended.append(before + model.time().total_ns * 1e-9)
        return self._ended[count - 1] if count else 0.0


_queues: dict[int, Queue] = {}
_current = [0]


def cores() -> int:
    """How many devices there are: the physical NeuronCores of the chip in force."""
    return int(hw.target(nki.current_chip().name).cores)


def current() -> int:
    """The index of the device new tensors are made on."""
    return _current[0]


def choose(index: int) -> int:
    """Make another device the current one; the index of the one before.

    Raises UsageError `frameworks.device_index`."""
    if not 0 <= index < cores():
        raise UsageError(f"there is no neuron:{index}, there are {cores()} devices", code=INDEX)
    before, _current[0] = _current[0], index
    return before


def of(index: int) -> Queue:
    """The queue of one device."""
    return _queues.setdefault(index, Queue())


def run(model: Any, index: int, *tensors: Any) -> Any:
    """Run a model on CPU tensors that stand for the device's; its results as CPU tensors."""
    of(index).ran.append(model)
    found = rounding.call(model, index, *tensors)
    return to_torch(found) if hasattr(found, "__array_interface__") else found


def call(program: Any, index: int, tensors: Sequence[Any]) -> list[Any]:
    """Run a compiled op; its outputs as CPU tensors."""
    if program.record.model is None:
        return program.fixed()
    of(index).ran.append(program.record.model)
    return program(tensors, index)


def index_of(device: Any) -> int | None:
    """The index in a device, a text or a number; None where there is none."""
    if isinstance(device, str):
        _, _, told = device.partition(":")
        return int(told) if told else None
    return getattr(device, "index", device)


class Event:
    """A moment in a device's queue, as `torch.cuda.Event`: times are simulated milliseconds."""

    def __init__(self, device: Any = None, *, enable_timing: bool = False, **ignored: Any) -> None:
        # torch.cuda.Event takes `enable_timing` first, torch.Event a device.
        timing = device if isinstance(device, bool) else enable_timing
        self.enable_timing, self._at = timing, None
        self._home = None if isinstance(device, bool) else index_of(device)

    def record(self, stream: Any = None) -> None:
        """Mark the end of what has been run on the stream's (or current) device."""
        index = self._home if stream is None else stream.device_index
        index = current() if index is None else index
        self._at = (index, len(of(index).ran))

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds of simulated time from this event to `end`.

        Raises UsageError `frameworks.event`."""
        if self._at is None or end._at is None or not (self.enable_timing and end.enable_timing):
            raise UsageError("an event has no time", code=UNRECORDED)
        (first, a), (last, b) = self._at, end._at
        return (of(last).seconds(b) - of(first).seconds(a)) * 1e3

    def query(self) -> bool:
        """Whether what it marks has ended: always, for the simulator runs each op at once."""
        return True

    def synchronize(self) -> None:
        """Wait for what it marks: it has ended."""

    def wait(self, stream: Any = None) -> None:
        """Let a stream wait for it: it has ended."""


class Stream:
    """A device's queue; there is one for each device, so all streams of one are the same."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        index = index_of(device)
        self.device_index = current() if index is None else int(index)

    def synchronize(self) -> None:
        """Wait for everything in the queue: it has ended."""

    def query(self) -> bool:
        """Whether everything in the queue has ended."""
        return True

    def record_event(self, event: Event | None = None) -> Event:
        """An event at the end of the queue."""
        event = Event(enable_timing=True) if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Wait for an event: it has ended."""

    def wait_stream(self, stream: "Stream") -> None:
        """Wait for another stream: it has ended."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.device_index == self.device_index

    def __hash__(self) -> int:
        return hash(self.device_index)


__all__ = ["Event", "Queue", "Stream", "call", "choose", "cores", "current", "of", "run"]
