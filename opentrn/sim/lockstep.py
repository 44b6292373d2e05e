"""Program instances that advance together: one runs at a time, until it must wait for others.

Cores of a logical NeuronCore and ranks of a collective are members of a `Lockstep`.  Each body runs
in a thread of its own (kernels are plain Python and cannot be suspended otherwise), but exactly one
holds the baton; it is handed over only where a member meets others, so every run is the same.
"""

import contextvars
import threading
from collections.abc import Callable, Iterable
from typing import Any

from opentrn.base import OrderError, Where, declare

declare(
    "sim.deadlock",
    "Program instances wait for each other and none can go on.",
    rule="every instance must reach the same meetings (core_barrier, sendrecv, collectives) in the "
    "same order",
    fix="make all instances take part, or guard the meeting by the same condition on all of them",
    neuron="NRT_TIMEOUT",
)


class Stopped(BaseException):
    """Ends a member because another one failed; never seen outside."""


class Lockstep:
    """A group of `count` members; `run` their bodies, which call `meet` to wait for each other."""

    def __init__(self, count: int, word: str = "core"):
        self.count, self.word = count, word
        self._state = ["ready"] * count
        self._waits: dict[int, tuple[Any, frozenset[int], Any, Where | None]] = {}
        self._given: dict[int, dict[int, Any]] = {}
        self._turn = threading.Condition()
        self._current = -1
        self._failure: BaseException | None = None

    def run(self, bodies: list[Callable[[], Any]]) -> list[Any]:
        """Run one body for each member; their results, in order.

        The first exception of a member ends all and is raised.  Raises OrderError `sim.deadlock`
        naming where each member waits.
        """
        results: list[Any] = [None] * self.count
        threads = []
        for number, body in enumerate(bodies):
            context = contextvars.copy_context()
            target = self._member(number, body, results)
            threads.append(threading.Thread(target=context.run, args=(target,), daemon=True))
        for thread in threads:
            thread.start()
        with self._turn:
            self._hand_over()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        return results

    def _member(self, number: int, body: Callable[[], Any], results: list[Any]) -> Callable:
        def live() -> None:
            try:
                self._await_turn(number)
                results[number] = body()
            except Stopped:
                pass
            except BaseException as error:
                with self._turn:
                    self._failure = self._failure or error
            with self._turn:
                self._state[number] = "done"
                self._hand_over()

        return live

    def _await_turn(self, number: int) -> None:
        with self._turn:
            while self._current != number and self._failure is None:
                self._turn.wait()
            if self._failure is not None:
                raise Stopped

    def _hand_over(self) -> None:
        """Give the baton to the lowest member that can run; find out if none ever will."""
        ready = [n for n, state in enumerate(self._state) if state == "ready"]
        if ready:
            self._current = ready[0]
        elif self._waits and self._failure is None:
            self._failure = self._deadlock()
        self._turn.notify_all()

    def meet(
        self, number: int, key: Any, others: Iterable[int], offer: Any, where: Where | None = None
    ) -> dict[int, Any]:
        """Wait until every member of `others` (this one included) meets under `key`.

        Returns what each offered.  Raises OrderError when that can never happen.
        """
        party = frozenset({number, *others})
        with self._turn:
            self._waits[number] = (key, party, offer, where)
            self._state[number] = "waiting"
            if all(self._waits.get(n, (None,))[0] == key for n in party):
                self._release(party)
            self._hand_over()
        self._await_turn(number)
        return self._given.pop(number)

    def _release(self, party: frozenset[int]) -> None:
        offers = {n: self._waits[n][2] for n in party}
        for n in party:
            del self._waits[n]
            self._given[n] = offers
            self._state[n] = "ready"

    def _deadlock(self) -> OrderError:
        rows = []
        for n, state in enumerate(self._state):
            if state == "waiting":
                key, _, _, where = self._waits[n]
                rows.append(f"{self.word} {n} waits in {_name(key)} at {where or 'unknown line'}")
            else:
                rows.append(f"{self.word} {n} has ended")
        first = min(self._waits)
        return OrderError(
            "the kernel cannot go on: " + "; ".join(rows),
            code="sim.deadlock",
            at=self._waits[first][3],
        )


def _name(key: Any) -> str:
    return " ".join(map(str, key)) if isinstance(key, tuple) else str(key)
