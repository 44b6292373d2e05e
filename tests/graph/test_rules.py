"""Rules prove themselves; wrong ones are caught; passes keep their laws."""

import numpy as np
import pytest

from opentrn.base import Bug, TrnError
from opentrn.graph import (
    ATTENTION,
    CLEAN,
    RECOGNISE,
    Graph,
    Pass,
    Rule,
    Value,
    evaluate,
    fold,
    g,
    no,
    prove,
    random_array,
    rewrite,
    splat_of,
)
from opentrn.graph.rules import RULES


@pytest.fixture(autouse=True)
def forget_rules_made_here():
    before = list(RULES)
    yield
    RULES[:] = before


@pytest.mark.parametrize("rule", [*CLEAN, *RECOGNISE, *ATTENTION], ids=lambda r: r.__name__)
def test_every_rule_proves_itself(rule):
    prove(rule)


def test_the_lists_name_every_rule_of_the_room():
    here = {r for r in RULES if r.__module__.startswith("opentrn.graph.")}
    assert here == {*CLEAN, *RECOGNISE, *ATTENTION}


def test_a_rule_that_changes_numbers_is_caught():
    class Wrong(Rule):
        """x + y → x · y"""

        def find(p, x, y):
            return x + y

        def make(g, x, y):
            return x * y

        def sample(g):
            return g.input("x", (3,)) + g.input("y", (3,))

    with pytest.raises(Bug, match="Wrong changes the numbers"):
        prove(Wrong)


def test_a_rule_that_changes_the_type_is_caught():
    class Narrow(Rule):
        """exp(x) → bfloat16"""

        def find(p, x):
            return p.exponential(x)

        def make(g, x):
            return g.exponential(g.convert(x, "bfloat16"))

        def sample(g):
            return g.exponential(g.input("x", (3,)))

    with pytest.raises(Bug, match="changes float32"):
        prove(Narrow)


def test_a_guard_that_lets_too_much_through_is_caught():
    class Open(Rule):
        """x · y → x, guarded by nothing"""

        def find(p, x, y):
            return x * y

        def when(y):
            return True

        def make(g, x):
            return x

        def sample(g):
            return g.input("x", (3,)) * 1.0

        def refuse(g):
            return g.input("x", (3,)) * 2.0

    with pytest.raises(Bug, match="does not refuse"):
        prove(Open)


def test_a_rule_whose_pattern_misses_its_sample_is_caught():
    class Deaf(Rule):
        """tanh(x) → tanh(x)"""

        def find(p, x):
            return p.tanh(x)

        def make(g, x):
            return g.tanh(x)

        def sample(g):
            return g.sine(g.input("x", (3,)))

    with pytest.raises(Bug, match="does not fire"):
        prove(Deaf)


def test_half_a_rule_does_not_import():
    with pytest.raises(Bug, match="write find, make, sample, a docstring"):
        class Half(Rule):
            pass
    with pytest.raises(Bug, match="refuse, since it has a guard"):
        class Guarded(Rule):
            """x"""

            def find(p, x):
                return p.tanh(x)

            def when(x):
                return True

            def make(g, x):
                return x

            def sample(g):
                return g.tanh(g.input("x", (3,)))


class Twice:
    """Makes a rule x + x → 2·x on demand, so that it is forgotten after the test."""

    @staticmethod
    def rule(alone=False):
        class Double(Rule):
            """exp(x) + exp(x) → 2·exp(x), unless x is long"""

            private = alone

            def find(p, x):
                return p.exponential(x) + p.exponential(x)

            def when(x):
                return x.shape[0] < 10 or no("it is long")

            def make(g, x):
                return g.exponential(x) * 2.0

            def sample(g):
                y = g.exponential(g.input("x", (3,)))
                return y + y

            def refuse(g):
                y = g.exponential(g.input("x", (30,)))
                return y + y
        return Double


def test_repeated_holes_are_matched_by_identity():
    rule = Twice.rule()
    x, y = g.input("x", (3,)), g.input("y", (3,))
    assert rule.attempt(g.exponential(x) + g.exponential(y)) is None
    assert isinstance(rule.attempt(g.exponential(x) + g.exponential(x)), Value)


def test_refusals_are_noted_once_with_the_reason_and_the_line():
    x = g.input("x", (30,))
    long = g.exponential(x) + g.exponential(x)
    notes = []
    graph = rewrite(Graph([x], [g.tanh(long)]), [Twice.rule()], notes)
    assert graph.outputs[0] is g.tanh(long)
    assert [(n.rule, n.outcome, n.why) for n in notes] == [("Double", "refused", "it is long")]
    assert notes[0].where.text.startswith("long = ")


def test_private_rules_leave_shared_values_alone():
    rule = Twice.rule(alone=True)
    x = g.input("x", (3,))
    inner = g.exponential(x)
    notes = []
    kept = rewrite(Graph([x], [inner + inner, inner]), [rule], notes)
    assert kept.outputs[0].op == "add"
    assert notes[0].why == "something else reads a value inside"
    assert rewrite(Graph([x], [inner + inner]), [rule]).outputs[0].op == "multiply"


def test_rules_that_undo_each_other_are_reported():
    class There(Rule):
        """x + y → y - (-x)"""

        def find(p, x, y):
            return x + y

        def make(g, x, y):
            return y - (-x)

        def sample(g):
            return g.input("x", (3,)) + g.input("y", (3,))

    class Back(Rule):
        """y - (-x) → x + y"""

        def find(p, x, y):
            return y - p.negate(x)

        def make(g, x, y):
            return x + y

        def sample(g):
            return g.input("y", (3,)) - (-g.input("x", (3,)))

    x, y = g.input("x", (3,)), g.input("y", (3,))
    with pytest.raises(Bug, match="There, Back never come to rest"):
        rewrite(Graph([x, y], [x + y]), [There, Back])


def test_patterns_match_either_order_where_the_op_allows():
    x = g.input("x", (3,))
    for value in (g.logistic(x) * x, x * g.logistic(x)):
        assert rewrite(Graph([x], [value]), RECOGNISE).outputs[0] is g.silu(x)


def test_passes_keep_their_laws():
    x = g.input("x", (3,))
    graph = Graph([x], [x + x])
    fine = Pass("fine", CLEAN, before=["input", "add"], after=["input", "add"])
    assert fine(graph).outputs == graph.outputs
    with pytest.raises(TrnError, match="pass strict: `add") as error:
        Pass("strict", CLEAN, before=["input"])(graph)
    assert error.value.code == "graph.law"
    assert error.value.at.text == "graph = Graph([x], [x + x])"
    with pytest.raises(Bug, match="may not exist after"):
        Pass("lax", CLEAN, after=["input"])(graph)


def test_cleaning_leaves_one_reshape_of_many():
    x = g.input("x", (2, 3, 4))
    y = g.reshape(g.reshape(g.reshape(x, (6, 4)), (24,)), (2, 3, 4))
    assert rewrite(Graph([x], [y]), CLEAN).outputs[0] is x


def test_folding_computes_what_is_constant_and_nothing_else():
    x = g.input("x", (4, 4))
    row, column = g.iota((4, 4), 0, "int32"), g.iota((4, 4), 1, "int32")
    mask = g.compare(row, column, direction="GE")
    graph = Graph([x], [g.select(mask, x, g.like(x, 0.0))])
    folded = fold(graph)
    assert folded.histogram() == {"constant": 2, "broadcast_in_dim": 1, "input": 1, "select": 1}
    array = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    assert np.array_equal(evaluate(folded, [array])[0], np.tril(array))
    assert fold(graph, most_bytes=15).outputs == graph.outputs


def test_numbers_held_everywhere_are_seen():
    assert splat_of(g.full((3, 4), 2.5)) == 2.5
    assert splat_of(g.constant(np.full((2, 2), 7.0))) == 7.0
    assert splat_of(g.constant(np.float32([1, 2, 1]))) is None
    assert splat_of(g.constant(np.complex64([3, 3]))) == 3.0
    assert splat_of(g.constant(np.complex64([1 + 2j, 1 + 2j]))) is None  # x·(1 + 2i) is not x
    assert splat_of(g.input("x", ())) is None


def test_an_attention_with_grouped_heads_keeps_its_numbers_through_cleaning():
    q, k = g.input("q", (1, 4, 3, 8)), g.input("k", (1, 2, 3, 8))
    graph = Graph([q, k], [g.attention(q, k, k, causal=True) * 1.0])
    arrays = [random_array(v, np.random.default_rng(1)) for v in graph.inputs]
    cleaned = rewrite(graph, CLEAN)
    assert cleaned.outputs[0].op == "attention"
    assert np.array_equal(evaluate(graph, arrays)[0], evaluate(cleaned, arrays)[0])
