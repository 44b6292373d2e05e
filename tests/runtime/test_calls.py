"""What a call of a model gives back: from several threads, without dimensions, of modules."""

import threading

import numpy as np
import pytest

import opentrn
from opentrn.base import UsageError
from opentrn.graph import Graph, g


def doubled():
    x = g.input("x", (128, 64))
    return opentrn.load(opentrn.compile(Graph([x], [g.exponential(x)])))


def test_threads_that_share_a_model_get_their_own_results():
    model = doubled()
    given = [np.full((128, 64), n / 4, np.float32) for n in range(4)]
    wrong = []

    def call(array):
        for _ in range(15):
            if not np.allclose(model(array), np.exp(array), rtol=1e-5):
                wrong.append(array[0, 0])

    threads = [threading.Thread(target=call, args=(array,)) for array in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("saved", [False, True])
def test_a_result_without_dimensions_has_none(saved, tmp_path):
    x = g.input("x", ())
    executable = opentrn.compile(Graph([x], [g.exponential(x), g.reshape(x, (1,))]))
    if saved:
        executable.save(tmp_path / "scalar.trn")
        executable = tmp_path / "scalar.trn"
    first, second = opentrn.load(executable)(np.float32(1))
    assert first.shape == ()
    assert second.shape == (1,)
    np.testing.assert_allclose(first, np.e, rtol=1e-6)


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="the extra `torch` is not installed")


def test_what_a_module_returns_comes_flat(torch):
    class Nested(torch.nn.Module):
        def forward(self, x):
            return {"sum": x.sum(), "more": [x * 2, x - 1]}

    x = torch.ones(2, 4)
    found = opentrn.load(opentrn.compile(Nested(), (x,)))(x)
    for ours, theirs in zip(found, (x.sum(), x * 2, x - 1), strict=True):
        assert ours.shape == theirs.shape
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("what", ["buffer", "argument", "None", "number"])
def test_a_module_that_does_more_than_return_tensors_is_refused(torch, what):
    class Effects(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            if what == "buffer":
                self.count += 1
            if what == "argument":
                x.add_(1)
            return (x * 2, None) if what == "None" else (x * 2, 5) if what == "number" else x * 2

    with pytest.raises(UsageError) as caught:
        opentrn.compile(Effects(), (torch.ones(2, 4),))
    named = {"buffer": "`count`", "argument": "`x`", "None": "None", "number": "5"}[what]
    assert caught.value.code == "graph.effects"
    assert named in caught.value.what
