"""One machine running a program: what it computes, and when.

Where to look:

*What it computes.* `functional` runs instructions on `memory`; `plan` is how those of one form run,
`groups` sums in PSUM, `states` what engines keep, `dynamic` and `columns` addresses from registers
and index tiles, `late` work put off.  `replay` runs a program again, `exposed` says what it must
blank before.  `lockstep` runs several cores, `collectives` moves data between them, `peers` finds
what they touch without order, `threads` holds BLAS to one thread.

*What is wrong with it.* `strict` lists what is noticed; `legality` finds it without computing,
`races` finds accesses without order.

*When.* `timeline` puts the steps together:

1. `place` gives tiles their addresses (`beside`: small ones beside each other); what does not fit,
   `spill` sends to HBM.  `order` is a list scheduler's order of instructions.
2. `depend` finds who waits for whom and writes it on a `tape`; `overlaps` knows which accesses
   meet, `steady` when a device loop need not be unrolled further.
3. `rows` says what the clock needs of a form, `flatten` makes columns of a tape, `coded` short.
4. `timing` is the clock (`timing_classes`: classes of transfers, `timing_turns`: queues in turn),
   `repeats` skips what repeats itself in time, `together` runs cores that share HBM.

*Steps 1 and 2 for long programs whose loops were unrolled*, with the same result: `folded` puts
together `letters` (instructions that look alike), `recur` (where letters repeat), `turns` (which
tiles each turn makes), `laps` (the addresses of `place`, until they come again), `search` (the
waits of `depend` in one memory) and `woven` (those of all memories in one tape); `apart` knows
tensors nobody waits for, `words` reads many objects at once.

*The same compiled by Numba*, where it is installed: files in `_fast`, each beside the plain one
that specifies it (`waits_fast`: `depend`); `accesses` is a table of all accesses for them, and
`regions_fast` says which of those meet.  `compiled` decides when they pay.
"""

from opentrn.sim.collectives import Piece, exchanged
from opentrn.sim.depend import check_waits, moved_trips
from opentrn.sim.functional import Machine
from opentrn.sim.legality import examine
from opentrn.sim.lockstep import Lockstep
from opentrn.sim.peers import landing, overlapping
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
    "landing",
    "moved_trips",
    "noticed",
    "one_blas_thread",
    "overlapping",
    "place",
    "plan_of",
    "races",
    "spilled",
    "spills_of",
    "timeline",
    "timeline_together",
]
