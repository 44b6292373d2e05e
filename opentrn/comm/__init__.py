"""Every collective algorithm once, as a schedule of sends and reduces."""

from opentrn.comm import hierarchical, kangaring, mesh, nccom, rdh, ring, tree
from opentrn.comm.build import build, wire_seconds
from opentrn.comm.choose import bandwidths, bus_factor, choose, steps
from opentrn.comm.cycles import cycles, orders
from opentrn.comm.groups import Group
from opentrn.comm.schedule import Schedule, Send, run
from opentrn.comm.tiers import NETWORK, Tier, tiered_all_to_all, tiered_seconds, tiered_send
from opentrn.comm.timing import Part, Timing, pick, time
from opentrn.comm.topology import Topology, links, loads, place

__all__ = [
    "Group", "NETWORK", "Part", "Schedule", "Send", "Tier", "Timing", "Topology", "bandwidths",
    "build", "bus_factor", "choose", "cycles", "hierarchical", "kangaring", "links", "loads",
    "mesh", "nccom", "orders", "pick", "place", "rdh", "ring", "run", "steps", "tiered_all_to_all",
    "tiered_seconds", "tiered_send", "time", "tree", "wire_seconds",
]  # fmt: skip
