"""The schedule where transfers have classes of service (NeuronCore-v4): strict priority.

A DMA engine works on the most urgent transfer that has reached it, in order of arrival within a
class; one of a more urgent class takes over behind the packet that is being moved (`packet_ns`),
and what is left of the other one waits.  Strict priority between four classes is stated for trn3
(AWS Neuron SDK, compute-communication overlap); that it takes over between packets is assumed.
Everything else is as in `sim.timing`.
"""

import heapq
import math

from opentrn.sim.timing import QUEUE, STREAMS, Columns, Rates, Run, Schedule

# Kinds of events besides a transfer (0) and a claim (1), see `Run.run`.
ARRIVES, LEAVES = 2, 3
MANY = 1 << 40  # more than there are rows, or turns of a ring


def schedule(columns: Columns, rates: Rates) -> Schedule:
    """As `timing.schedule`, of columns whose transfers have more than one class."""
    run = Classes(columns, rates)
    run.run()
    return run.result


class Classes(Run):
    """A run in which rings are given to transfers one packet after the other."""

    def __init__(self, c: Columns, rates: Rates):
        super().__init__(c, rates)
        rings, rows = len(self.rings), len(c.stream)
        # What each ring works on: (row, begin) or None; who waits: (class, arrival, place, ns).
        self.works: list = [None] * rings
        self.waits: list[list] = [[] for _ in range(rings)]
        self.turn = [0] * rings  # so that a turn that was cut short does not end a second time
        self.left, self.arrived = list(c.count), [0.0] * rows
        self.begun, self.latest = [False] * rows, [0.0] * rows
        # Transfers in the order in which they reached the rings, which decides between equal times.
        self.place, self.rows = [0] * rows, []

    def transfer(self, row: int, arrival: float) -> None:
        """A DMA instruction reaches its rings, one after the other."""
        total, count = self.rates.dma_engines, self.count[row]
        self.arrived[row], self.place[row] = arrival, len(self.rows)
        self.rows.append(row)
        if not count:
            self.finished(row, arrival)
        for k in range(count):
            ring = self.stream[row] // STREAMS * total + (self.first[row] + k) % total
            due = arrival + k * self.stagger
            heapq.heappush(self.heap, (due, ARRIVES, self.place[row] * MANY + ring))

    def other(self, kind: int, number: int, time: float) -> None:
        """A transfer reaches one ring, or a ring has done what it was to do."""
        if kind == ARRIVES:
            place, ring = divmod(number, MANY)
            self.arrives(ring, self.rows[place], time)
            return
        ring, turn = divmod(number, MANY)
        if turn == self.turn[ring]:
            row, begin = self.works[ring]
            self.works[ring] = None
            self.began(row, begin)
            self.leaves(ring, row, time)

    def leaves(self, ring: int, row: int, time: float) -> None:
        """The ring has moved a share of a transfer."""
        self.share_done(row, time)
        self.serve(ring, time, row)

    def share_done(self, row: int, time: float) -> None:
        """One share of a transfer fewer is left."""
        self.left[row] -= 1
        self.latest[row] = max(self.latest[row], time)
        if not self.left[row]:
            self.finished(row, self.latest[row])

    def arrives(self, ring: int, row: int, time: float) -> None:
        """A share of a transfer asks for a ring."""
        share = (self.priority[row], time, self.place[row], self.move[row])
        heapq.heappush(self.waits[ring], share)
        if self.works[ring] is None:
            self.serve(ring, time, -1)
            return
        now, begin = self.works[ring]
        if self.priority[row] < self.priority[now]:
            self.cut(ring, now, begin, time)

    def cut(self, ring: int, row: int, begin: float, time: float) -> None:
        """The ring stops working on a transfer behind the packet of this moment."""
        packet, end = self.rates.packet_ns, self.rings[ring]
        past = max(0.0, time - begin)
        done = math.ceil(past / packet) * packet if packet > 0.0 else past
        if begin + done >= end:
            return
        heapq.heappush(
            self.waits[ring],
            (self.priority[row], self.arrived[row], self.place[row], end - begin - done),
        )
        if done:
            self.began(row, begin)
        self.works[ring] = None
        self.rings[ring] = begin + done
        self.serve(ring, begin + done, row)

    def began(self, row: int, time: float) -> None:
        """A share of a transfer really began at `time`: its first one, or a later one."""
        if not self.begun[row] or time < self.start[row]:
            self.begun[row], self.start[row] = True, time

    def serve(self, ring: int, time: float, before: int) -> None:
        """The ring takes up the most urgent transfer that waits for it, if there is one."""
        if not self.waits[ring]:
            return
        _, asked, place, lasts = heapq.heappop(self.waits[ring])
        row = self.rows[place]
        self.works[ring], self.rings[ring] = (row, time), time + lasts
        if time > asked and before >= 0 and before != row:
            self.since[row], self.binding[row], self.reason[row] = time, before, QUEUE
        self.turn[ring] += 1
        end = (time + lasts, LEAVES, ring * MANY + self.turn[ring])
        heapq.heappush(self.heap, end)

    def finished(self, row: int, end: float) -> None:
        """All shares of a transfer have been moved."""
        if not self.begun[row]:
            self.start[row] = self.arrived[row]
        end = self.through_hbm(row, self.arrived[row], end)
        visible = end + self.finish[row]
        self.end[row], self.visible[row] = end, visible
        self.settle(row, visible, visible)


__all__ = ["ARRIVES", "LEAVES", "MANY", "Classes", "schedule"]
