"""Every collective algorithm once, as a schedule of sends and reduces."""

from opentrn.comm import hierarchical, kangaring, mesh, rdh, ring, tree
from opentrn.comm.choose import bandwidths, bus_factor, choose
from opentrn.comm.cycles import cycles, orders
from opentrn.comm.groups import Group
from opentrn.comm.schedule import Schedule, Send, run
from opentrn.comm.topology import Topology, loads, place

__all__ = [
    "Group",
    "Schedule",
    "Send",
    "Topology",
    "bandwidths",
    "bus_factor",
    "choose",
    "cycles",
    "hierarchical",
    "kangaring",
    "loads",
    "mesh",
    "orders",
    "place",
    "rdh",
    "ring",
    "run",
    "tree",
]
