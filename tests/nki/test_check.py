"""`nki.check`: refusals and findings from shapes, without values."""

import json

import ml_dtypes
import numpy as np
import pytest

from opentrn import nki
from opentrn.base import OrderError, TrnError, bfloat16, float32
from opentrn.nki import Shaped, check, read_pair
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.nki.check_arguments import examples, read, shaped
from opentrn.nki.typing import tensor

TILE = Shaped(float32, (128, 512))


def codes(found):
    return [each.code for each in found]


@nki.jit
def doubled(a, times=2):
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    tile = nl.load(a)
    for _ in range(times):
        nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nl.store(out, tile)
    return out


def test_a_clean_kernel_is_clean_and_nothing_is_computed(monkeypatch):
    monkeypatch.setattr("opentrn.sim.functional.Machine._run_plain", None)
    found = check(doubled, "trn2", {"a": TILE, "times": 3})
    assert (found.status, found.complete, found.refusals, found.findings) == ("clean", True, [], [])
    assert found.instructions == 5  # a load, three products, a store
    assert found.peak_bytes["sbuf"] == 512 * 4
    assert found.arguments == {"a": "float32[128,512]", "times": "3"}


def test_the_recording_goes_on_after_a_refused_instruction():
    def kernel(a):
        x = nl.load(a)
        nisa.tensor_tensor(x, x, nl.ndarray((128, 100), nl.float32), nl.add)
        wide = nl.ndarray((64, 1024), nl.float32, buffer=nl.psum)
        w, m = (nl.ndarray((128, n), nl.bfloat16) for n in (64, 1024))
        made = nisa.nc_matmul(wide, w, m)
        nisa.tensor_copy(x, x).depends_on(made)
        made.depends_on(made)
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        nl.store(out, x)
        return out

    found = check(kernel, "trn2", {"a": TILE})
    assert codes(found.refusals) == ["tensor_tensor.data2", "nc_matmul.N"]
    first = kernel.__code__.co_firstlineno
    assert [e.at.line for e in found.refusals] == [first + 2, first + 5]
    assert found.complete
    assert found.status == "refused"
    # trn3 takes the product, and what waits for itself is an instruction there
    later = check(kernel, "trn3", {"a": TILE}).refusals
    assert codes(later) == ["tensor_tensor.data2", "sim.order_ahead"]


def test_a_tile_that_cannot_exist_ends_the_recording():
    def kernel(a):
        nl.ndarray((256, 4), nl.float32)
        nisa.tensor_tensor(None, None, None, nl.add)

    found = check(kernel, "trn2", {"a": TILE})
    assert codes(found.refusals) == ["nki.partitions"]
    assert not found.complete


def test_more_sbuf_than_there_is():
    def kernel(a):
        tiles = [nl.zeros((128, 30_000), nl.float32) for _ in range(2)]
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        nisa.tensor_tensor(tiles[0], tiles[0], tiles[1], nl.add)
        nl.store(out, tiles[0][:, 0:512])
        return out

    found = check(kernel, "trn2", {"a": TILE})
    assert codes(found.refusals) == ["sim.sbuf_capacity"]


def test_tiles_that_the_compiler_spills_are_noticed_by_checks_as_by_runs():
    def kernel(a):
        tiles = []
        for n in range(4):  # 60,000 bytes of a partition each
            tiles.append(nl.full((128, 15_000), float(n), nl.float32))
        total = nl.zeros((128, 512), nl.float32)
        for tile in tiles:
            nisa.tensor_tensor(total, total, tile[:, 0:512], nl.add)
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        nl.store(out, total)
        return out

    found = check(kernel, "trn2", {"a": TILE})
    assert (found.status, found.refusals) == ("findings", [])
    assert codes(found.findings) == ["sim.spilled"]
    done = nki.run(kernel, np.zeros((128, 512), np.float32))
    assert (done.outputs == 6).all()
    assert [one.code for one in done.findings] == ["sim.spilled"]
    assert found.findings[0].what == done.findings[0].what


def test_outputs_and_inputs_that_are_left_or_changed():
    def kernel(a, b):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm, name="o")
        half = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm, name="h")
        tile = nl.load(a)
        nl.store(half[0:64, :], tile[0:64, :])
        nl.store(b, tile)
        return out, half

    found = check(kernel, "trn2", {"a": TILE, "b": TILE})
    assert codes(found.refusals) == ["sim.unwritten_output"]
    kinds = {f.code: f.what for f in found.findings}
    assert "50.0% unwritten" in kinds["sim.partial_output"]
    assert "`b`" in kinds["sim.mutated_input"]


def test_reads_of_what_nobody_wrote_and_ignored_operands():
    def kernel(a):
        x, y = nl.ndarray(a.shape, a.dtype), nl.ndarray(a.shape, a.dtype)
        nisa.tensor_copy(y, x)
        nisa.activation(y, nl.copy, nl.load(a), bias=nl.zeros((128, 1), nl.float32))
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        nl.store(out, y)
        return out

    found = check(kernel, "trn2", {"a": TILE})
    assert found.refusals == []
    first = kernel.__code__.co_firstlineno
    places = {f.code: f.where.line - first for f in found.findings}
    assert places["sim.uninitialised"] == 2
    assert places["sim.disputed_operand"] == 3


@pytest.mark.parametrize("accumulate", [True, False])
def test_accumulation_groups_are_followed(accumulate):
    def kernel(w, x):
        acc = nl.ndarray((64, 512), nl.float32, buffer=nl.psum)
        a, b = nl.load(w), nl.load(x)
        nisa.nc_matmul(acc, a, b, accumulate=accumulate)
        nisa.memset(acc, 0.0)
        out = nl.ndarray((64, 512), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, acc)
        return out

    given = {"w": Shaped(bfloat16, (128, 64)), "x": Shaped(bfloat16, (128, 512))}
    found = check(kernel, "trn2", given)
    assert codes(found.refusals) == ["sim.accumulate_unset"] * accumulate
    assert codes(found.findings) == ["sim.reset_in_reduction"]


def test_what_depends_on_values_is_said():
    def kernel(a):
        reg = nisa.register_alloc(nl.load(a)[0:1, 0:1])
        while reg:
            nisa.register_move(reg, 0)

    found = check(kernel, "trn2", {"a": Shaped(nl.int32, (1, 1))})
    assert codes(found.findings) == ["nki.migrate.while", "nki.check_values"]
    assert not found.complete


def test_errors_of_the_kernels_own_python_are_placed_there():
    def kernel(a):
        assert a.shape[0] == 64, "sixty-four rows"

    found = check(kernel, "trn2", {"a": TILE})
    assert codes(found.refusals) == ["nki.check_raised"]
    assert found.refusals[0].what.startswith("the kernel raised AssertionError: sixty-four rows")
    assert found.refusals[0].at.line == kernel.__code__.co_firstlineno + 1


@pytest.mark.parametrize("result", ["tile", 7])
def test_what_is_returned_must_be_in_shared_hbm(result):
    def kernel(a):
        return nl.load(a) if result == "tile" else 7

    code = "nki.output_space" if result == "tile" else "nki.return"
    assert codes(check(kernel, "trn2", {"a": TILE}).refusals) == [code]


def test_device_loops_and_returned_tuples():
    def kernel(a):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        for i in nl.dynamic_range(4):
            nl.store(out[:, nl.ds(i, 1)], nl.load(a[:, nl.ds(i, 1)]))
        return (out, [out])

    found = check(kernel, "trn2", {"a": Shaped(float32, (128, 4))})
    assert (found.refusals, found.complete) == ([], True)


def test_one_of_two_instances_may_write_half():
    def kernel(a):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        rows = nl.ds(nl.program_id(0) * 64, 64)
        nl.store(out[rows, :], nl.load(a[rows, :]))
        assert nl.num_programs() == 2
        return out

    assert check(kernel, "trn2", {"a": TILE}, grid=2).status == "clean"


def test_arguments_that_are_missing_or_unknown():
    missing = check(doubled, "trn2")
    assert missing.status == "unchecked"
    assert "`a`" in missing.refusals[0].what
    unknown = check(doubled, "trn2", {"a": TILE, "b": 1})
    assert codes(unknown.refusals) == ["nki.check_argument"]
    with pytest.raises(TrnError, match="trn9"):
        check(doubled, "trn9", {"a": TILE})


def test_shapes_come_from_annotations_and_examples():
    def declared(a: tensor[128, 64], b: "bfloat16[128, 64]"):
        return nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)

    found = check(declared, "trn2")
    assert found.arguments == {"a": "float32[128,64]", "b": "bfloat16[128,64]"}
    assert found.assumed == ["a: float32, as no dtype is declared"]

    array = np.zeros((2, 3), ml_dtypes.bfloat16)
    for inputs in ({"a": array}, {"doubled": {"a": array}}, (array,), lambda: (array, 5)):
        given = examples({"example_inputs": inputs}, "doubled", ["a", "times"])
        assert given["a"] == Shaped(bfloat16, (2, 3))
    assert given["times"] == 5
    assert examples({"doubled_inputs": ("float32[4]",)}, "doubled", ["a"]) == {
        "a": Shaped(float32, (4,))
    }
    assert examples({"example_inputs": 3}, "doubled", ["a"]) == {}


def test_argument_texts():
    assert read_pair("a=nl.float32[256, 512]") == ("a", Shaped(float32, (256, 512)))
    assert read("(float32[2], [bfloat16[3,4], -1])") == (
        Shaped(float32, (2,)),
        [Shaped(bfloat16, (3, 4)), -1],
    )
    assert read("bfloat16") == bfloat16
    assert [read(t) for t in ("None", "True", "1.5", "'x'")] == [None, True, 1.5, "x"]
    assert shaped(["a b", {"k": np.zeros(3, np.float32)}]) == [
        "a b",
        {"k": Shaped(float32, (3,))},
    ]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        *((text, "cannot read") for text in ("a", "=1", "a=float33[2]", "a=float32[x]", "a=1+")),
        ("a=float32[0]", "whole numbers from 1 on"),
    ],
)
def test_argument_texts_that_cannot_be_read(text, what):
    with pytest.raises(TrnError, match=what) as caught:
        read_pair(text)
    assert caught.value.code == "nki.check_argument"


def test_reports_as_text_and_json():
    found = check(doubled, "trn2", {"a": TILE})
    assert json.loads(json.dumps(found.json()))["peak_bytes_per_partition"]["sbuf"] == 2048
    assert str(found).startswith("doubled on trn2: clean (0 refused, 0 noticed; 4 instructions")
    assert nki.worst([]) == "unchecked"
    told = nki.document("k.py", [found, check(doubled, "trn2")])
    assert (told["schema"], told["status"]) == ("opentrn.check/1", "unchecked")


def test_an_index_column_may_have_further_dimensions_of_one():
    """A row of `table` for each partition, by an index of shape [4, 1, 1]."""

    def kernel(table, index):
        rows = nl.ndarray((4, 8), nl.float32)
        at = nl.load(index).reshape((4, 1, 1))
        nisa.dma_copy(rows, table.ap([[8, 4], [1, 8]], vector_offset=at, indirect_dim=0))
        out = nl.ndarray((4, 8), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, rows)
        return out

    given = {"table": Shaped(float32, (16, 8)), "index": Shaped(nl.int32, (4, 1))}
    assert check(kernel, "trn2", given).status == "clean"
    table = np.arange(128, dtype=np.float32).reshape(16, 8)
    index = np.array([[3], [0], [15], [7]], np.int32)
    np.testing.assert_array_equal(nki.run(kernel, table, index).outputs, table[index[:, 0]])


def waiting(kind):
    """Instructions that wait for each other, one for itself, or one for a later one."""

    def kernel(a):
        x, y = nl.load(a), nl.ndarray((128, 512), nl.float32)
        one, two = nisa.tensor_copy(y, x), nisa.tensor_copy(x, y)
        if kind == "circle":
            two.depends_on(one)
        one.depends_on(one if kind == "itself" else two)
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        nl.store(out, y)
        return out

    return kernel


@pytest.mark.parametrize("kind", ["circle", "itself", "ahead"])
def test_waits_that_lead_ahead_are_refused_by_runs_and_checks(kind):
    kernel = waiting(kind)
    line = kernel.__code__.co_firstlineno + 2
    found = check(kernel, "trn2", {"a": TILE})
    assert codes(found.refusals) == ["sim.order_ahead"]
    assert found.refusals[0].at.line == line
    with pytest.raises(OrderError) as refused:
        nki.run(kernel, np.zeros((128, 512), np.float32))
    assert refused.value.code == "sim.order_ahead"
    assert refused.value.at.line == line


def test_waits_that_lead_back_are_taken():
    def kernel(a):
        x, y = nl.load(a), nl.ndarray((128, 512), nl.float32)
        first = nisa.tensor_copy(y, x)
        nisa.tensor_copy(x, y).depends_on(first)
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        nl.store(out, x)
        return out

    assert check(kernel, "trn2", {"a": TILE}).refusals == []
    x = np.arange(128 * 512, dtype=np.float32).reshape(128, 512)
    assert np.array_equal(nki.run(kernel, x).outputs, x)
