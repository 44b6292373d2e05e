"""Traces made by hand, whose answers are known by hand."""

from pathlib import Path

from opentrn.base import Trace, Where

KERNEL = Path(__file__).parents[1] / "golden" / "profiler" / "kernel.txt"


def line(number):
    return Where(str(KERNEL), number, "kernel")


class Maker:
    """Adds events with their indices; `after` is (reason, index of what was waited for)."""

    def __init__(self, **meta):
        self.trace = Trace({"target": "trn2", "program": "by hand", **meta})
        self.count = 0
        self.names = {}

    def work(self, track, start, end, after=None, name="tensor_copy", where=None, **more):
        index, self.count = self.count, self.count + 1
        self.names[index] = name
        waited = f"{after[0]}: {self.names[after[1]]} #{after[1]}" if after else ""
        self.trace.add(
            track, name, start, end, waited_for=waited, args={"index": index}, where=where, **more
        )
        return index

    def move(self, start, end, nbytes, after=None, issue=None, issuer="sync", into="sbuf", **more):
        """A transfer: its issue (start, end) on the issuer, and its bytes on a queue."""
        where = more.pop("where", None)
        if issue:
            self.trace.add(
                issuer, "dma_copy", *issue, label="issue", args={"index": self.count}, where=where
            )
        source, target = ("hbm", "sbuf") if into == "sbuf" else ("sbuf", "hbm")
        return self.work(
            more.pop("queue", "dma.q0"), start, end, after, "dma_copy", where, bytes_read=nbytes,
            bytes_written=nbytes, source=source, target=target, **more,
        )  # fmt: skip

    def matmul(self, start, end, after=None, name="nc_matmul", flops=2 * 128 * 128 * 512, **more):
        return self.work(
            "tensor", start, end, after, name, flops=flops, bytes_read=163840,
            bytes_written=262144, source="sbuf", target="psum", **more,
        )  # fmt: skip


def engine_bound():
    """A load of 10 ns, then ten matmuls of 10 ns without a gap; 112 ns in all.

    Path: issue 2, start 2, bytes 6, semaphore 2, tensor 100.
    """
    made = Maker()
    last = made.move(4, 10, 4096, issue=(0, 2))
    reason = "dma"
    for n in range(10):
        last = made.matmul(12 + 10 * n, 22 + 10 * n, (reason, last))
        reason = "engine"
    return made.trace


def dma_bound():
    """Five transfers of 20 ns one after the other in the rings, each with 1 ns of matmul; 103 ns.

    The path is: issue 1, start 1, bytes 100, semaphore 0, tensor 1.
    """
    made = Maker()
    before = None
    for n in range(5):
        at = 2 + 20 * n
        load = made.move(
            at, at + 20, 8192, ("queue", before) if before is not None else None, issue=(n, n + 1)
        )
        before = load
        made.matmul(at + 20, at + 21, ("dma", load))
    return made.trace


def issue_bound():
    """Ten transfers whose bytes take 1 ns and whose issue takes 10; 104 ns.

    The path: ten issues of 10 ns, then start 3 and bytes 1.
    """
    made = Maker()
    before = None
    for n in range(10):
        at = 10 * n
        before = made.move(
            at + 13, at + 14, 64, ("engine", before) if n else None, issue=(at, at + 10)
        )
    return made.trace


def latency_bound():
    """Load, copy, store, each short after a long wait: 5 of 50 ns are work."""
    made = Maker()
    load = made.move(18, 20, 64, issue=(0, 3))
    copy = made.work("vector", 25, 26, ("dma", load), source="sbuf", target="sbuf",
                     bytes_read=64, bytes_written=64)  # fmt: skip
    made.move(48, 50, 64, ("semaphore", copy), issue=(30, 33), into="hbm")
    return made.trace


def dependency_bound():
    """Load 30, matmul 30, copy 20, store 20, twice, never together: 200 ns and no fixed cost."""
    made = Maker()
    last, at = None, 0
    for _ in range(2):
        load = made.move(at, at + 30, 30000, ("semaphore", last) if last is not None else None)
        product = made.matmul(at + 30, at + 60, ("dma", load))
        copy = made.work("vector", at + 60, at + 80, ("semaphore", product), source="psum",
                         target="sbuf", bytes_read=2048, bytes_written=1024)  # fmt: skip
        last = made.move(at + 80, at + 100, 1024, ("semaphore", copy), into="hbm")
        at += 100
    return made.trace


def two_full():
    """Tensor active 90, vector 95 of 100 ns; the path runs through the tensor engine."""
    made = Maker()
    first = made.matmul(0, 45)
    second = made.matmul(45, 90, ("engine", first))
    made.work("vector", 0, 85)
    made.work("vector", 90, 100, ("semaphore", second))
    return made.trace


def page():
    """The trace of the golden pages: some of everything, with source lines and counters."""
    made = Maker(program="a kernel")
    at, last = 0.0, None
    for n in range(4):
        load = made.move(
            at + 1300, at + 1700, 131072, ("engine", last) if last is not None else None,
            issue=(at, at + 500), where=line(2),
        )  # fmt: skip
        flip = made.matmul(at + 1750, at + 1850, ("dma", load), "nc_transpose",
                           2 * 128 * 128 * 128, where=line(3), grade="fitted")  # fmt: skip
        product = made.matmul(at + 1850, at + 2063.25, ("engine", flip), where=line(3))
        copy = made.work(
            "vector", at + 2113.25, at + 2646.58, ("semaphore", product), source="psum",
            target="sbuf", bytes_read=262144, bytes_written=131072, where=line(4),
        )  # fmt: skip
        last = made.move(
            at + 3946.58, at + 4346.58, 131072, ("semaphore", copy), into="hbm", queue="dma.q1",
            issue=(at + 2696.58, at + 3196.58), where=line(5), grade="assumed" if n else "derived",
        )  # fmt: skip
        at += 3196.58
    for time, value in ((1300, 131072), (2113.25, 262144), (at, 0)):
        made.trace.count("sbuf_bytes", time, value)
    for time, value in ((1750, 1), (1850, 2), (at, 0)):
        made.trace.count("psum_banks", time, value)
    return made.trace
