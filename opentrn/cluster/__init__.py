"""Many machines over simulated time: links, failures, checkpoints, traffic."""

from opentrn.cluster.faults import Fault, Setting, faults, ring_share, settings
from opentrn.cluster.job import Job, best_interval, expected_goodput, mean_time_between
from opentrn.cluster.page import serving_page, training_page
from opentrn.cluster.run import Run, runs_text
from opentrn.cluster.served import Served
from opentrn.cluster.service import Pace, Service
from opentrn.cluster.serving import serve
from opentrn.cluster.training import train
from opentrn.cluster.world import World

__all__ = [
    "Fault", "Job", "Pace", "Run", "Served", "Service", "Setting", "World", "best_interval",
    "expected_goodput", "faults", "mean_time_between", "ring_share", "runs_text", "serve",
    "serving_page", "settings", "train", "training_page",
]  # fmt: skip
