"""`torch_xla.core`: the package that holds `xla_model`."""

from opentrn.dropin.standins import xla_model

# Imported under its own name it is a package.
__path__: list[str] = []

__all__ = ["xla_model"]
