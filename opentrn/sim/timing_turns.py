"""The schedule where a DMA engine takes turns among the queues that wait for it.

As `sim.timing_classes`, but transfers of one class are not served in order of arrival: the engine
moves a packet (`packet_ns`) of one queue, then one of the next that waits, round robin.  That it
goes round after packets of at most 4 KiB is stated (AWS Neuron SDK documentation, "Compute-
communication overlap"); with which queue it begins is assumed: the one after the last served.
Within a queue transfers keep their order.
"""

import heapq
import math

from opentrn.sim.timing import QUEUE, Columns, Rates, Schedule
from opentrn.sim.timing_classes import LEAVES, MANY, Classes


def schedule(columns: Columns, rates: Rates) -> Schedule:
    """As `timing.schedule`, DMA engines taking turns among queues."""
    run = _Turns(columns, rates)
    run.run()
    return run.result


class _Turns(Classes):
    """A run in which each ring keeps its transfers by class and queue."""

    def __init__(self, c: Columns, rates: Rates):
        super().__init__(c, rates)
        rings = len(self.rings)
        # What waits for a ring: {(class, queue): [(arrival, place, ns), ...] as a heap}.
        self.queues: list[dict] = [{} for _ in range(rings)]
        self.served = [-1] * rings
        self.rest = [0.0] * rings  # of the share that the ring works on, after this turn

    def leaves(self, ring: int, row: int, time: float) -> None:
        """The ring has done what it was to do; what is left of the share waits again."""
        if self.rest[ring] > 0.0:
            self.wait(ring, row, self.rest[ring])
        else:
            self.share_done(row, time)
        self.serve(ring, time, row)

    def wait(self, ring: int, row: int, lasts: float) -> None:
        """A share, or what is left of it, waits for the ring."""
        key = self.priority[row], self.stream[row]
        share = self.arrived[row], self.place[row], lasts
        heapq.heappush(self.queues[ring].setdefault(key, []), share)

    def arrives(self, ring: int, row: int, time: float) -> None:
        """A share of a transfer asks for a ring."""
        self.wait(ring, row, self.move[row])
        if self.works[ring] is None:
            self.serve(ring, time, -1)
            return
        now, begin = self.works[ring]
        other = self.stream[row] != self.stream[now] and self.priority[row] == self.priority[now]
        if other or self.priority[row] < self.priority[now]:
            self.cut(ring, now, begin, time)

    def cut(self, ring: int, row: int, begin: float, time: float) -> None:
        """The ring stops working on a share behind the packet of this moment."""
        packet, end = self.rates.packet_ns, self.rings[ring]
        past = max(0.0, time - begin)
        done = math.ceil(past / packet) * packet if packet > 0.0 else past
        if begin + done >= end:
            return
        self.rest[ring] += end - begin - done
        self.rings[ring] = begin + done
        self.turn[ring] += 1
        heapq.heappush(self.heap, (begin + done, LEAVES, ring * MANY + self.turn[ring]))

    def serve(self, ring: int, time: float, before: int) -> None:
        """The ring takes up the next queue's share: a packet of it, or all where no other waits."""
        waiting = self.queues[ring]
        if not waiting:
            return
        urgent = min(waiting)[0]
        among = [queue for priority, queue in waiting if priority == urgent]
        queue = min(among, key=lambda q: (q <= self.served[ring], q))
        shares = waiting[urgent, queue]
        asked, place, lasts = heapq.heappop(shares)
        if not shares:
            del waiting[urgent, queue]
        row, now = self.rows[place], lasts
        if len(among) > 1 and self.rates.packet_ns > 0.0:
            now = min(lasts, self.rates.packet_ns)
        self.served[ring], self.rest[ring] = queue, lasts - now
        self.works[ring], self.rings[ring] = (row, time), time + now
        if time > asked and before >= 0 and before != row and not self.begun[row]:
            self.since[row], self.binding[row], self.reason[row] = time, before, QUEUE
        self.turn[ring] += 1
        heapq.heappush(self.heap, (time + now, LEAVES, ring * MANY + self.turn[ring]))


__all__ = ["schedule"]
