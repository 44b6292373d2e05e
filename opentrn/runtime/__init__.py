"""Load executables and run them on devices."""

from opentrn.runtime.device import Device, devices
from opentrn.runtime.memory import MemoryUse
from opentrn.runtime.model import Model, load
from opentrn.runtime.rounding import stochastic_rounding
from opentrn.runtime.tensors import to_torch
from opentrn.runtime.timed import TimedOnly

__all__ = ["Device", "MemoryUse", "Model", "TimedOnly", "devices", "load",
           "stochastic_rounding", "to_torch"]  # fmt: skip
