"""Load executables and run them on devices."""

from opentrn.runtime.device import Device, devices
from opentrn.runtime.memory import MemoryUse
from opentrn.runtime.model import Model, load
from opentrn.runtime.tensors import to_torch

__all__ = ["Device", "MemoryUse", "Model", "devices", "load", "to_torch"]
