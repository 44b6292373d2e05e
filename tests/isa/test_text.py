"""The text form of programs: round trips of generated and recorded programs, and damaged texts."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn import isa
from opentrn.base import Bug, FileFormatError, Where, dtype
from opentrn.hw import chip
from opentrn.isa.index import Indirect
from opentrn.isa.operators import act, op
from opentrn.isa.program import Builder, Instruction, Loop, Register
from opentrn.isa.read import parse_program
from opentrn.isa.text import program_text

NUMBER, REGISTER = isa.ImmediateForm(), isa.RegisterForm()


def forms_of(operands):
    for given_ in operands:
        if isinstance(given_, isa.View):
            yield isa.operand_form(given_)
        elif isinstance(given_, Register):
            yield REGISTER
        else:
            yield None if given_ is None else NUMBER


def instruction(on, opcode, operands, flags=(), values=(), where=None, name=None, after=()):
    cls = isa.INSTRUCTIONS[opcode]
    made = isa.form(cls, chip(on), tuple(forms_of(operands)), tuple(flags))
    return Instruction(made, tuple(operands), tuple(values), where, name, after)


# ---------------------------------------------------------------------- generated programs

NAMES = st.text(st.characters(codec="utf-8"), max_size=6)
PLACES = st.one_of(
    st.none(),
    st.builds(
        Where,
        # Files hold portable names only: tests/base says what those are.
        st.one_of(st.just("kernels/a b;c.py"), NAMES.filter(lambda n: n and n[0] != "/")),
        st.integers(0, 10**6),
        st.one_of(st.just("<lambda>"), NAMES),
    ),
)
DTYPES = st.sampled_from([dtype(n) for n in ("float32", "bfloat16", "int32", "uint8")])
NUMBERS = st.one_of(
    st.integers(-(2**31), 2**31 - 1), st.floats(width=32), st.booleans(), st.just(np.float32(0.1))
)


@st.composite
def tiles(draw, builder, space="sbuf", data_type=None):
    """A view of a fresh buffer, perhaps cut, with a step, or reshaped."""
    rows, free = draw(st.integers(1, 32)), draw(st.sampled_from([4, 8, 24]))
    buffer = builder.buffer(
        space,
        (rows, free),
        data_type or draw(DTYPES),
        name=draw(NAMES),
        where=draw(PLACES),
        address=draw(st.one_of(st.none(), st.integers(0, 4096))),
    )
    view = isa.view_of(buffer)
    how = draw(st.sampled_from(["whole", "cut", "step", "shape"]))
    if how == "cut":
        view = view[:, 1 : free - 1]
    if how == "step":
        view = view[:, ::2]
    if how == "shape":
        view = view.reshape((rows, 2, free // 2))
    return view


@st.composite
def like(draw, builder, view):
    """A view of a fresh SBUF buffer with the shape of another view."""
    return isa.view_of(builder.buffer("sbuf", view.shape, draw(DTYPES)))


@st.composite
def instructions(draw, builder, made):
    where, name = draw(PLACES), draw(st.one_of(st.none(), NAMES))
    after = tuple(draw(st.lists(st.sampled_from(made), max_size=2))) if made else ()
    more = {"where": where, "name": name, "after": after}
    dst = draw(tiles(builder))
    kind = draw(st.sampled_from(["memset", "iota", "select", "activation", "register", "dma"]))
    if kind == "memset":
        chosen = draw(st.sampled_from([isa.engine.unknown, isa.engine.vector, isa.engine.gpsimd]))
        number = draw(st.integers(-9, 9) if dst.dtype.is_integer else NUMBERS)
        return instruction("trn2", "memset", (dst,), (number, chosen), **more)
    if kind == "iota":
        numbers = draw(st.tuples(st.integers(-99, 99), st.integers(-9, 9)))
        pattern = [[draw(st.integers(-5, 5)), dst.free_size]]
        return instruction("trn2", "iota", (dst,), (pattern,), numbers, **more)
    if kind == "select":
        pattern = ((1, dst.free_size),)
        flags = (pattern, draw(st.sampled_from(["equal", "less", op("greater")])))
        values = (1, draw(st.floats(width=32)), draw(st.integers(-9, 9)))
        return instruction(
            "trn2", "affine_select", (dst, draw(like(builder, dst))), flags, values, **more
        )
    if kind == "activation":
        column = isa.view_of(builder.buffer("sbuf", (dst.shape[0], 1), dtype("float32")))
        scale = draw(st.sampled_from([1.0, -0.0, 2, column, float("inf")]))
        bias = draw(st.sampled_from([None, 0.5, column]))
        operands = (
            dst,
            draw(like(builder, dst)),
            bias,
            scale,
            draw(st.sampled_from([None, column])),
        )
        flags = (draw(st.sampled_from(["exp", act("copy")])), "add", isa.reduce_cmd.reset_reduce)
        return instruction("trn2", "activation", operands, flags, **more)
    if kind == "register":
        source = draw(st.sampled_from([3, -1, builder.register(draw(NAMES))]))
        return instruction("trn2", "register_move", (builder.register(), source), **more)
    return instruction("trn2", "dma_copy", moved(draw, builder), copy_flags(draw), **more)


def moved(draw, builder):
    """The two sides of a DMA: direct, or one row chosen by a register or by an SBUF tile."""
    src = isa.view_of(builder.buffer("hbm", (5, 8), dtype("float32"), kind="input"))
    dst = isa.view_of(builder.buffer("sbuf", (1, 8), dtype("bfloat16")))
    how = draw(st.sampled_from(["direct", "register", "tile", "vector"]))
    if how == "direct":
        return dst, src[2:3]
    if how == "vector":
        rows = isa.view_of(builder.buffer("sbuf", (1, 1), dtype("int32")))
        return dst, src.vector_select(0, rows)
    index = builder.register()
    if how == "tile":
        index = isa.view_of(builder.buffer("sbuf", (1, 1), dtype("uint32")))
    return dst, src.select(0, index)


def copy_flags(draw):
    flags = [None, isa.oob_mode.error, isa.dge_mode.unknown, isa.engine.unknown]
    flags[1] = draw(st.sampled_from(list(isa.oob_mode)))
    names = list(isa.INSTRUCTIONS["dma_copy"].flags)
    assert names == ["priority", "oob_mode", "dge_mode", "engine"]
    return flags


@st.composite
def programs(draw):
    builder = Builder(draw(NAMES), "trn2")
    made = []
    for _ in range(draw(st.integers(0, 6))):
        step = draw(st.sampled_from(["one", "one", "one", "loop", "while", "close"]))
        if step in ("loop", "while"):
            builder.open_loop()
            made.append(draw(instructions(builder, [])))
            builder.append(made[-1])
            builder._heads = [*getattr(builder, "_heads", []), step]
        elif step == "close" and getattr(builder, "_heads", []):
            close(draw, builder)
        else:
            made.append(draw(instructions(builder, made)))
            builder.append(made[-1])
    while getattr(builder, "_heads", []):
        close(draw, builder)
    for buffer in builder.buffers:
        if buffer.kind == "input":
            builder.inputs.append(buffer)
    return builder.program()


def close(draw, builder):
    if builder._heads.pop() == "while":
        builder.close_loop(while_true=builder.register(), where=draw(PLACES))
        return
    builder.close_loop(
        counter=builder.register(),
        start=draw(st.integers(-3, 3)),
        stop=draw(st.sampled_from([7, builder.register("n")])),
        step=draw(st.sampled_from([1, 2, -1])),
        where=draw(PLACES),
    )


def same_value(a, b, buffers):
    """Whether two operands or numbers are the same up to the identity of buffers."""
    if isinstance(a, isa.View):
        ours = (a.offset, a.steps, a.dtype)
        return (
            buffers[a.buffer] is b.buffer
            and ours == (b.offset, b.steps, b.dtype)
            and same_index(a.index, b.index, buffers)
        )
    if isinstance(a, Register):
        return isinstance(b, Register) and a.number == b.number
    if isinstance(a, float | np.floating):
        return isinstance(b, float | np.floating) and repr(float(a)) == repr(float(b))
    return a == b and (a is None) == (b is None) and isinstance(a, bool) == isinstance(b, bool)


def same_index(a, b, buffers):
    if a is None or b is None:
        return a is b
    rest = (a.kind, a.dim, a.stride, a.limit) == (b.kind, b.dim, b.stride, b.limit)
    return rest and same_value(a.offset, b.offset, buffers)


def assert_same(a, b):
    """Two programs are the same: every buffer, instruction, loop and place."""
    assert (a.name, a.target, a.registers) == (b.name, b.target, b.registers)
    assert len(a.buffers) == len(b.buffers)
    buffers = dict(zip(a.buffers, b.buffers, strict=True))
    for x, y in buffers.items():
        for field in ("space", "shape", "dtype", "name", "where", "address", "partition", "kind"):
            assert getattr(x, field) == getattr(y, field)
    for field in ("inputs", "outputs", "mutated"):
        assert [buffers[x] for x in getattr(a, field)] == getattr(b, field)
    order = {id(x): n for n, x in enumerate(a.instructions())}
    made = list(b.instructions())
    assert_same_body(a.body, b.body, buffers)
    for x, y in zip(a.instructions(), made, strict=True):
        assert_same_form(x.form, y.form)
        assert (x.where, x.name) == (y.where, y.name)
        assert [made[order[id(before)]] for before in x.after] == list(y.after)
        for p, q in zip((*x.operands, *x.values), (*y.operands, *y.values), strict=True):
            assert same_value(p, q, buffers)


def assert_same_form(a, b):
    """Same class, chip, operand forms, flags and engine."""
    assert (type(a), a.chip, a.given) == (type(b), b.chip, b.given)
    assert a.engine_name == b.engine_name
    for name in a.flags:
        assert same_value(getattr(a, name), getattr(b, name), {})


def assert_same_body(a, b, buffers):
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert isinstance(x, Loop) == isinstance(y, Loop)
        if isinstance(x, Loop):
            for field in ("counter", "start", "stop", "step", "while_true", "where"):
                assert same_value(getattr(x, field), getattr(y, field), buffers)
            assert [buffers[one] for one in x.local] == y.local
            assert_same_body(x.body, y.body, buffers)


@given(programs())
@settings(max_examples=120, deadline=None)
def test_a_program_survives_its_text(program):
    text = program_text(program)
    again = parse_program(text)
    assert program_text(again) == text
    assert_same(program, again)


# ---------------------------------------------------------------------- one program by hand


def small():
    builder = Builder("scale", "trn2")
    x = builder.buffer("hbm", (128, 512), dtype("bfloat16"), name="x", kind="input")
    y = builder.buffer("hbm", (128, 512), dtype("bfloat16"), name="y", kind="output")
    t = builder.buffer("sbuf", (128, 512), dtype("float32"), where=Where("kernel.py", 3, "scale"))
    count = builder.register("count")
    views = [isa.view_of(b) for b in (x, y, t)]
    flags = (None, isa.oob_mode.error, isa.dge_mode.unknown, isa.engine.unknown)
    first = instruction("trn2", "dma_copy", (views[2], views[0]), flags)
    builder.append(first)
    builder.open_loop()
    flags2 = ("exp", None, isa.reduce_cmd.idle)
    column = isa.view_of(builder.buffer("sbuf", (128, 1), dtype("float32")))
    operands = (views[2], views[2][:, 0:512], column, 2.0, None)
    where = Where("kernel.py", 5, "scale")
    more = {"where": where, "name": "e", "after": (first,)}
    builder.append(instruction("trn2", "activation", operands, flags2, **more))
    builder.close_loop(counter=builder.register(), stop=count)
    builder.append(instruction("trn2", "dma_copy", (views[1], views[2]), flags))
    builder.inputs, builder.outputs = [x], [y]
    return builder.program()


TEXT = """opentrn program 1
name "scale"
target "trn2"
registers 2
register r0 "count"
buffer %0 hbm [128, 512] bfloat16 input "x"
buffer %1 hbm [128, 512] bfloat16 output "y"
buffer %2 sbuf [128, 512] float32 temp "" ; kernel.py:3 in scale
buffer %3 sbuf [128, 1] float32 temp ""
inputs %0
outputs %1
mutated
begin
  dma_copy dst=%2[0; 512:128, 1:512]:float32 src=%0[0; 512:128, 1:512]:bfloat16
  loop r1 from 0 to r0 step 1 local %3
    activation dst=%2[0; 512:128, 1:512]:float32 data=%2[0; 512:128, 1:512]:float32 \
bias=%3[0; 1:128, 1:1]:float32 scale=2.0 op=act.exp name="e" after=(0) ; kernel.py:5 in scale
  dma_copy dst=%1[0; 512:128, 1:512]:bfloat16 src=%2[0; 512:128, 1:512]:float32
end
"""


def test_the_text_is_what_the_grammar_says():
    assert program_text(small()) == TEXT
    assert_same(small(), parse_program(TEXT))


def damaged(old, new, count=1):
    assert old in TEXT
    return TEXT.replace(old, new, count)


WHOLE = "%2[0; 512:128, 1:512]:float32"
REFUSED = [
    # (what is replaced, by what, number of the line that must be named)
    ("opentrn program 1", "opentrn program 2", 1),
    ("opentrn program 1", "something else", 1),
    ('"scale"', "scale", 2),
    ('"trn2"', '"trn9"', 3),
    ("registers 2", "registers -1", 4),
    ("registers 2", "registers 99999999999", 4),
    ("registers 2", "registers 1", 15),
    ("register r0", "register r7", 5),
    ("buffer %1", "buffer %3", 7),
    ("hbm [128, 512]", "dram [128, 512]", 6),
    ("hbm [128, 512]", "hbm [0, 512]", 6),
    ("sbuf [128, 512]", "sbuf [129, 512]", 8),
    ("sbuf [128, 512]", "sbuf [128, 99999999999999]", 8),
    ("float32 temp", "float33 temp", 8),
    ("kernel.py:3", "kernel.py", 8),
    ("inputs %0", "inputs %9", 10),
    ("inputs %0", "inputs x", 10),
    ("mutated\n", "\n", 12),
    ("begin", "start", 13),
    ("  dma_copy", "   dma_copy", 14),
    ("  dma_copy", "    dma_copy", 14),
    ("dma_copy", "dma_copi", 14),
    ("src=%0[0; 512:128", "src=%0[1; 512:128", 14),  # one element beyond the end
    ("src=%0[0; 512:128", "src=%0[-1; 512:128", 14),
    ("src=%0[0; 512:128", "src=%0[0; 512:-1", 14),
    ("src=%0[0; 512:128", "src=%0[0; 1:99999999999999999", 14),
    ("src=%0[0; 512:128, 1:512]:bfloat16", "src=4", 14),
    ("src=%0", "source=%0", 14),
    ("src=%0", "src=%7", 14),
    (f"dst={WHOLE}", f"dst={WHOLE} dst={WHOLE}", 14),
    (f"dst={WHOLE}", "dst=%2[0; 513:127, 1:512]:float32", 14),
    (f"dst={WHOLE}", "dst=%2[0; 512:128, 2:512]:float32", 14),
    ("from 0", "from zero", 15),
    ("step 1", "step 0", 15),
    ("local %3", "local %4", 15),
    ("local %3", "local", 15),
    (f"data={WHOLE}", "data=%0[0; 512:128, 1:512]:bfloat16", 16),  # HBM: refused by the class
    (f"data={WHOLE}", "data=%2[0; 512:128, 1:256]:float32", 16),
    ("op=act.exp", "op=act.expo", 16),
    ("op=act.exp", "op=engine.scalar", 16),
    ("op=act.exp ", "", 16),
    ("op=act.exp", "op=", 16),
    ("op=act.exp", "op=()", 16),
    ("op=act.exp", "op=[", 16),
    ("op=act.exp", "op=" + "(" * 4000, 16),
    ("scale=2.0", "scale=true2", 16),
    ("scale=2.0", "reduce_cmd=true", 16),
    ("scale=2.0", "scale=" + "9" * 5000, 16),
    ("after=(0)", "after=(7)", 16),
    ("after=(0)", "after=0", 16),
    ('name="e"', "name=3", 16),
    ("; kernel.py:5", "kernel.py:5", 16),
    ("end\n", "", 18),
    ("end\n", "end\nmore\n", 19),
]


@pytest.mark.parametrize(("old", "new", "line"), REFUSED)
def test_what_is_not_a_program_names_its_line(old, new, line):
    with pytest.raises(FileFormatError) as caught:
        parse_program(damaged(old, new), "a.txt")
    assert caught.value.code == "isa.text"
    assert f"a.txt, line {line}: " in caught.value.what
    assert caught.value.at.line == line
    assert len(str(caught.value).splitlines()) <= 5


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_damage_never_crashes_the_reader(data):
    at = data.draw(st.integers(0, len(TEXT) - 1))
    end = min(at + data.draw(st.integers(0, 3)), len(TEXT))
    new = data.draw(st.text(st.sampled_from(sorted(set(TEXT)) + ["@", "9", "(", "∞"]), max_size=3))
    text = TEXT[:at] + new + TEXT[end:]
    try:
        again = parse_program(text)
    except FileFormatError:
        return
    assert_same(again, parse_program(program_text(again)))


@pytest.mark.parametrize(
    "index",
    [
        "@scalar(r0, 0, 512, 128)",  # 128 legal values, but only the first keeps all rows inside
        "@scalar(1, 0, 512, 1)",
        "@scalar(%1[0; 1:1, 1:1]:bfloat16, 0, 512, 1)",
        "@vector(r0, 0, 512, 1)",
        "@other(r0, 0, 512, 1)",
        "@scalar(r0, 5, 512, 1)",
        "@scalar(r0, 0, 512)",
        "@scalar(r0, 0, 512, 0)",
    ],
)
def test_runtime_indices_are_checked(index):
    with pytest.raises(FileFormatError):
        parse_program(damaged(":bfloat16\n", f":bfloat16{index}\n"))
    parse_program(damaged(":bfloat16\n", ":bfloat16@scalar(r0, 0, 512, 1)\n"))


def test_what_has_no_text_form_is_a_bug():
    program = small()
    program.body[1].start = object()
    with pytest.raises(Bug):
        program_text(program)


def test_a_view_of_an_undeclared_buffer_is_a_bug():
    program = small()
    program.buffers.pop()
    with pytest.raises(Bug):
        program_text(program)


def test_long_programs_are_read_in_reasonable_time():
    lines = TEXT.splitlines()
    many = lines[:14] + [lines[13]] * 5000 + lines[14:]
    program = parse_program("\n".join(many) + "\n")
    assert len(program) == 5003
    forms = {id(one.form) for one in program.instructions() if one.opcode == "dma_copy"}
    assert len(forms) == 2


def test_every_enumeration_member_of_a_flag_has_a_text_form():
    for word in ("engine.tensor", "dge_mode.none", "matmul_perf_mode.double_row"):
        family, member = word.split(".")
        assert member in getattr(isa, family).__members__
    assert re.search(r"reduce_cmd=reduce_cmd\.reset_reduce", program_text(with_command()))


def with_command():
    builder = Builder("sum", "trn2")
    tile = isa.view_of(builder.buffer("sbuf", (2, 2), dtype("float32")))
    flags = ("copy", "add", isa.reduce_cmd.reset_reduce)
    builder.append(instruction("trn2", "activation", (tile, tile, None, 1.0, None), flags))
    return builder.program()


def test_indirect_views_keep_their_index():
    builder = Builder("gather", "trn2")
    source = isa.view_of(builder.buffer("hbm", (10, 8), dtype("float32")))
    rows = isa.view_of(builder.buffer("sbuf", (4, 1), dtype("int32")))
    dst = isa.view_of(builder.buffer("sbuf", (4, 8), dtype("float32")))
    picked = source.vector_select(0, rows)
    assert picked.index == Indirect("vector", rows, 0, 8, 10)
    flags = (None, isa.oob_mode.skip, isa.dge_mode.swdge, isa.engine.unknown)
    builder.append(instruction("trn2", "dma_copy", (dst, picked), flags))
    text = program_text(builder.program())
    assert "src=%0[0; 8:4, 1:8]:float32@vector(%1[0; 1:4, 1:1]:int32, 0, 8, 10)" in text
    [again] = parse_program(text).body
    index = again.operands[1].index
    assert (index.kind, index.dim, index.stride, index.limit) == ("vector", 0, 8, 10)
