"""Devices and memory: numbers against data sheets and sums by hand."""

import numpy as np
import pytest

from opentrn import hw, runtime
from opentrn.base import CapacityError, UnknownNameError
from opentrn.isa import Executable, Loop, Program
from opentrn.runtime.memory import memory_of, memory_use, scratchpad_bytes
from tests.runtime import kernels

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "cores", "gib", "last"),
    [
        # HBM per chip / physical cores: 32 / 2, 96 / 8, 144 / 8
        ("trn1", 2, 16, (0, 1)),
        ("inf2", 2, 16, (0, 1)),
        ("trn2", 8, 12, (0, 7)),
        ("trn3", 8, 18, (0, 7)),
        ("trn1.32xlarge", 32, 16, (15, 1)),
        ("trn2.48xlarge", 128, 12, (15, 7)),
        ("ml.trn2.48xlarge", 128, 12, (15, 7)),
        ("inf2.xlarge", 2, 16, (0, 1)),
    ],
)
def test_devices(name, cores, gib, last):
    found = runtime.devices(name)
    assert len(found) == cores
    assert [device.index for device in found] == list(range(cores))
    assert {device.hbm_bytes for device in found} == {gib * GIB}
    assert (found[-1].chip_index, found[-1].core) == last


def test_device_names():
    assert len(runtime.devices()) == 8
    assert runtime.devices(hw.chip("trn1")) == runtime.devices("trn1")
    assert runtime.devices(hw.instance("trn1.2xlarge"))[1].instance == "trn1.2xlarge"
    assert str(runtime.devices("trn2.48xlarge")[12]) == (
        "ND 1:NC 4 of trn2.48xlarge, 12.0 GiB of HBM"
    )
    with pytest.raises(UnknownNameError):
        runtime.devices("trn9")


def test_memory_by_hand():
    x = kernels.floats((128, 64))
    model = runtime.load(kernels.compiled(kernels.through_hbm, x))
    use = model.memory
    assert use["model code"] == 3 * 64
    assert use["microcode"] == 96_000_000
    assert use["model constants"] == 0
    assert use["input tensors"] == use["output tensors"] == 128 * 64 * 4
    assert use["shared scratchpad"] == 512_000_000  # one page; two tensors live at once in it
    assert scratchpad_bytes(model.program) == 2 * 128 * 64 * 4
    assert use.total == sum(row.nbytes for row in use.rows)
    assert use.available == 12 * GIB
    assert {row.grade for row in use.rows} <= {"stated", "fitted", "derived", "assumed"}
    table = use.table()
    assert max(map(len, table.splitlines())) <= 100
    assert "microcode" in table.splitlines()[2]


def test_constants_and_rings():
    executable = kernels.compiled(kernels.doubled, kernels.floats((128, 8)))
    program = executable.program
    # The input becomes a constant: it moves from one category to the other.
    held = program.inputs[0]
    moved = Program(
        name="held", target="trn2", body=program.body, buffers=program.buffers, inputs=[],
        outputs=program.outputs, constants={held: kernels.floats((128, 8))},
    )  # fmt: skip
    use = runtime.load(Executable.of(moved)).memory
    assert use["model constants"] == 128 * 8 * 4
    assert use["input tensors"] == 0
    # x is dense in HBM, a tile has a row for each partition: 128 descriptors each way.
    assert use["DMA rings spill"] == 128 * 32
    assert use["DMA rings IO"] == 128 * 32


def test_scratchpad_lives_and_dies():
    x = kernels.floats((128, 64))
    program = kernels.compiled(kernels.through_hbm, x).program
    size = 128 * 64 * 4
    # Without the copy between the two, they never live at the same time.
    apart = Program(
        name="apart", target="trn2", body=[program.body[0], program.body[2]],
        buffers=program.buffers, inputs=program.inputs, outputs=program.outputs,
    )  # fmt: skip
    assert scratchpad_bytes(program) == 2 * size
    assert scratchpad_bytes(apart) == size


def test_a_loop_keeps_what_it_touches():
    once = kernels.copies(3, 4096)
    looped = Program(
        name="looped", target="trn2", body=[Loop(once.body, stop=4)], buffers=once.buffers,
        inputs=once.inputs, outputs=[],
    )  # fmt: skip
    assert scratchpad_bytes(once) == 4096
    assert scratchpad_bytes(looped) == 3 * 4096


def test_generated_descriptors_need_no_rings():
    program = kernels.compiled(kernels.gathered, kernels.floats((256, 8)),
                               np.zeros((128, 1), np.int32)).program  # fmt: skip
    modes = [one.opcode for one in program.instructions()]
    assert modes == ["dma_copy"] * 4
    use = memory_use(program, runtime.devices()[0])
    # The gather and the transfer by hardware descriptors have none; the indices (128 rows of one
    # element) and the store (128 rows) do.
    assert use["DMA rings IO"] == (128 + 128) * 32
    assert use["DMA rings spill"] == 0


def test_what_does_not_fit_is_refused():
    small = memory_use(kernels.copies(5), runtime.devices()[0])
    assert small["input tensors"] == 5 * GIB
    assert small["shared scratchpad"] == 512_000_000 * 3  # 1 GiB at a time: each lives for one copy
    executable = Executable.of(kernels.copies(13))
    with pytest.raises(CapacityError, match="needs 14.5 GiB of HBM, there are 12.0 GiB") as raised:
        runtime.load(executable)
    error = raised.value
    assert error.code == "runtime.hbm"
    assert error.neuron == "NRT_RESOURCE 4"
    assert "input tensors 13.0 GiB" in error.what
    assert len(str(error).splitlines()) <= 5
    assert "microcode" in error.__notes__[0]
    # 13 GiB of inputs and 1.43 of scratchpad, halved, and 92 MiB of microcode for each core.
    assert error.fix == "spread it evenly over 2 cores (7.31 GiB on each)"
    # A core of trn3 has more, but an executable runs only on its own target.
    assert memory_use(kernels.copies(13), runtime.devices("trn3")[0]).total < 18 * GIB


def test_what_would_fit_is_told():
    device = runtime.devices()[0]
    sizes = {"constants": 11 * GIB, "inputs": GIB, "outputs": 0, "scratchpad": 0}
    told = memory_of(0, sizes, (0, 0), device).would_fit()
    room = 11 * GIB - memory_of(0, sizes, (0, 0), device).total + 12 * GIB
    assert told.endswith(f", or store weights in a dtype that takes {room / (11 * GIB):.2f} of "
                         "the model constants")  # fmt: skip
    sizes = {"constants": GIB, "inputs": GIB, "outputs": 0, "scratchpad": 40 * 512_000_000}
    told = memory_of(0, sizes, (0, 0), device).would_fit()
    assert "take a batch or sequence that takes 0.5" in told  # 10 GiB of 19.1
    assert "model constants" not in told  # without any of them it would not fit either
    sizes = {"constants": 0, "inputs": 13000 * GIB, "outputs": 0, "scratchpad": 0}
    assert "many more" in memory_of(0, sizes, (0, 0), device).would_fit()


def test_pages_of_trn1_are_small():
    program = kernels.compiled(kernels.through_hbm, kernels.floats((128, 64))).program
    assert memory_use(program, runtime.devices("trn1")[0])["shared scratchpad"] == 64_000_000
    with pytest.raises(KeyError):
        memory_use(program, runtime.devices("trn1")[0])["weights"]


def test_outputs_that_are_inputs_count_once():
    program = kernels.copies(1, 4096, "output")
    program.outputs.append(program.inputs[0])
    use = memory_use(program, runtime.devices()[0])
    assert use["input tensors"] == 4096
    assert use["output tensors"] == 4096
    assert np.sum([row.nbytes for row in use.rows]) == use.total
