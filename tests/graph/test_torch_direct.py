"""Rules of ops that export takes apart before we see them: called straight, against torch."""

import numpy as np
import pytest

from opentrn.graph import Graph, Value, evaluate, g
from opentrn.graph.importers.torch_rules import RULES

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")

torch.manual_seed(5)
X, Y = torch.randn(4, 6), torch.randn(4, 6)
N, M = torch.randint(-9, 9, (4, 6)), torch.randint(1, 5, (4, 6))
B = X > 0
C = torch.randn(2, 3, 4, 4)
D = torch.randn(1, 2, 4, 4, 4)
K = torch.randn(3, 2, 2, 3, 2)
S = torch.tensor(2.5)
V = torch.randn(6)

CASES = [
    ("_adaptive_avg_pool2d", C, [2, 2]), ("_log_softmax", X, 1, False), ("_softmax", X, 0, False),
    ("_unsafe_view", X, [6, 4]), ("add.Scalar", X, 2, 3), ("addcdiv", X, Y, Y),
    ("addcmul", X, Y, X, {"value": 2}), ("all", B), ("all.dim", B, 1), ("all.dims", B, [0, 1]),
    ("any.dims", B, None, True), ("arange", 5), ("arange.start", 2, 7.5),
    ("baddbmm", X[None, :, :4], X[None], Y.t()[None], {"beta": 0}), ("bitwise_and.Scalar", N, 6),
    ("bitwise_or.Scalar", N, 6), ("bitwise_xor.Scalar", N, 6), ("clamp_max", X, 0.1),
    ("clamp_min", N, 1), ("contiguous", X), ("conv3d", D, K), ("detach", X), ("detach_", X),
    ("div.Scalar", N, 4), ("div.Scalar_mode", X, 0.7, {"rounding_mode": "floor"}),
    ("dot", V, V), ("dropout", X, 0.3, False), ("flatten.using_ints", C, 1, 2),
    ("flatten.using_ints", S), ("floor_divide", N, M), ("floor_divide", X, Y),
    ("lift_fresh_copy", X), ("lt.Scalar", X, 0.1), ("masked_fill.Scalar", X, B, 7),
    ("masked_fill.Tensor", X, B, S), ("mul.Scalar", N, 1.5), ("mv", X, V), ("narrow", X, 1, 2, 3),
    ("ne.Tensor", N, M), ("new_full", N, [2], 3), ("ones", [2, 3]), ("ones_like", N),
    ("outer", V, V), ("reshape", X, [-1, 2]), ("roll", X, [1, 2], [0, 1]), ("roll", X, [-3]),
    ("rsub.Scalar", X, 3), ("rsub.Tensor", X, Y, {"alpha": 2}), ("select_scatter", X, V, 0, -1),
    ("sort.stable", N, {"stable": True}), ("square", X), ("squeeze", X[:1]),
    ("squeeze.dim", X[:1], 0), ("squeeze.dim", X, 0), ("sub.Scalar", X, 2, 3), ("sum", N),
    ("sum", X, {"dtype": torch.float64}), ("t", X), ("t", V), ("to.dtype", X, torch.int32),
    ("transpose.int", C, 1, -1), ("tril", X, -1), ("triu", X, 2), ("view.dtype", X, torch.float32),
    ("where.ScalarOther", B, X, 2), ("where.ScalarSelf", B, 2, N), ("zeros", [3]),
    ("zeros_like", X, {"dtype": torch.bool}), ("scalar_tensor", 3), ("full", [2], True),
    ("maximum", N, M), ("gather", S, 0, torch.tensor([0, 0])), ("cumsum", B, 0), ("any", N),
    ("index.Tensor", X, [None, torch.tensor([[0, -1], [2, 3]])]),
    ("pow.Scalar", 2, N.float()), ("pow.Tensor_Scalar", X, 1), ("clamp", N, 1.5, None),
]


def call(name, given):
    """(our result, torch's) of an op on the same arguments."""
    *args, last = given
    named = last if isinstance(last, dict) else {}
    args = args if isinstance(last, dict) else given
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")
    inputs, arrays = [], []

    def ours(x):
        if isinstance(x, torch.Tensor):
            inputs.append(g.input(f"x{len(inputs)}", tuple(x.shape), x.dtype))
            arrays.append(x.numpy())
            return inputs[-1]
        if isinstance(x, list):
            return [ours(v) for v in x]
        return str(x).removeprefix("torch.") if isinstance(x, torch.dtype) else x

    rule = RULES[f"aten::{name}"]
    names = [a.name for a in op._schema.arguments]
    bound = dict(zip(names, args, strict=False)) | named
    results = rule.make(g, **{k: ours(v) for k, v in bound.items() if k in rule.parameters})
    results = [results] if isinstance(results, Value) else list(results)
    want = op(*args, **named)
    want = [want] if isinstance(want, torch.Tensor) else list(want)
    return evaluate(Graph(inputs, results), arrays), [w.numpy() for w in want]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
def test_rule(case):
    name, *given = case
    ours, torchs = call(name, given)
    for got, want in zip(ours, torchs, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=1e-6,
                                   atol=1e-6)
