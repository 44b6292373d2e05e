"""PyTorch on a simulated Trainium: importing this registers `torch.compile(backend="neuron")`."""

from opentrn.frameworks.torch.backend import neuron, register
from opentrn.frameworks.torch.buckets import BucketedModel, load_buckets, trace_buckets
from opentrn.frameworks.torch.device import name_device
from opentrn.frameworks.torch.diff import Difference, diff
from opentrn.frameworks.torch.kernels import NkiOp, nki_op, wrap_nki
from opentrn.frameworks.torch.report import Report, report, reset
from opentrn.frameworks.torch.trace import ExactWarning, TracedModel, load, save, trace
from opentrn.frameworks.torch.training import TrainStep, train_step
from opentrn.frameworks.torch.verdicts import Analysis, Verdict, analyze

register()
_DEVICE = name_device()

__all__ = [
    "Analysis",
    "BucketedModel",
    "Difference",
    "ExactWarning",
    "NkiOp",
    "Report",
    "TracedModel",
    "TrainStep",
    "Verdict",
    "analyze",
    "diff",
    "load",
    "load_buckets",
    "neuron",
    "nki_op",
    "register",
    "report",
    "reset",
    "save",
    "trace",
    "trace_buckets",
    "train_step",
    "wrap_nki",
]
