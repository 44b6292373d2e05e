"""A schedule in an order of service that is given: who shares an engine, a port or a ring waits
for whom is not decided by who asks first, but as another schedule had it."""

from opentrn.sim.timing import Columns, Rates, Run, Schedule

BEGIN, TRIGGER, TRANSFER = range(3)


class Noted(Run):
    """A schedule that keeps the order in which it serves."""

    def __init__(self, columns: Columns, rates: Rates):
        super().__init__(columns, rates)
        self.served: list[tuple[int, int]] = []

    def begin(self, row, engine, arrival):
        self.served.append((BEGIN, row))
        super().begin(row, engine, arrival)

    def trigger(self, row, stream, arrival):
        self.served.append((TRIGGER, row))
        super().trigger(row, stream, arrival)

    def transfer(self, row, arrival):
        self.served.append((TRANSFER, row))
        super().transfer(row, arrival)


def noted(columns: Columns, rates: Rates) -> Noted:
    """The schedule of `columns`, with `served`: what was served when, in order."""
    run = Noted(columns, rates)
    run.run()
    return run


def held(columns: Columns, rates: Rates, served: list[tuple[int, int]]) -> Schedule:
    """The schedule of `columns` with everything served in the order of `served`."""
    run, reached = Run(columns, rates), {}
    for kind, row in served:
        stream = run.stream[row]
        if kind == TRANSFER:
            run.transfer(row, reached[row])
            continue
        assert run.satisfied(stream, row)  # an order in which each finds what it waits for done
        arrival = max(run.ready[stream], run.last_start[stream])
        if kind == BEGIN:
            run.begin(row, stream, arrival)
        else:
            run.trigger(row, stream, arrival)
            reached[row] = run.reached[stream]
    return run.result
