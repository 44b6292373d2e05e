"""From graph to program: choice, linking, inputs and outputs of every kind, memory, order."""

import numpy as np
import pytest

from opentrn import compiler, sim
from opentrn.base import DtypeError, UnsupportedError
from opentrn.compiler.choose import choose
from opentrn.compiler.order import order
from opentrn.compiler.place import ALIGNMENT, place_hbm
from opentrn.graph import Graph, g
from opentrn.hw import target
from opentrn.isa import Builder, Program
from tests.compiler.running import graph_of, normal, on_chip, run, whole

X = g.input("x", (4, 6))


def last(graph: Graph, **options):
    """The state after the last stage."""
    states = []
    compiler.compile(graph, watch=lambda name, state: states.append(state), **options)
    return states[-1]


# ---------------------------------------------------------------------- choice


def test_all_ops_without_a_kernel_are_named_at_once_with_counts():
    a, b = g.input("a", (9,)), g.input("b", (9,), "int32")
    sorts = [g.argmax(a, 0), g.argmax(g.tanh(a), 0)]
    with pytest.raises(UnsupportedError) as caught:
        choose(graph_of(*sorts, g.power(b, b)), lambda region: region)
    text = str(caught.value)
    assert "2 × argmax: no kernel computes it" in text
    assert "1 × power: the engines compute it of floats only, not of int32" in text
    assert "1 × tanh: no kernel computes it" in text
    assert "3 kinds of op without a kernel (4 of 6 values)" in text


def test_arrays_without_elements_run_inside_a_program():
    x = normal(3, 4)

    def build(v):
        none = g.slice(v, (0, 2), (3, 2), (1, 1))
        wide = g.pad(none, g.full((), 7.0), (0, 2), (0, 1), (0, 0))
        nothing = g.dot_general(none, none, lhs_contracting=1, rhs_contracting=1)
        return g.concatenate(wide, none, v, nothing, dimension=1)
    (found,), _ = on_chip(build, x)
    wanted = np.concatenate([np.full((3, 3), 7.0), x, np.zeros((3, 3))], 1)
    np.testing.assert_array_equal(found, wanted)


def test_a_kernel_says_why_it_was_chosen():
    uses = last(graph_of(g.softmax(X, 1), g.tanh(X) + 1.0)).uses
    reasons = {use.name: use.why for use in uses.values()}
    assert reasons == {"softmax": "one pass over each row", "elementwise": "one trip through SBUF"}


# ---------------------------------------------------------------------- linking


def test_a_kernel_is_traced_once_for_each_signature():
    y = g.input("y", (4, 6))
    wide = g.input("z", (8, 6))
    state = last(graph_of(g.softmax(X, 1), g.softmax(y, 1), g.softmax(wide, 1)))
    assert state.statistics["kernel_calls"] == 3
    assert state.statistics["kernels_traced"] == 2


OUTPUTS = {
    "an input": lambda x, y: x,
    "a constant": lambda x, y: g.constant(np.arange(6, dtype=np.float32)),
    "a scalar constant": lambda x, y: g.constant(2.5),
    "a view of an input": lambda x, y: g.transpose(x, (1, 0)),
    "a part of a result": lambda x, y: g.slice(g.tanh(x), (1, 2), (3, 6), (1, 2)),
    "a repeated number": lambda x, y: g.full((3, 2), 7.0),
    "a repeated row": lambda x, y: g.broadcast_in_dim(g.sum(y, 0), (3, 6), (1,)),
    "a reshaped result": lambda x, y: g.reshape(g.tanh(x), (24,)),
    "a count": lambda x, y: g.iota((3, 4), 1, "float32"),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_of_every_kind(name):
    (found,), (wanted,) = on_chip(OUTPUTS[name], normal(4, 6), normal(4, 6, seed=1))
    np.testing.assert_allclose(found, wanted, 1e-6, 1e-6)


def test_one_value_given_out_twice_is_two_buffers():
    state = last(graph_of(g.tanh(X), g.tanh(X), g.reshape(g.tanh(X), (6, 4))))
    outputs = state.program.outputs
    assert len({id(b) for b in outputs}) == 3
    assert [b.shape for b in outputs] == [(4, 6), (4, 6), (6, 4)]
    x = normal(4, 6)
    for found in run_program(state.program, [x]):
        np.testing.assert_allclose(found.reshape(4, 6), np.tanh(x.astype(np.float64)), 1e-6)


def run_program(program: Program, arrays):
    return sim.Replay(program, target(program.target))(arrays)


def test_an_input_that_is_not_used_is_still_an_input():
    unused = g.input("unused", (3,))
    executable = compiler.compile(Graph([X, unused], [X * 2.0]))
    assert [spec.name for spec in executable.inputs] == ["x", "unused"]
    found = run(executable, [normal(4, 6), normal(3)])[0]
    np.testing.assert_array_equal(found, normal(4, 6) * 2)


def test_64_bit_integers_are_held_in_32():
    ids = whole(5, low=0, high=7, kind=np.int64)
    table = normal(8, 3)
    (found,), _ = on_chip(lambda t, i: g.take(t, i), table, ids)
    np.testing.assert_array_equal(found, table[ids])
    program = compiler.compile(graph_of(g.input("i", (4,), "int64") + 2**20)).program
    assert {b.dtype for b in (*program.inputs, *program.outputs)} == {"int32"}


def test_a_constant_out_of_range_is_refused():
    big = g.constant(np.array([1, 2**40], np.int64))
    with pytest.raises(DtypeError, match="holds 1099511627776"):
        compiler.compile(graph_of(g.input("i", (2,), "int64") + big))


def test_a_number_of_a_chain_or_a_filling_out_of_range_is_refused():
    """One number everywhere is no buffer; saturated to 2^31 - 1 it would be another number."""
    x = g.input("x", (4,), "int64")
    with pytest.raises(DtypeError) as refused:
        compiler.compile_graph(graph_of(x * g.like(x, 2_654_435_761)))
    assert refused.value.code == "compiler.narrow"
    filled = g.pad(x, g.full((), 2**40, "int64"), low=(1,), high=(0,), interior=(0,))
    with pytest.raises(UnsupportedError, match="does not hold the filling"):
        compiler.compile_graph(graph_of(filled))


# ---------------------------------------------------------------------- memory


def test_bytes_by_hand():
    weight = g.constant(np.ones((6, 8), np.float32))
    memory = last(graph_of(g.softmax(g.matmul(X, weight), 1))).memory
    # 4·6, 6·8 and 4·8 float32 numbers; the product is held between the two kernels.
    assert memory == {"inputs": 96, "constants": 192, "outputs": 128, "scratchpad": 128}


def line(count: int) -> Program:
    """A program of `count` kernels, each reading the result of the one before."""
    value = g.input("x", (300, 6))
    for _ in range(count):
        value = g.softmax(value, 1)
    return last(graph_of(value)).program


def lives(program: Program):
    found = {}
    for n, one in enumerate(program.body):
        for view in one.views():
            if view.buffer.space == "hbm":
                first, _ = found.get(view.buffer, (n, n))
                found[view.buffer] = (first, n)
    return found


@pytest.mark.parametrize("build", [lambda: line(6), lambda: branches()])
def test_live_buffers_never_overlap_and_memory_is_reused(build):
    program = build()
    known = list(lives(program).items())
    for n, (a, (a_first, a_last)) in enumerate(known):
        assert a.address % ALIGNMENT == 0
        for b, (b_first, b_last) in known[:n]:
            kept = {a.kind, b.kind} & {"input", "output", "constant"}
            if kept or (a_first <= b_last and b_first <= a_last):
                apart = a.address + a.nbytes <= b.address or b.address + b.nbytes <= a.address
                assert apart, f"{a!r} and {b!r} overlap"
    temporary = [b for b, _ in known if b.kind == "temp"]
    top = max(b.address + b.nbytes for b in temporary) - min(b.address for b in temporary)
    assert top < sum(b.nbytes for b in temporary)


def branches() -> Program:
    """Values that live long beside values that live short."""
    kept = [g.softmax(X + float(n), 1) for n in range(3)]
    value = kept[0]
    for _ in range(3):
        value = g.softmax(value, 1)
    for other in kept:
        value = g.matmul(g.transpose(value, (1, 0)), other)
        value = g.softmax(g.slice(value, (0, 0), (4, 6), (1, 1)), 1)
    return last(graph_of(value)).program


def test_a_line_of_kernels_needs_two_buffers():
    # A kernel stores its first rows before it loads its last: 300·6 float32, twice, aligned.
    assert place_hbm(line(8))["scratchpad"] == 2 * 7232


# ---------------------------------------------------------------------- order


def test_constants_are_fetched_a_kernel_ahead_and_nothing_else_changes():
    value = X
    for n in range(3):
        weight = g.constant(normal(6, 6, seed=n))
        value = g.softmax(g.matmul(value, weight), 1)
    states = {}
    compiler.compile(
        graph_of(value),
        watch=lambda name, state: states.update({name: list(state.program.body)})
        if name in ("emit", "order") else None,
    )  # fmt: skip
    before, after = states["emit"], states["order"]
    assert before != after
    assert sorted(map(id, before)) == sorted(map(id, after))
    moved = [one for one in after if before.index(one) > after.index(one)]
    assert moved
    assert all(one.reads()[0].buffer.kind == "constant" for one in moved)
    rest = set(map(id, moved))
    assert [o for o in before if id(o) not in rest] == [o for o in after if id(o) not in rest]


def test_what_does_not_fit_ahead_stays():
    wide = g.input("w", (128, 4096))
    for n in range(3):
        weight = g.constant(normal(4096, 4096, seed=n))
        wide = g.matmul(wide, weight)
    executable = compiler.compile(graph_of(wide))
    sim.place(executable.program, target("trn2"))  # would raise CapacityError


def test_an_empty_program_has_no_order():
    program = Builder("p", "trn2").program()
    assert order(program, [], target("trn2")) == 0


def test_elementwise_work_goes_along_memory_whatever_the_order_of_dimensions():
    x, table = normal(2, 130, 3, 64), normal(130, 64, seed=1)

    def rotated(v, t):
        heads = g.transpose(v, (0, 2, 1, 3))
        turned = g.concatenate(g.slice(heads, (0, 0, 0, 32), (2, 3, 130, 64), (1, 1, 1, 1)),
                               g.slice(heads, (0, 0, 0, 0), (2, 3, 130, 32), (1, 1, 1, 1)),
                               dimension=3)  # fmt: skip
        made = heads + turned * g.broadcast_in_dim(t, heads.shape, (2, 3))
        return g.reshape(g.transpose(made, (0, 2, 1, 3)), (2, 130, 192)) * 2.0

    inputs = [g.input("x", x.shape), g.input("y", table.shape)]
    executable = compiler.compile(Graph(inputs, [rotated(*inputs)]))
    (found,) = run(executable, [x, table])
    heads = x.astype(np.float64).transpose(0, 2, 1, 3)
    turned = np.concatenate([heads[..., 32:], heads[..., :32]], 3)
    wanted = (heads + turned * table).transpose(0, 2, 1, 3).reshape(2, 130, 192) * 2
    np.testing.assert_allclose(found, wanted, 1e-6, 1e-6)
    # Rows of 64 elements, three heads of each place side by side: no transfer by the element.
    moved = [one for one in executable.program.instructions() if one.opcode == "dma_copy"]
    assert len(moved) > 4
    assert all(one.operands[0].shape[-1] >= 32 for one in moved)
