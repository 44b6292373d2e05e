"""Programs made of real instruction forms, for the tests of the timing side."""

from opentrn.base import Where, bfloat16, float32
from opentrn.hw import chip
from opentrn.isa import (
    INSTRUCTIONS,
    Buffer,
    Builder,
    ImmediateForm,
    Instruction,
    Register,
    RegisterForm,
    View,
    form,
    operand_form,
    view_of,
)

TRN2 = chip("trn2")


class Writer:
    """Writes a program instruction by instruction."""

    def __init__(self, target=TRN2):
        self.target, self.builder = target, Builder("test", target.name)
        self.line = 0

    def buffer(self, space: str, shape, dtype=bfloat16, **more) -> Buffer:
        """A buffer at the next line of an imaginary file."""
        self.line += 1
        return self.builder.buffer(
            space, shape, dtype, where=Where("kernel.py", self.line), **more
        )

    def add(self, name: str, **given) -> Instruction:
        """One instruction; buffers stand for their whole view, flags go by name."""
        cls = INSTRUCTIONS[name]
        flags = tuple(given.pop(flag, f.default) for flag, f in cls.flags.items())
        operands, forms = [], []
        for operand, declared in cls.operands.items():
            value = given.pop(operand, getattr(declared, "default", None))
            value = view_of(value) if isinstance(value, Buffer) else value
            operands.append(value)
            if isinstance(value, View):
                forms.append(operand_form(value))
            elif isinstance(value, Register):
                forms.append(RegisterForm())
            else:
                forms.append(None if value is None else ImmediateForm())
        values = tuple(given.pop(v, d.default) for v, d in cls.values.items())
        assert not given, given
        self.line += 1
        made = Instruction(
            form(cls, self.target, tuple(forms), flags),
            tuple(operands),
            values,
            Where("kernel.py", self.line),
        )
        self.builder.append(made)
        return made

    def load(self, dst, src) -> Instruction:
        """A transfer."""
        return self.add("dma_copy", dst=dst, src=src)

    def copy(self, dst, src, **more) -> Instruction:
        """A copy between tiles."""
        return self.add("tensor_copy", dst=dst, src=src, **more)

    def program(self):
        """The program written."""
        return self.builder.program()


def matmul(target=TRN2, m=512, k=512, n=1024):
    """C = A.T @ B with [128, 512] tiles: loads, accumulating matmuls, PSUM to SBUF, stores."""
    w = Writer(target)
    a = w.buffer("hbm", (k, m), name="a", kind="input")
    b = w.buffer("hbm", (k, n), name="b", kind="input")
    c = w.buffer("hbm", (m, n), name="c", kind="output")
    w.builder.inputs, w.builder.outputs = [a, b], [c]
    for i in range(m // 128):
        for j in range(n // 512):
            acc = w.buffer("psum", (128, 512), float32)
            for x in range(k // 128):
                rows = slice(x * 128, x * 128 + 128)
                left, right = w.buffer("sbuf", (128, 128)), w.buffer("sbuf", (128, 512))
                w.load(left, view_of(a)[rows, i * 128 : i * 128 + 128])
                w.load(right, view_of(b)[rows, j * 512 : j * 512 + 512])
                w.add("nc_matmul", dst=acc, stationary=left, moving=right)
            out = w.buffer("sbuf", (128, 512))
            w.copy(out, acc)
            w.load(view_of(c)[i * 128 : i * 128 + 128, j * 512 : j * 512 + 512], out)
    return w.program()
