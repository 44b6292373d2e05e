"""The pipeline as a whole: laws, merging, determinism, files, and the reasons it gives."""

import numpy as np
import pytest

from opentrn import compiler
from opentrn.base import UsageError
from opentrn.compiler import PIPELINE, State
from opentrn.compiler.merge import MOST_COLUMNS, MOST_WEIGHT_BYTES, merge, norms
from opentrn.compiler.pipeline import obey
from opentrn.graph import Graph, evaluate, g
from opentrn.hw import target
from opentrn.isa.exe import load
from tests.compiler.running import graph_of, normal, run

X = g.input("x", (4, 6))
LAWLESS = {
    "clean": g.linear(X, g.input("w", (6, 3))),
    "precision": g.linear(X, g.input("w", (6, 3))),
    "spell": X + g.iota((4, 6), 1, "float32"),
    "fuse": g.reverse(X, (0,)),
    "layout": g.reverse(X, (0,)),
}


@pytest.mark.parametrize("stage", PIPELINE, ids=lambda stage: stage.name)
def test_each_law_refuses_a_bad_graph(stage):
    state = State(graph_of(g.tanh(X)), target("trn2"), "float32")
    obey(stage, state)
    assert (stage.law is not None) == (stage.name in LAWLESS)
    if stage.law is not None:
        state.graph = graph_of(LAWLESS[stage.name])
        with pytest.raises(UsageError, match=f"stage {stage.name}: .* may not exist after it"):
            obey(stage, state)


def network(seed: int = 0) -> Graph:
    """Three projections of one tensor, two of which meet again."""
    parts = []
    for n, width in enumerate((5, 7, 5)):
        weight = g.constant(normal(6, width, seed=seed + n))
        bias = g.constant(normal(width, seed=seed + 10 + n))
        y = g.matmul(X, weight)
        parts.append(y + g.broadcast(bias, y.shape))
    a, b, c = parts
    return graph_of(g.tanh(a) * c, g.softmax(b, 1))


def fused(graph: Graph) -> Graph:
    graphs = {}
    compiler.compile(graph, watch=lambda name, state: graphs.setdefault(name, state.graph))
    return graphs["fuse"]


def test_linears_of_one_tensor_are_merged_and_mean_the_same():
    graph = network()
    made = fused(graph)
    assert made.histogram()["linear"] == 2  # tanh(a) is applied on the way out of PSUM, alone
    x = normal(4, 6, seed=5)
    for f, w in zip(evaluate(made, [x]), evaluate(graph, [x]), strict=True):
        np.testing.assert_allclose(f, w, 1e-5, 1e-5)


def linears(*widths: int, **options) -> Graph:
    weights = [g.constant(normal(6, width, seed=n)) for n, width in enumerate(widths)]
    return graph_of(*(g.linear(X, w, **options) for w in weights))


def test_a_merge_gives_each_part_its_columns():
    graph = linears(5, 7, 2)
    made = merge(graph)
    assert made.histogram()["linear"] == 1
    assert [v.shape for v in made.outputs] == [(4, 5), (4, 7), (4, 2)]
    x = normal(4, 6, seed=5)
    for f, w in zip(evaluate(made, [x]), evaluate(graph, [x]), strict=True):
        np.testing.assert_allclose(f, w, 1e-5, 1e-5)


def test_what_is_not_merged_says_why():
    notes = []
    assert merge(linears(5, 7, activation="tanh"), notes).histogram()["linear"] == 2
    given = graph_of(*(g.linear(X, g.input(n, (6, 5))) for n in "vw"))
    assert merge(given, notes).histogram()["linear"] == 2
    assert {n.why for n in notes} == {
        "it ends in an activation or a residual of its own",
        "its weight is not a constant",
    }
    wide = MOST_WEIGHT_BYTES // 4 // 6
    zeros = g.constant(np.zeros((6, wide), np.float32))
    other = g.constant(np.ones((6, wide), np.float32))
    heavy = graph_of(g.linear(X, zeros), g.linear(X, other))
    assert merge(heavy).histogram()["linear"] == 2


def test_a_norm_that_alone_reads_a_linear_joins_it():
    notes = []
    w, row = g.input("w", (6, 5)), g.input("r", (5,))
    total = g.linear(X, w, row, bias=True, activation="tanh")
    graph = graph_of(g.layer_norm(total, row, row, epsilon=1e-3))
    made = norms(graph, notes)
    assert made.histogram() == {"input": 3, "linear_norm": 1}
    arrays = [normal(5), normal(6, 5), normal(4, 6)]
    for f, w in zip(evaluate(made, arrays), evaluate(graph, arrays), strict=True):
        np.testing.assert_allclose(f, w, 1e-5, 1e-5)
    assert notes[0].outcome == "rewrote"


def test_other_norms_stay_and_say_why():
    notes = []
    total = g.linear(X, g.input("w", (6, 5)))
    wide = g.linear(X, g.input("v", (6, MOST_COLUMNS + 1)))
    deep = g.linear(g.input("y", (2, 10**5)), g.input("u", (10**5, 100)))
    graph = graph_of(
        g.layer_norm(total), total, g.layer_norm(wide), g.layer_norm(deep),
        g.layer_norm(g.linear(X, g.input("t", (6, 7))), axis=0), g.layer_norm(X),
    )  # fmt: skip
    assert norms(graph, notes).histogram()["layer_norm"] == 5
    assert [note.why for note in notes] == [
        "something else reads the sum",
        f"rows have more than {MOST_COLUMNS} elements",
        "the weights take 312800 bytes of a partition, at most 65536",
        "it is not over the columns of a linear",
    ]


def test_the_same_graph_gives_the_same_content():
    hashes = {compiler.compile(network()).content_hash for _ in range(2)}
    assert len(hashes) == 1
    assert compiler.compile(network(seed=50)).content_hash not in hashes
    assert compiler.compile(network(), dtype="bfloat16").content_hash not in hashes


def test_a_saved_executable_computes_the_same(tmp_path):
    made = compiler.compile(network(), dtype="bfloat16")
    loaded = load(made.save(tmp_path / "network.trn"))
    assert loaded.content_hash == made.content_hash
    x = normal(4, 6, seed=5)
    for a, b in zip(run(made, [x]), run(loaded, [x]), strict=True):
        np.testing.assert_array_equal(a, b)
    assert compiler.why(loaded) == compiler.why(made)


def test_the_progress_hook_hears_every_value():
    heard, states = [], []
    compiler.compile(
        network(), tick=lambda: heard.append(1), watch=lambda name, state: states.append(state)
    )
    assert len(heard) == len(states[-1].graph)


def test_why_names_kernels_rules_and_reasons():
    text = compiler.explain_stages(network())
    for stage in PIPELINE:
        assert f"\n{stage.name}: {stage.why}" in text
    assert "3 × MatrixToLinear" in text
    assert "one product of 5 + 7 columns: x is loaded and transposed once" in text
    assert "merge refused: it ends in an activation or a residual of its own" in text
    assert "1 × linear → float32[4,5]: bias, tanh on the way out of PSUM" in text
    assert "test_pipeline.py:" in text
    assert max(map(len, text.splitlines())) <= 100
    short = compiler.why(compiler.compile(network()))
    assert "1 × softmax: one pass over each row" in short
    assert max(map(len, short.splitlines())) <= 100
