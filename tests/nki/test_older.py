"""NKI 0.1 to 0.5: signatures (signatures_older.txt), meanings, and what is noticed."""

import inspect
import sys
from pathlib import Path

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import TrnError, UnknownNameError, UsageError, explanation
from opentrn.dropin import install
from opentrn.nki.older import older_function
from opentrn.nki.older_changes import CHANGES, SINCE
from tests.nki.test_signatures import parameters, same

LINES = [
    line
    for line in Path(__file__).with_name("signatures_older.txt").read_text().splitlines()
    if not line.startswith("#")
]
MODULES = {"nl": "nki.language", "nisa": "nki.isa", "ncc": "nki.collectives"}
# Where the migration guide knows more than the stubs: explicit addresses, the flag of sendrecv,
# tensor_copy_dynamic_* up to 0.3; `priority` and `name` of collectives are accepted early.
MORE = {"ndarray": ["address"], "sendrecv": ["use_gpsimd_dma"]}
X = np.broadcast_to(np.arange(8, dtype=np.float32).reshape(1, 2, 4), (128, 2, 4)).copy()


@pytest.fixture
def older():
    """`older(version)`: (nl, nisa, ncc) as a script of that version imports them."""
    held = []

    def modules(version):
        held.append(install("trn2", version))
        return tuple(__import__(name, fromlist=["x"]) for name in MODULES.values())

    yield modules
    while held:
        held.pop().remove()


@pytest.mark.parametrize("line", LINES)
def test_parameters_and_defaults_of_older_versions(line, older):
    version, _, text = line.partition(" ")
    modules = dict(zip(MODULES, older(version), strict=True))
    path, _, rest = text.partition("(")
    module, _, name = path.removesuffix(" -").partition(".")
    if text.endswith(" -"):
        since_removed = name.startswith("tensor_copy_dynamic") and version in ("0.2", "0.3")
        assert hasattr(modules[module], name) == since_removed
        return
    function = getattr(modules[module], name)
    ours = [(p.name, p.default) for p in inspect.signature(function).parameters.values()]
    theirs = parameters(rest.rstrip(")").replace("nl.", "").replace("MemoryRegion.", ""))
    ours = [p for p in ours if p[0] not in MORE.get(name, ()) or p[0] in dict(theirs)]
    if module == "ncc":
        ours = [p for p in ours if p[0] not in ("priority", "name") or p[0] in dict(theirs)]
    assert [n for n, _ in ours] == [n for n, _ in theirs]
    for (parameter, mine), (_, wanted) in zip(ours, theirs, strict=True):
        close = isinstance(wanted, float) and mine == pytest.approx(wanted, rel=1e-7)
        assert same(mine, wanted) or close, parameter


def test_names_that_came_later_are_not_there(older):
    for key, since in SINCE.items():
        module, _, name = key.rpartition(".")
        place = list(MODULES.values()).index(module)
        for version in ("0.1", "0.2", "0.3", "0.4", "0.5", "0.6"):
            made = older(version)[place]
            assert hasattr(made, name) == (version >= since), (key, version)
            if version < since:
                with pytest.raises(AttributeError, match=f"came with NKI {since}"):
                    getattr(made, name)


def test_the_newest_version_is_the_module_itself(older):
    assert older("2.32.1")[1] is nki.isa
    assert older("0.5")[1] is not nki.isa
    assert older("0.5")[1].tensor_copy is nki.isa.tensor_copy


@pytest.mark.parametrize("name", ["0.8", "1", "", "2.26", "two"])
def test_unknown_versions_are_refused_before_anything_changes(name):
    before = list(sys.meta_path)
    with pytest.raises(UnknownNameError) as caught, nki.use_version(name):
        pass
    assert caught.value.code == "nki.version"
    assert sys.meta_path == before


def ran(kernel, *arrays):
    """(outputs, codes of findings, lines of findings) of a kernel."""
    run = nki.run(kernel, *arrays)
    return run.outputs, [f.code for f in run.findings], run.findings


def test_axis_1_was_the_last_axis(older):
    def kernel(x):
        tile, out = nl.ndarray((128, 2, 4), nl.float32), nl.ndarray((128, 2), nl.float32)
        nisa.dma_copy(dst=tile, src=x)
        nisa.tensor_reduce(out, nl.add, tile, 1)
        result = nl.ndarray((128, 2), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=result, src=out)
        return result

    nl, nisa, _ = older("0.2")
    found, codes, findings = ran(kernel, X)
    assert found[17].tolist() == [6, 22]
    assert codes == ["nki.migrate.tensor_reduce"]
    assert findings[0].where.text == "nisa.tensor_reduce(out, nl.add, tile, 1)"
    assert findings[0].fix == "pass axis=2"
    nl, nisa, _ = older("0.3")
    with pytest.raises(TrnError, match="last free dimension"):
        nki.run(kernel, X)


def test_the_dma_read_psum_and_added(older):
    def kernel(x):
        held = nl.ndarray((128, 8), nl.float32, buffer=nl.psum)
        tile = nl.ndarray((128, 8), nl.float32)
        nisa.dma_copy(tile, x)
        nisa.tensor_copy(held, tile)
        out = nl.ndarray((128, 8), nl.float32, buffer=nl.hbm)
        nisa.dma_copy(dst=out, src=held)
        nisa.dma_copy(dst=out, src=tile, dst_rmw_op=nl.add, unique_indices=True)
        return out

    x = X.reshape(128, 8)
    nl, nisa, _ = older("0.2")
    found, codes, _ = ran(kernel, x)
    np.testing.assert_array_equal(found, x + x)
    assert codes == ["nki.migrate.dma_copy", "nki.migrate.dma_copy", "nki.migrate.output"]


def test_the_library_of_the_third_version_fills_integers_with_floats_and_numbers_modes(older):
    def kernel():
        tile = nl.ndarray((4, 3), nl.uint32, buffer=nl.sbuf)
        nisa.memset(dst=tile, value=0.0)
        out = nl.ndarray((4, 3), nl.uint32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile, dge_mode=3)
        return out

    nl, nisa, _ = older("0.3")
    found, codes, _ = ran(kernel)
    assert not found.any()
    assert codes == ["nki.migrate.memset", "nki.migrate.number"]


@pytest.mark.parametrize(("value", "wanted"), [(2.0, 2), (2.5, 2), (-3.5, -4)])
def test_memset_converted_floats(older, value, wanted):
    def kernel():
        tile = nl.ndarray((4, 3), nl.int32, buffer="sbuf")
        nisa.memset(tile, value)
        out = nl.ndarray((4, 3), nl.int32, buffer="shared_hbm")
        nisa.dma_copy(dst=out, src=tile, dge_mode=3)
        return out

    nl, nisa, _ = older("0.2")
    found, codes, findings = ran(kernel)
    assert (found == wanted).all()
    assert codes == [
        *("nki.migrate.ndarray", "nki.migrate.memset", "nki.migrate.ndarray"),
        "nki.migrate.number",
    ]
    assert findings[3].fix == "pass dge_mode=nisa.dge_mode.none"


def test_arguments_stood_in_another_order(older):
    def kernel(x):
        tile, out = nl.ndarray((8, 8), nl.float32), nl.ndarray((8, 8), nl.float32)
        nisa.dma_copy(tile, x)
        nisa.affine_select(out, [[-1, 8]], 2, 1, tile, -1.0, nl.greater_equal)
        result = nl.ndarray((8, 8), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_compute(result, [out, out], [1.0, 1.0], nl.add)
        return result

    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    nl, nisa, _ = older("0.2")
    found, codes, _ = ran(kernel, x)
    row, column = np.indices((8, 8))
    np.testing.assert_array_equal(found, 2 * np.where(2 + row - column >= 0, x, -1))
    assert codes == ["nki.migrate.affine_select", "nki.migrate.dma_compute"]


def test_keywords_that_did_not_exist_were_ignored_by_the_first_version(older):
    def kernel(x):
        a = nl.ndarray((4, 4), nl.bfloat16)
        nisa.dma_copy(a, x)
        b, acc = nl.ndarray((4, 4), nl.float32), nl.ndarray((4, 4), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(acc, a, a, is_moving_zero=False, psumAccumulateFlag=3)
        nisa.tensor_copy(b, acc, dtype=nl.bfloat16)
        out = nl.ndarray((4, 4), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=b)
        return out

    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    nl, nisa, _ = older("0.1")
    found, codes, findings = ran(kernel, x)
    np.testing.assert_array_equal(found, x.T @ x)
    assert codes == ["nki.migrate.keyword"] * 3
    assert {f.what.split("`")[1] for f in findings} == {
        *("is_moving_zero", "psumAccumulateFlag", "dtype"),
    }
    nl, nisa, _ = older("0.2")
    with pytest.raises(TypeError):
        nki.run(kernel, x)


def test_registers_constants_and_offsets(older):
    def kernel(x):
        constants = __import__("nki.isa.constants", fromlist=["x"])
        reg = nisa.register_alloc()
        nisa.register_move(reg, imm=2)
        kept = nl.shared_constant(np.arange(4.0).reshape(1, 4), dtype=nl.float32)
        tile = nl.ndarray((1, 4), nl.float32)
        nisa.dma_copy(tile, x[2:3].ap([[4, 1], [1, 4]], offset=4))
        out = nl.ndarray((2, 4), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(out[0:1], tile, oob_mode=constants.oob_mode.error)
        nisa.dma_copy(out[1:2], kept)
        return out

    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    nl, nisa, _ = older("0.2")
    found, codes, _ = ran(kernel, x)
    assert found.tolist() == [[4, 5, 6, 7], [0, 1, 2, 3]]  # row 1, counted from the whole tensor
    assert codes == [
        *("nki.migrate.register_move", "nki.migrate.shared_constant", "nki.migrate.ap"),
        "nki.migrate.constants",
    ]


def test_a_lower_rank_of_a_transposed_result_was_padded(older):
    def kernel(x):
        turned = nl.ndarray((64, 32), nl.bfloat16, buffer=nl.sbuf)
        nisa.dma_transpose(turned, x)
        out = nl.ndarray((64, 32), nl.bfloat16, buffer=nl.shared_hbm)
        nisa.dma_copy(out, turned)
        return out

    x = np.arange(32 * 64).reshape(32, 1, 64).astype("bfloat16")
    nl, nisa, _ = older("0.3")
    found, codes, _ = ran(kernel, x)
    assert codes == ["nki.migrate.dma_transpose"]
    np.testing.assert_array_equal(found.astype(float), x[:, 0].T.astype(float))
    nl, nisa, _ = older("0.4")
    with pytest.raises(TrnError, match=r"\[64, 1, 32\]"):
        nki.run(kernel, x)


@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize(("target", "version"), [("trn1", "0.2"), ("trn1", "0.3"), ("trn2", "0.2")])
def test_a_chip_does_as_specified_or_as_observed(target, version, observed, monkeypatch):
    # TC-07: issue 1296 of aws-neuron-sdk saw 0 on trn1 with NKI 0.2, where 0 + 1 is specified
    monkeypatch.setenv("OPENTRN_BEHAVIOUR", "as-observed" if observed else "spec")

    def kernel(x, op):
        data, bias = nl.ndarray(x.shape, x.dtype), nl.ndarray((128, 1), x.dtype)
        nisa.dma_copy(dst=data, src=x)
        nisa.memset(dst=bias, value=1.0)
        nisa.activation(dst=data, op=op, data=data, bias=bias)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=data)
        return out

    x = np.zeros((128, 512), np.float32)
    with install(target, version):
        import nki.isa as nisa
        import nki.language as nl

        copied, applied = (nki.run(kernel, x, op) for op in (nl.copy, nl.relu))
    seen = observed and (target, version) == ("trn1", "0.2")
    assert (copied.outputs == (0.0 if seen else 1.0)).all()
    code = "nki.quirk" if seen else "sim.disputed_operand"
    assert [f.code for f in copied.findings] == [code]
    assert explanation(code).fault == "disputed"
    assert (applied.outputs == 1.0).all()
    assert applied.findings == ()


def test_a_clean_kernel_is_clean_in_every_version(older):
    def kernel(x):
        tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        return out

    for version in ("0.1", "0.2", "0.3", "0.4", "0.5", "0.6"):
        nl, nisa, _ = older(version)
        found, codes, _ = ran(kernel, X)
        np.testing.assert_array_equal(found, 2 * X)
        assert codes == []


def test_each_change_is_declared_and_leads_to_a_function_of_today():
    for key, changes in CHANGES.items():
        module, _, name = key.rpartition(".")
        assert explanation(f"nki.migrate.{name}").fix
        today = vars(nki)[module.removeprefix("nki.")]
        for change in changes:
            made = older_function(getattr(today, change.now or name), key, change, change.last)
            assert made.__name__ == name


REMOVED = [
    (lambda nisa, t: nisa.dma_copy(dst=t, src=t, dst_rmw_op="add"), "dst_rmw_op", "0.2"),
    (lambda nisa, t: nisa.tensor_copy(t, t, dtype="float32"), "dtype", ""),
    (lambda nisa, t: nisa.tensor_copy(t, t, mask=None), "mask", ""),
    (lambda nisa, t: t.reshape(new_shape=(128, 8)), "new_shape", ""),
    (lambda nisa, t: nisa.register_move(None, imm=1), "imm", "0.2"),
]


@pytest.mark.parametrize(("call", "keyword", "last"), REMOVED, ids=[r[1] for r in REMOVED])
def test_parameters_of_older_versions_are_refused_with_the_way_out(call, keyword, last):
    def kernel(x):
        call(nki.isa, nki.language.load(x))

    with pytest.raises(TypeError) as caught:
        nki.run(kernel, X)
    assert caught.value.code == "nki.removed"
    assert f"`{keyword}`" in caught.value.what
    assert (f"--nki {last}" in caught.value.fix) == bool(last)
    assert keyword in caught.value.at.text


def test_a_wrong_keyword_of_the_users_own_function_stays_a_type_error():
    def copy(x):
        return x

    def kernel(x):
        copy(x, dtype=1)

    with pytest.raises(TypeError) as caught:
        nki.run(kernel, X)
    assert not isinstance(caught.value, TrnError)


def test_a_behaviour_that_is_none_is_refused_before_anything_changes(monkeypatch):
    monkeypatch.setenv("OPENTRN_BEHAVIOUR", "odd")
    with pytest.raises(UsageError, match="OPENTRN_BEHAVIOUR is 'odd'") as refused, install():
        pass
    assert refused.value.code == "dropin.behaviour"
