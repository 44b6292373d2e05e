"""Many machines over simulated time: links, failures, checkpoints, traffic."""

from opentrn.cluster.faults import Fault, Setting, faults, ring_share, settings
from opentrn.cluster.job import Job, best_interval, expected_goodput, mean_time_between
from opentrn.cluster.run import Run
from opentrn.cluster.training import train
from opentrn.cluster.world import World

__all__ = [
    "Fault", "Job", "Run", "Setting", "World", "best_interval", "expected_goodput", "faults",
    "mean_time_between", "ring_share", "settings", "train",
]  # fmt: skip
