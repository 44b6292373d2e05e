"""Program instances that advance together: one runs at a time, until it must wait for others.

Cores of a logical NeuronCore and ranks of a collective are members of a `Lockstep`.  Each body runs
in a thread of its own (kernels are plain Python and cannot be suspended otherwise), but exactly one
holds the baton; it is handed over only where a member meets others, so every run is the same.
"""

import contextvars
import threading
from collections.abc import Callable, Iterable, Sequence
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
    """A group of members; `run` their bodies, which call `meet` to wait for each other.

    `names` says what each member is called in errors ("core 0", "rank 3").
    """

    def __init__(self, names: Sequence[str]):
        self.names, self.count = tuple(names), len(names)
        self._state = ["ready"] * self.count
        self._waits: dict[int, tuple[Any, frozenset[int], Any, Where | None]] = {}
        self._given: dict[int, Any] = {}
        self._lock = threading.RLock()
        # One condition each: handing the baton on wakes its new holder and nobody else.
        self._turns = [threading.Condition(self._lock) for _ in names]
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
        with self._lock:
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
                with self._lock:
                    self._failure = self._failure or error
            with self._lock:
                self._state[number] = "done"
                self._hand_over()

        return live

    def _await_turn(self, number: int) -> None:
        with self._lock:
            while self._current != number and self._failure is None:
                self._turns[number].wait()
            if self._failure is not None:
                raise Stopped

    def _hand_over(self) -> None:
        """Give the baton to the lowest member that can run; find out if none ever will."""
        ready = [n for n, state in enumerate(self._state) if state == "ready"]
        if ready:
            self._current = ready[0]
        elif self._waits and self._failure is None:
            self._failure = self._deadlock()
        for n, turn in enumerate(self._turns):
            if n == self._current or self._failure is not None:
                turn.notify_all()

    def meet(
        self,
        number: int,
        key: Any,
        others: Iterable[int],
        offer: Any,
        where: Where | None = None,
        settle: Callable[[dict[int, Any]], Any] | None = None,
    ) -> Any:
        """Wait until every member of `others` (this one included) meets under `key`.

        When all are there, `settle` is called once with what each offered (by number); every
        member gets what it returns, or the offers without it.  Raises OrderError when the meeting
        can never happen.
        """
        party = frozenset({number, *others})
        with self._lock:
            self._waits[number] = (key, party, offer, where)
            self._state[number] = "waiting"
            if all(self._waits.get(n, (None,))[0] == key for n in party):
                self._release(party, settle)
            self._hand_over()
        self._await_turn(number)
        return self._given.pop(number)

    def _release(self, party: frozenset[int], settle: Callable | None) -> None:
        offers = {n: self._waits[n][2] for n in sorted(party)}
        given = offers if settle is None else settle(offers)
        for n in party:
            del self._waits[n]
            self._given[n] = given
            self._state[n] = "ready"

    def _deadlock(self) -> OrderError:
        rows = []
        for n, state in enumerate(self._state):
            if state == "waiting":
                key, _, _, where = self._waits[n]
                rows.append(f"{self.names[n]} waits in {_name(key)} at {where or 'unknown line'}")
            else:
                rows.append(f"{self.names[n]} has ended")
        first = min(self._waits)
        return OrderError(
            "the kernel cannot go on: " + "; ".join(rows),
            code="sim.deadlock",
            at=self._waits[first][3],
        )


def _name(key: Any) -> str:
    return " ".join(map(str, key)) if isinstance(key, tuple) else str(key)
