"""NKI 0.7: any Python in kernels, variable-length collectives in two steps, names not built."""

import inspect

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import TrnError
from opentrn.dropin import install
from opentrn.nki import language as nl
from opentrn.nki.subset import examine


@pytest.fixture
def ncc():
    """`nki.collectives` as a script of NKI 0.7 imports it."""
    with install("trn2", "0.7"):
        import nki.collectives

        yield nki.collectives


def room(shape, dtype, name):
    return nl.ndarray(shape, dtype, buffer=nl.private_hbm, name=name)


def returned(tensor):
    out = nl.ndarray(tensor.shape, tensor.dtype, buffer=nl.shared_hbm)
    nki.isa.dma_copy(out, tensor)
    return out


COUNTS, STARTS = [1, 2, 0, 2], [2, 0, 0, 1]
XS = [np.arange(3, dtype=np.float32) + 10 * rank for rank in range(4)]


def metadata(count, start):
    """Counts and places sent, of which the first column is read; counts received; no places."""
    table = np.zeros((4, 4), np.uint32)
    table[0, 0], table[1, 0] = count, start
    return table


METAS = [metadata(c, s) for c, s in zip(COUNTS, STARTS, strict=True)]


def on_four_ranks(kernel):
    group = nki.collectives.ReplicaGroup([[0, 1, 2, 3]])
    return nki.simulate(kernel[2], ranks=4)(nki.PerRank(XS), nki.PerRank(METAS), group)


def test_a_collective_in_two_steps_reads_counts_first_and_data_last(ncc):
    @nki.jit
    def kernel(x, meta, group):
        src, table = room(x.shape, x.dtype, "src"), room(meta.shape, meta.dtype, "table")
        dst = room((8,), x.dtype, "dst")
        nki.isa.dma_copy(dst, nl.shared_constant(np.zeros(8, np.float32)))
        nki.isa.dma_copy(table, meta)
        prepared = ncc.all_gather_v_prepare([src], [dst], group, table)
        nki.isa.dma_copy(src, x)  # filled after the counts were read
        nki.isa.dma_copy(table, nl.shared_constant(np.zeros((4, 4), np.uint32)))
        ncc.all_gather_v_trigger(prepared)
        return returned(dst)

    # rank r sends COUNTS[r] elements from STARTS[r] on, into slots of two
    for got in on_four_ranks(kernel):
        assert got.tolist() == [2, 0, 10, 11, 0, 0, 31, 32]


def wrong_order(ncc, src, dst, group, table):
    ncc.all_gather_v_prepare([src], [dst], group, table)
    ncc.all_gather_v_prepare([src], [dst], group, table)


def wrong_kind(ncc, src, dst, group, table):
    ncc.all_to_all_v_trigger(ncc.all_gather_v_prepare([src], [dst], group, table))


def no_trigger(ncc, src, dst, group, table):
    ncc.all_gather_v_prepare([src], [dst], group, table)


def no_prepare(ncc, src, dst, group, table):
    ncc.all_gather_v_trigger(None)


def twice(ncc, src, dst, group, table):
    prepared = ncc.all_gather_v_prepare([src], [dst], group, table)
    ncc.all_gather_v_trigger(prepared)
    ncc.all_gather_v_trigger(prepared)


@pytest.mark.parametrize("steps", [wrong_order, wrong_kind, no_trigger, no_prepare, twice])
def test_steps_that_do_not_pair_are_refused(ncc, steps):
    @nki.jit
    def kernel(x, meta, group):
        src, table = room(x.shape, x.dtype, "src"), room(meta.shape, meta.dtype, "table")
        nki.isa.dma_copy(src, x)
        nki.isa.dma_copy(table, meta)
        dst = room((8,), x.dtype, "dst")
        steps(ncc, src, dst, group, table)
        return returned(src)

    with pytest.raises(TrnError) as refused:
        on_four_ranks(kernel)
    assert refused.value.code == "nki.prepared"


def test_trn3_does_not_know_two_steps(ncc):
    def kernel(x, meta):
        group = nki.collectives.ReplicaGroup([[0]])
        ncc.all_to_all_v_prepare([x], [x], group, meta)

    with nki.use_target("trn3"), pytest.raises(TrnError) as refused:
        nki.run(kernel, XS[0], METAS[0])
    assert refused.value.code == "nki.prepare_chip"


def test_signatures(ncc):
    for name in ("all_gather_v", "all_to_all_v"):
        whole = inspect.signature(getattr(ncc, name))
        assert inspect.signature(getattr(ncc, f"{name}_prepare")) == whole
        trigger = inspect.signature(getattr(ncc, f"{name}_trigger"))
        assert str(trigger).startswith("(prepare_instr: ")
        assert trigger.parameters["name"].default is None
        assert not hasattr(nki.collectives, f"{name}_prepare")  # 0.6 has no such thing


def odd(x):
    try:
        sizes = [n + 1 for n in (lambda: (127, 511))()]
    finally:
        pass
    return nl.ndarray(tuple(sizes), x.dtype, buffer=nl.shared_hbm)


def test_all_of_python_is_accepted_since_07():
    assert {f.code for f in examine(odd)} >= {"nki.python_try", "nki.python_lambda"}
    with nki.use_version("2.33.1"):
        assert nki.current_version() == "0.7"
        assert examine(odd) == []


def test_names_that_are_not_built_say_so():
    with install("trn2", "0.7"):
        import nki.isa
        import nki.language

        assert nki.isa.tensor_copy is not None
        for name in ("tiles", "blocks", "alloc_tiles", "NkiTileGrid"):
            with pytest.raises(TrnError) as refused:
                getattr(nki.language, name)
            assert refused.value.code == "nki.newer"
            assert name in refused.value.what
        with pytest.raises(AttributeError):
            nki.language.no_such_name  # noqa: B018
