"""Devices: the NeuronCores of an instance or of one chip, each with its share of the HBM."""

from dataclasses import dataclass

from opentrn.base import bytes_text
from opentrn.hw import Chip, Fact, Instance, instance, instances, target

DEFAULT = "trn2"


@dataclass(frozen=True)
class Device:
    """One physical NeuronCore: `index` counts through the instance, `core` within its chip.

    `instance` is "" for a chip on its own.
    """

    index: int
    chip: Chip
    chip_index: int
    core: int
    instance: str = ""

    @property
    def name(self) -> str:
        """As the Neuron tools count: `ND 0:NC 4` is device (chip) 0, core 4."""
        return f"ND {self.chip_index}:NC {self.core}"

    @property
    def hbm_fact(self) -> Fact:
        """The fact that `hbm_bytes` is a share of."""
        return self.chip.fact("chip.hbm")

    @property
    def hbm_bytes(self) -> int:
        """The core's share of the chip's HBM in bytes; neighbours share the stack it lies in."""
        return int(self.chip.hbm) // int(self.chip.cores)

    def __str__(self) -> str:
        """Name, machine and memory."""
        machine = self.instance or self.chip.name
        return f"{self.name} of {machine}, {bytes_text(self.hbm_bytes)} of HBM"


def devices(name: str | Chip | Instance | None = None) -> list[Device]:
    """Every physical NeuronCore of an instance ("trn2.48xlarge"), or of one chip ("trn2").

    Without a name: those of one trn2.  Raises UnknownNameError `hw.target` for unknown names.
    """
    name = DEFAULT if name is None else name
    owner = _instance(name)
    chip = target(name) if owner is None else owner.chip
    cores = int(chip.cores)
    count = cores if owner is None else int(owner.cores)
    machine = "" if owner is None else owner.name
    return [Device(n, chip, n // cores, n % cores, machine) for n in range(count)]


def _instance(name: str | Chip | Instance) -> Instance | None:
    """The instance that `name` means; None when it means a chip (or nothing)."""
    if isinstance(name, Instance):
        return name
    if isinstance(name, Chip):
        return None
    plain = name.strip().lower().removeprefix("ml.")
    return instance(plain) if plain in instances() else None
