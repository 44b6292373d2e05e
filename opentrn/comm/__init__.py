"""Every collective algorithm once, as a schedule of sends and reduces."""

from opentrn.comm import mesh, rdh, ring
from opentrn.comm.choose import bandwidths, bus_factor, choose
from opentrn.comm.groups import Group
from opentrn.comm.schedule import Schedule, Send, run

__all__ = [
    "Group",
    "Schedule",
    "Send",
    "bandwidths",
    "bus_factor",
    "choose",
    "mesh",
    "rdh",
    "ring",
    "run",
]
