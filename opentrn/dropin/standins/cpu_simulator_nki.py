"""`nki_cpu_simulator.nki`: everything `nki` has, and `cpu_simulate(kernel)[cores](**inputs)`."""

from collections.abc import Callable
from typing import Any

from opentrn import nki
from opentrn.dropin import environment

# Imported under its own name it is a package.
__path__: list[str] = []


class Simulated:
    """A kernel to be called with arrays by name; `[cores]` says on how many cores."""

    def __init__(self, kernel: Callable) -> None:
        self.kernel = nki.jit(kernel)

    def __getitem__(self, cores: int) -> "Simulated":
        """The same kernel on `cores` cores of a logical NeuronCore."""
        return Simulated(self.kernel[cores])

    def __call__(self, *args: Any, **inputs: Any) -> Any:
        """Run for the chip that NKI_NC_VERSION names (gen3 and so on) and return the outputs."""
        with nki.use_target(environment.target() or nki.current_chip().name):
            return nki.run(self.kernel, *args, **inputs).outputs


def cpu_simulate(kernel: Callable) -> Simulated:
    """The kernel, ready to run on the simulator."""
    return Simulated(kernel)


def __getattr__(name: str) -> Any:
    """Everything else is `nki`'s."""
    return getattr(nki, name)


__all__ = ["Simulated", "cpu_simulate"]
