"""Every collective algorithm once, as a schedule of sends and reduces."""

from opentrn.comm import mesh, ring
from opentrn.comm.groups import Group
from opentrn.comm.schedule import Schedule, Send, run

__all__ = ["Group", "Schedule", "Send", "mesh", "ring", "run"]
