"""The enumerations of `nki.isa`, named and numbered as NKI 0.6 publishes them.

Source: NKI 0.6 API reference (aws-neuron-sdk 81ce03ae, nki/api/nki/isa/__init__.py).
"""

import enum


class Enum(enum.Enum):
    """Members that are told apart as objects: their hash is taken for every instruction."""

    __hash__ = object.__hash__


class engine(Enum):
    """The engines of one NeuronCore an instruction may be sent to."""

    tensor = 1
    vector = 5
    scalar = 2
    gpsimd = 3
    dma = 4
    sync = 6
    unknown = 0


class reduce_cmd(Enum):
    """What an instruction does with its engine's accumulator registers."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class dge_mode(Enum):
    """Who generates DMA descriptors: runtime (none), GpSimd (swdge) or hardware (hwdge)."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(Enum):
    """What a dynamic address outside its tensor does: raise, or drop that transfer."""

    error = 0
    skip = 1


class matmul_perf_mode(Enum):
    """Tensor Engine performance modes; `double_row` packs two FP8 rows (gen3 and later)."""

    none = "none"
    double_row = "double_row"


class nc_version(Enum):
    """NeuronCore generations: gen2 is trn1/inf2, gen3 is trn2, gen4 is trn3."""

    gen2 = 2
    gen3 = 3
    gen4 = 4

    def __int__(self):
        return self.value

    def _order(self, other):
        return other.value if isinstance(other, nc_version) else other

    def __lt__(self, other):
        return self.value < self._order(other)

    def __le__(self, other):
        return self.value <= self._order(other)

    def __gt__(self, other):
        return self.value > self._order(other)

    def __ge__(self, other):
        return self.value >= self._order(other)


class dma_engine(Enum):
    """The DMA that carries a core-to-core transfer: the shared rings, or GpSimd's own."""

    dma = 1
    gpsimd_dma = 2
