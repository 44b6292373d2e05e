"""One machine running a program: what it computes, and when."""

from opentrn.sim.collectives import Piece, exchanged
from opentrn.sim.depend import check_waits, moved_trips
from opentrn.sim.functional import Machine
from opentrn.sim.legality import examine
from opentrn.sim.lockstep import Lockstep
from opentrn.sim.place import Placement, place
from opentrn.sim.plan import Plan, plan_of
from opentrn.sim.races import races
from opentrn.sim.replay import OutOfRange, Replay
from opentrn.sim.spill import noticed, spilled, spills_of
from opentrn.sim.strict import Finding, Strict
from opentrn.sim.threads import one_blas_thread
from opentrn.sim.timeline import Timeline, timeline
from opentrn.sim.together import timeline_together

__all__ = [
    "Finding",
    "Lockstep",
    "Machine",
    "OutOfRange",
    "Piece",
    "Placement",
    "Plan",
    "Replay",
    "Strict",
    "Timeline",
    "check_waits",
    "examine",
    "exchanged",
    "moved_trips",
    "noticed",
    "one_blas_thread",
    "place",
    "plan_of",
    "races",
    "spilled",
    "spills_of",
    "timeline",
    "timeline_together",
]
