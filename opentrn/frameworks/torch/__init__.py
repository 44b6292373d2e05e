"""PyTorch on a simulated Trainium: importing this registers `torch.compile(backend="neuron")`."""

from opentrn.frameworks.torch.backend import neuron, register
from opentrn.frameworks.torch.device import name_device
from opentrn.frameworks.torch.kernels import NkiOp, nki_op, wrap_nki
from opentrn.frameworks.torch.report import Report, report, reset
from opentrn.frameworks.torch.trace import TracedModel, load, save, trace

register()
_DEVICE = name_device()

__all__ = [
    "NkiOp",
    "Report",
    "TracedModel",
    "load",
    "neuron",
    "nki_op",
    "register",
    "report",
    "reset",
    "save",
    "trace",
    "wrap_nki",
]
