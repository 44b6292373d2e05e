"""Every instruction defined once; programs made of them; the file that carries them."""

from opentrn.isa import (
    cores,
    dma,
    exe,
    gpsimd,
    reference,
    registers,
    scalar,
    tensor,
    vector,
    vector_reduce,
    vector_search,
)
from opentrn.isa.buffer import Buffer
from opentrn.isa.define import (
    INSTRUCTIONS,
    Cost,
    Instr,
    form,
    freeze,
    instruction_class,
    legal_starts,
    signature,
)
from opentrn.isa.enums import (
    dge_mode,
    dma_engine,
    engine,
    matmul_perf_mode,
    nc_version,
    oob_mode,
    reduce_cmd,
)
from opentrn.isa.exe import Executable, Spec, load
from opentrn.isa.explanations import explain
from opentrn.isa.index import Indirect
from opentrn.isa.link import Call
from opentrn.isa.operands import (
    REQUIRED,
    Flag,
    ImmediateForm,
    Operand,
    OperandForm,
    RegIn,
    RegisterForm,
    RegOut,
    Several,
    Transfer,
    Value,
    operand_form,
)
from opentrn.isa.program import Builder, Instruction, Loop, Program, Register
from opentrn.isa.read import parse_program
from opentrn.isa.text import program_text
from opentrn.isa.view import View
from opentrn.isa.view import of as view_of

__all__ = [
    "INSTRUCTIONS",
    "REQUIRED",
    "Buffer",
    "Builder",
    "Call",
    "Cost",
    "Executable",
    "Flag",
    "ImmediateForm",
    "Indirect",
    "Instr",
    "Instruction",
    "Loop",
    "Operand",
    "OperandForm",
    "Program",
    "RegIn",
    "RegOut",
    "Register",
    "RegisterForm",
    "Several",
    "Spec",
    "Transfer",
    "Value",
    "View",
    "cores",
    "dge_mode",
    "dma",
    "dma_engine",
    "engine",
    "exe",
    "explain",
    "form",
    "freeze",
    "gpsimd",
    "instruction_class",
    "legal_starts",
    "load",
    "matmul_perf_mode",
    "nc_version",
    "oob_mode",
    "operand_form",
    "parse_program",
    "program_text",
    "reduce_cmd",
    "reference",
    "registers",
    "scalar",
    "signature",
    "tensor",
    "vector",
    "vector_reduce",
    "vector_search",
    "view_of",
]
