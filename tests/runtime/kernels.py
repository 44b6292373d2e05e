"""Small executables for the tests of the runtime."""

import numpy as np

import opentrn.nki as nki
import opentrn.nki.isa as nisa
import opentrn.nki.language as nl
from opentrn.base import float32
from opentrn.hw import chip
from opentrn.isa import Builder, Executable, Instruction, dma, form, operand_form, view_of


@nki.jit
def doubled(x):
    """out = 2 x, for x [128, N]."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def sum_and_difference(a, b):
    """a + b and a - b."""
    results = []
    left = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    right = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=a)
    nisa.dma_copy(dst=right, src=b)
    for op in (nl.add, nl.subtract):
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=tile, data1=left, data2=right, op=op)
        nisa.dma_copy(dst=out, src=tile)
        results.append(out)
    return tuple(results)


@nki.jit
def through_hbm(x):
    """x by way of two temporary HBM tensors, one after the other."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    first = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.hbm)
    second = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.hbm)
    nisa.dma_copy(dst=first, src=x)
    nisa.dma_copy(dst=second, src=first)
    nisa.dma_copy(dst=out, src=second)
    return out


@nki.jit
def gathered(x, rows):
    """Rows of x [R, N] by index, and x's first 128 rows by a hardware-made transfer."""
    out = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    chosen = nl.ndarray((128, 1), dtype=nl.int32, buffer=nl.sbuf)
    tile = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=chosen, src=rows)
    nisa.dma_copy(dst=tile, src=x[0:128], dge_mode=nisa.dge_mode.hwdge)
    nisa.dma_copy(
        dst=tile,
        src=x.ap([[x.shape[1], 128], [1, x.shape[1]]], vector_offset=chosen, indirect_dim=0),
    )
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def as_often_as_told(x, count):
    """Adds 1 to x as often as the first element of `count` says."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    told = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=told, src=count)
    turns = nisa.register_alloc()
    nisa.register_load(dst=turns, src=told)
    for _ in nl.dynamic_range(0, turns):
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1)
    nisa.dma_copy(dst=out, src=tile)
    return out


def compiled(kernel, *arrays):
    return Executable.of(nki.run(kernel, *arrays).program)


def floats(shape, dtype=np.float32):
    return (np.arange(np.prod(shape)).reshape(shape) % 7).astype(dtype)


def copies(count, nbytes=2**30, kind="input"):
    """A program that copies `count` HBM buffers of float32 to others; nothing is run."""
    made, machine = Builder("copies", "trn2"), chip("trn2")
    shape = (nbytes // 4,)
    for n in range(count):
        source = made.buffer("hbm", shape, float32, name=f"in{n}", kind="input")
        target = made.buffer("hbm", shape, float32, name=f"out{n}", kind=kind)
        made.inputs.append(source)
        if kind == "output":
            made.outputs.append(target)
        views = view_of(target), view_of(source)
        flags = tuple(flag.default for flag in dma.dma_copy.flags.values())
        one = form(dma.dma_copy, machine, tuple(map(operand_form, views)), flags)
        made.append(Instruction(one, views, (), None))
    return made.program()
