"""Instructions by which the two cores of a logical NeuronCore meet: barrier and exchange.

They exist from NeuronCore-v3 on, inside a launch on two cores.  What they do needs both cores, so
the session that runs the cores together carries it out; `run` alone only says what one core sees.
"""

from opentrn.isa.define import Instr
from opentrn.isa.enums import dma_engine, engine
from opentrn.isa.operands import REQUIRED, Cycles, Flag, In, Out, assumed

# Bytes per partition a GpSimd exchange may carry, by item size (NKI ISA reference, sendrecv).
GPSIMD_BYTES = {4: 1024, 2: 512, 1: 256}


class Meeting(Instr, abstract=True):
    """An instruction that waits for another core."""

    generations = (3, 4)
    meets = True


def _cores(value) -> tuple:
    """Cores as a tuple; one number is one core."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


class core_barrier(Meeting):
    """No core goes on before every core of `cores` has come here; other engines are not stopped.

    `data` says what the cores wait for: by the reference a tensor in shared HBM, in the NKI
    Library (bwmm_shard_on_I at d2ad3a57) also an SBUF tile.
    """

    engines = ("gpsimd", "vector", "scalar", "tensor", "sync")
    data = In("hbm|sbuf", "*", engine_side=False)
    cores = Flag(REQUIRED, "the cores that meet: (0, 1)", read=_cores)
    engine = Flag(engine.gpsimd, "the engine that waits")

    def rules(i):
        """Exactly the two cores of a logical NeuronCore."""
        yield (
            i.cores == (0, 1),
            f"`cores` is {i.cores}; the two cores of a logical NeuronCore are (0, 1)",
            "pass cores=(0, 1)",
        )

    def run(i, data):
        """Nothing is computed."""
        return {}

    cycles = assumed(
        "no public figure; two remote semaphore updates, taken as the GpSimd start cost twice",
        lambda i, chip: Cycles(2 * chip.gpsimd.start_cycles),
    )


class sendrecv(Meeting):
    """Sends `src` to the other core's `dst` and receives the other's `src` into `dst`."""

    engines = ("gpsimd", "sync")
    src = In("sbuf", "*")
    dst = Out("sbuf", "*")
    send_to_rank = Flag(REQUIRED, "the core that receives `src`")
    recv_from_rank = Flag(REQUIRED, "the core whose `src` arrives in `dst`")
    pipe_id = Flag(REQUIRED, "exchanges of one pipe happen together")
    dma_engine = Flag(dma_engine.dma, "the shared rings, or GpSimd's own DMA")

    def choose(self) -> str:
        """GpSimd drives its own DMA; the Sync Engine triggers the rings."""
        return "gpsimd" if self.dma_engine is dma_engine.gpsimd_dma else "sync"

    def rules(i):
        """Equal tiles, ranks 0 and 1, and the size GpSimd's DMA takes."""
        yield (
            i.src.dtype == i.dst.dtype and i.src.shape == i.dst.shape,
            f"`src` {i.src.dtype}{list(i.src.shape)} and `dst` {i.dst.dtype}{list(i.dst.shape)} "
            "must have one dtype and shape",
            "make the tiles alike",
        )
        yield (
            {int(i.send_to_rank), int(i.recv_from_rank)} <= {0, 1},
            "ranks are 0 and 1: the cores of one logical NeuronCore",
            "pass 1 - nl.program_id(0)",
        )
        most = GPSIMD_BYTES.get(i.src.dtype.itemsize, 0)
        size = i.src.free * i.src.dtype.itemsize
        yield (
            i.dma_engine is dma_engine.dma or size <= most,
            f"GpSimd's DMA carries at most {most} bytes of {i.src.dtype} per partition, not {size}",
            "use dma_engine=nisa.dma_engine.dma, or send in parts",
        )

    def run(i, src):
        """What this core would receive from one that holds the same."""
        return {"dst": src}

    cycles = assumed(
        "no public figure; the tile's bytes at a DMA ring's rate after its start, in engine cycles",
        lambda i, chip: _exchange(i, chip),
    )


def _exchange(i, chip) -> Cycles:
    seconds = chip.dma.start + i.src.nbytes / (chip.dma.engine_rate * chip.dma.engines)
    clock = getattr(chip, i.engine_name).clock
    return Cycles(64.0, latency=seconds * clock)
