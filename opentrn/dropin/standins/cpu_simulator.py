"""`nki_cpu_simulator`: the package through which the NKI Library's tests run kernels on a CPU."""

from opentrn.dropin.standins import cpu_simulator_nki as nki

# Imported under its own name it is a package.
__path__: list[str] = []

__all__ = ["nki"]
