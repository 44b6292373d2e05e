"""Long repetitions in time: timed turn by turn until they are steady, then moved on as a whole.

A schedule is local.  When an instruction starts follows from what happens at that moment: results
that become visible, engines, ports, rings and HBM that become free.  So if turns [low, high] of a
repetition are copies of each other, `period` turns and `shift` ns apart, and reach at most `reach`
turns into each other, then a schedule in which more such turns stand in the middle obeys every rule
of the clock, because around each instruction it looks like the short one.  As the rules have one
solution, it is what the clock would have found; times are whole ticks, so even their bits agree.

Not local is the current limiter of the Tensor Engine, whose windows stand still while turns move.
So its state has to stay the same in the steady part and behind it, and the work of every window of
the long schedule is counted to see that it does.  Where any of this fails, every turn is timed.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from opentrn.sim.tape import Flow, Repeat
from opentrn.sim.timing import TENSOR, TICK, Rates, Schedule

_TURNS = (6, 24, 96, 400)  # turns timed one by one, at first and when that was too few
_WORTH = 4000  # instructions that must be saved
_PERIODS = 12
_MOST = 6  # repetitions of one program that are tried
_TIMES = ("start", "end", "visible", "issue", "since")

Run = Callable[[Flow], Schedule]


class Steady(NamedTuple):
    """Turn `at` and the `period` turns from there on stand for all that are left out."""

    at: int
    period: int
    shift: float


def schedule(flow: Flow, rates: Rates, run: Run) -> "Schedule | Prolonged":
    """The schedule of `flow`; `run` times a flow instruction by instruction."""
    worth = [r for r in flow.repeats if r.length * (r.count - 2 * _TURNS[0]) >= _WORTH]
    if not worth:
        return run(flow)
    worth.sort(key=lambda r: -r.length * r.count)
    longest, others = worth[0], tuple(worth[1:_MOST])
    chosen = Flow(flow.parts, flow.rows, (longest, *others))
    for turns in _TURNS:
        if 2 * turns > longest.count:
            break
        found = _prolonged(chosen, longest, turns, rates, run)
        if found is not None:
            return found
    return schedule(Flow(flow.parts, flow.rows, others), rates, run)


def _prolonged(flow: Flow, repeat: Repeat, turns: int, rates: Rates, run: Run):
    """The schedule, when `turns` turns (or a few more) are enough to know the rest."""
    few = flow.shortened(repeat, turns)
    short = schedule(few, rates, run)
    steady = settled(short, repeat, turns, rates)
    if steady is None:
        return None
    more = (repeat.count - turns) % steady.period
    if more:
        turns += more
        few = flow.shortened(repeat, turns)
        short = schedule(few, rates, run)
        steady = settled(short, repeat, turns, rates, (steady.period,))
        if steady is None:
            return None
    long = Prolonged(short, repeat, turns, steady)
    return long if rates.cold_rate >= 1.0 or _limiter_stays(few, long, rates) else None


# ---------------------------------------------------------------------- is it steady?


def settled(
    found: "Schedule | Prolonged",
    repeat: Repeat,
    turns: int,
    rates: Rates,
    periods: tuple[int, ...] = (),
) -> Steady | None:
    """Where turns can be put in without anything looking different, or None."""
    times = np.stack([getattr(found, name) for name in _TIMES])
    if not (np.floor(times / TICK) * TICK == times).all():
        return None  # a rate that is no power of two: sums are rounded
    begin, cut = repeat.begin, repeat.begin + turns * repeat.length
    own = times[:, begin:cut].reshape(len(_TIMES), turns, repeat.length)
    bound = found.binding[begin:cut].reshape(turns, repeat.length)
    reason = found.reason[begin:cut].reshape(turns, repeat.length)
    for period in periods or range(1, _PERIODS + 1):
        part = _copies(own, bound, reason, repeat.length, period)
        if part is not None:
            steady = _embedded(times, own, repeat, part, period, rates)
            if steady is not None:
                return steady
    return None


def _copies(own, bound, reason, length: int, period: int) -> tuple[int, int, float] | None:
    """(first, last, shift) of the longest stretch of turns that are copies `period` apart."""
    apart = own[:, period:] - own[:, :-period]
    same = (apart == apart[:1, :, :1]).all(axis=(0, 2)) & (apart[0, :, 0] > 0.0)
    before, after = bound[:-period], bound[period:]
    moved = (after - before == period * length) | ((after == -1) & (before == -1))
    same &= moved.all(axis=1) & (reason[period:] == reason[:-period]).all(axis=1)
    shift = apart[0, :, 0]
    best, first = None, 0
    for turn in range(len(same) + 1):
        if turn < len(same) and same[turn] and shift[turn] == shift[first]:
            continue
        if turn > first and same[first] and (best is None or turn - first > best[1] - best[0]):
            best = first, turn, float(shift[first])
        first = turn
    return None if best is None else (best[0], best[1] - 1 + period, best[2])


def _embedded(times, own, repeat: Repeat, part, period: int, rates: Rates) -> Steady | None:
    """Whether the copies [low, high] are enough of them, seen from everything around."""
    low, high, shift = part
    margin = rates.semaphore_ns + rates.issue_ns
    # A turn extends from what its instructions waited for until others have seen its results.
    from_ns = own[[0, 3, 4]].min(axis=(0, 2))
    till_ns = own[2].max(axis=1) + margin
    behind = times[:, repeat.begin + own.shape[1] * repeat.length :]
    if behind.size:
        high = min(high, _before(till_ns, behind[[0, 3, 4]].min()) - 1)
    if repeat.begin:
        ended = times[2, : repeat.begin].max() + margin
        low = max(low, int((from_ns <= ended).sum()))
    if high - low < period or (np.diff(from_ns[low:]) <= 0.0).any():
        return None
    # The earliest turn that each one meets.
    meets = np.array([_before(till_ns, begin) for begin in from_ns])
    reach = int((np.arange(low, high + 1) - meets[low : high + 1]).max())
    at = low + reach
    fits = at + period + reach <= high
    later_ones_meet = (meets[high + 1 :] >= at).all()
    earlier_ones_end = high + 1 == len(from_ns) or till_ns[:at].max(initial=0.0) < from_ns[high + 1]
    return Steady(at, period, shift) if fits and later_ones_meet and earlier_ones_end else None


def _before(till_ns: np.ndarray, time: float) -> int:
    """How many of the first turns have ended for good at `time`."""
    ended = np.maximum.accumulate(till_ns) < time
    return int(ended.sum())


# ---------------------------------------------------------------------- the long schedule


class Prolonged:
    """A schedule with turns put in; its columns are those of `Schedule`, made when asked for."""

    def __init__(self, short: Schedule, repeat: Repeat, turns: int, steady: Steady):
        self.short, self.shift = short, steady.shift
        self.first = repeat.begin + steady.at * repeat.length
        self.length = steady.period * repeat.length
        self.times = (repeat.count - turns) // steady.period

    def __getattr__(self, name: str) -> np.ndarray:
        if name not in Schedule._fields:
            raise AttributeError(name)
        column = getattr(self.short, name)
        made = column if not self.times else self._stretched(name, column)
        vars(self)[name] = made
        return made

    def _stretched(self, name: str, column: np.ndarray) -> np.ndarray:
        first, times, shift = self.first, self.times, self.shift
        head, turn, tail = column[:first], column[first : first + self.length], column[first:]
        step = np.arange(times, dtype=column.dtype)[:, None]
        if name == "reason":
            middle = np.tile(turn, times)
        elif name == "binding":
            middle = np.where(turn >= 0, turn + self.length * step, -1).ravel()
            tail = np.where(tail >= 0, tail + self.length * times, -1)
        else:
            middle, tail = (turn + shift * step).ravel(), tail + shift * times
        return np.concatenate((head, middle, tail))


# ---------------------------------------------------------------------- the current limiter


class _Work(NamedTuple):
    """Work of the Tensor Engine: `share` of what it could do full-speed from `start` to `end`."""

    start: np.ndarray
    end: np.ndarray
    work: np.ndarray

    def until(self, time: np.ndarray) -> np.ndarray:
        """Work done up to each time; instructions follow each other."""
        if not len(self.start):
            return np.zeros(len(time))
        done = np.concatenate((np.zeros(1), np.cumsum(self.work)))
        last = np.searchsorted(self.start, time, side="right") - 1
        begun = np.maximum(last, 0)
        length = np.maximum(self.end[begun] - self.start[begun], TICK)
        part = np.clip((time - self.start[begun]) / length, 0.0, 1.0)
        return np.where(last < 0, 0.0, done[begun] + part * self.work[begun])


def _limiter_stays(few: Flow, long: Prolonged, rates: Rates) -> bool:
    """Whether the current limiter stays warm, or cold, from the steady turns to the end."""
    is_tensor = np.array([row.stream == TENSOR and row.share > 0.0 for row in few.rows], bool)
    tensor = np.flatnonzero(is_tensor[few.row])
    head, turn = np.searchsorted(tensor, (long.first, long.first + long.length))
    if head == len(tensor):
        return True
    table = np.array([(row.busy, row.share) for row in few.rows])[few.row[tensor]]
    start, end = long.short.start[tensor], long.short.end[tensor]
    busy = np.round(table[:, 0] / TICK) * TICK
    warm, cold = end - start == busy, (end - start) * rates.cold_rate == busy
    if not (warm[head:].all() or cold[head:].all()) or (start[1:] < end[:-1]).any():
        return False
    work = busy * table[:, 1]
    parts = [_Work(start[a:b], end[a:b], work[a:b]) for a, b in
             ((0, head), (head, turn), (head, len(tensor)))]  # fmt: skip
    return _windows_agree(parts, long, bool(warm[head]), rates)


def _windows_agree(parts: list[_Work], long: Prolonged, warm: bool, rates: Rates) -> bool:
    """Whether the work of each window keeps the limiter as it is until the last instruction.

    `parts`: before the steady turns, one period of them, and from there to the end.
    """
    before, period, rest = parts
    window, begin, later = rates.window_ns, rest.start[0], long.shift * long.times
    edge = window * np.arange(int(begin / window), int((rest.start[-1] + later) / window) + 1)
    copies = np.clip(np.floor((edge - begin) / long.shift), 0, long.times)
    within = np.where(copies < long.times, period.until(edge - copies * long.shift), 0.0)
    done = before.until(edge) + copies * period.work.sum() + within + rest.until(edge - later)
    enough = np.diff(done) >= rates.warm_share * window
    return bool((enough == warm).all())


__all__ = ["Prolonged", "schedule"]
