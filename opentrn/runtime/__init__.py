"""Load executables and run them on devices."""

from opentrn.runtime.device import Device, devices
from opentrn.runtime.memory import MemoryUse
from opentrn.runtime.model import Model, load

__all__ = ["Device", "MemoryUse", "Model", "devices", "load"]
