"""What is noticed although the numbers may come out right (orders, resets, ignored operands)."""

import numpy as np
import pytest

from opentrn import nki
from opentrn.base import TrnError, UnwrittenError
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl
from opentrn.sim import Strict

ONES = np.ones((128, 128), np.float32)
WIDE = np.ones((128, 512), np.float32)


def out_of(acc):
    out = nl.ndarray(acc.shape, nl.float32, buffer=nl.shared_hbm)
    nl.store(out, acc)
    return out


def psum(*shape, **more):
    return nl.ndarray(shape, nl.float32, buffer=nl.psum, **more)


def codes(run):
    return [finding.code for finding in run.findings]


def test_the_first_touch_of_each_location_overwrites():
    def kernel(w, x):
        acc = psum(1, 6)
        left, right = nl.load(w), nl.load(x)
        nisa.nc_matmul(acc[:, 0:4], left, right)
        nisa.nc_matmul(acc[:, 2:6], left, right)
        return out_of(acc)

    run = nki.run(kernel, np.ones((1, 1), np.float32), np.ones((1, 4), np.float32))
    assert run.outputs.tolist() == [[1, 1, 2, 2, 1, 1]]
    assert run.findings == ()


@pytest.mark.parametrize("accumulate", [None, True])
def test_two_products_of_ones_are_256(accumulate):
    def kernel(w, x):
        acc, left, right = psum(128, 512), nl.load(w), nl.load(x)
        nisa.nc_matmul(acc, left, right)
        nisa.nc_matmul(acc, left, right, accumulate=accumulate)
        return out_of(acc)

    run = nki.run(kernel, ONES, WIDE)
    assert (run.outputs == 256).all()
    assert run.findings == ()


def test_accumulate_false_begins_anew():
    def kernel(w, x):
        acc, left, right = psum(128, 512), nl.load(w), nl.load(x)
        for _ in range(3):
            nisa.nc_matmul(acc, left, right, accumulate=False)
        return out_of(acc)

    assert (nki.run(kernel, ONES, WIDE).outputs == 128).all()


def accumulating_on_nothing(w, x):
    acc = psum(128, 512, name="sums")
    nisa.nc_matmul(acc, nl.load(w), nl.load(x), accumulate=True)
    return out_of(acc)


def test_accumulating_on_psum_nobody_wrote_is_an_error():
    with pytest.raises(UnwrittenError) as caught:
        nki.run(accumulating_on_nothing, ONES, WIDE)
    assert caught.value.code == "sim.accumulate_unset"
    assert "`sums` [128, 512]" in caught.value.what
    assert "accumulate=True" in caught.value.at.text
    with nki.use_strict(Strict(accumulate_unset="report")):
        run = nki.run(accumulating_on_nothing, ONES, WIDE)
    assert np.isnan(run.outputs).all()
    assert codes(run) == ["sim.accumulate_unset"]
    with nki.use_strict(Strict(accumulate_unset="ignore")):
        assert nki.run(accumulating_on_nothing, ONES, WIDE).findings == ()


def test_a_reset_inside_the_reduction_is_found():
    def kernel(w, x):
        acc, left, right = psum(128, 512), nl.load(w), nl.load(x)
        for _ in range(2):
            nisa.memset(acc, 0.0)
            nisa.nc_matmul(acc, left, right)
        return out_of(acc)

    run = nki.run(kernel, ONES, WIDE)
    assert codes(run) == ["sim.reset_in_reduction"]
    assert run.findings[0].where.text == "nisa.memset(acc, 0.0)"
    with nki.use_strict(Strict(reset_in_reduction="error")), pytest.raises(TrnError):
        nki.run(kernel, ONES, WIDE)


def test_a_read_inside_the_reduction_is_found_even_if_the_sum_is_right():
    def kernel(w, x):
        acc, left, right = psum(128, 512), nl.load(w), nl.load(x)
        nisa.nc_matmul(acc, left, right)
        nl.copy(acc)
        nisa.nc_matmul(acc, left, right)
        return out_of(acc)

    run = nki.run(kernel, ONES, WIDE)
    assert (run.outputs == 256).all()
    assert codes(run) == ["sim.read_open_group"]


def test_reading_one_group_beside_another_open_one_is_no_finding():
    def kernel(w, x):
        acc, left, right = psum(128, 2, 128), nl.load(w), nl.load(x)
        nisa.nc_matmul(acc[:, 0, :], left, right[:, 0:128])
        nisa.nc_matmul(acc[:, 1, :], left, right[:, 0:128])
        first = nl.copy(acc[:, 0, :])
        nisa.nc_matmul(acc[:, 1, :], left, right[:, 0:128])
        return out_of(nl.add(first, acc[:, 1, :]))

    run = nki.run(kernel, ONES, WIDE)
    assert (run.outputs == 3 * 128).all()
    assert run.findings == ()


def test_a_tile_of_two_banks_takes_one_group_after_the_other():
    def kernel(w, x):
        left, right = nl.load(w), nl.load(x)
        results = nl.ndarray((4, 128, 128), nl.float32, buffer=nl.shared_hbm)
        acc = psum(128, 2, 128)
        for turn in range(4):
            bank = acc[:, turn % 2, :]
            for k in range(2):
                nisa.nc_matmul(bank, left, right[:, 0:128], accumulate=k > 0)
            nl.store(results[turn], bank)
        return results

    run = nki.run(kernel, ONES, WIDE)
    assert (run.outputs == 256).all()
    assert run.findings == ()


def test_uninitialised_reads_are_found_once_for_each_line():
    def kernel():
        t, u = nl.ndarray((4, 8), nl.float32, name="t"), nl.ndarray((4, 8), nl.float32)
        for _ in range(5):
            nisa.tensor_copy(u, t)
        return out_of(u)

    run = nki.run(kernel)
    assert codes(run) == ["sim.uninitialised"]
    assert "`t`" in run.findings[0].what
    assert run.findings[0].where.text == "nisa.tensor_copy(u, t)"
    assert np.isnan(run.outputs).all()
    with nki.use_strict(Strict(uninitialised="error")), pytest.raises(UnwrittenError) as caught:
        nki.run(kernel)
    assert caught.value.at.text == "nisa.tensor_copy(u, t)"
    with nki.use_strict(Strict(uninitialised="ignore")):
        assert nki.run(kernel).findings == ()


def test_tiles_written_piece_by_piece_are_written():
    def kernel(x):
        t = nl.ndarray((128, 6, 8), nl.float32)
        for start in range(0, 128, 32):
            for j in range(6):
                nisa.memset(t[start : start + 32, j, 0:4], 1.0)
                nisa.memset(t[start : start + 32, j, 4:8:2], 2.0)
                nisa.memset(t[start : start + 32, j, 5:8:2], 3.0)
        return out_of(t)

    run = nki.run(kernel, ONES)
    assert run.findings == ()
    assert run.outputs[100, 5].tolist() == [1, 1, 1, 1, 2, 3, 2, 3]


def test_one_missing_element_is_found():
    def kernel():
        t = nl.ndarray((16, 8), nl.float32)
        nisa.memset(t[:, 0:7], 1.0)
        return out_of(t)

    run = nki.run(kernel)
    assert codes(run) == ["sim.uninitialised"]
    assert np.isnan(run.outputs[:, 7]).all()


def test_a_choice_over_unwritten_elements_is_found():
    def kernel(x):
        t, u = nl.load(x), nl.ndarray((128, 128), nl.float32)
        nisa.tensor_copy_predicated(u, t, nl.equal(t, 1.0, dtype=nl.uint8))
        return out_of(u)

    assert codes(nki.run(kernel, ONES)) == ["sim.uninitialised"]


def test_a_bias_the_hardware_ignores_is_told():
    def kernel(x, b, op):
        t, bias = nl.load(x), nl.load(b)
        nisa.activation(t, op, t, bias=bias)
        return out_of(t)

    x, b = np.zeros((128, 512), np.float32), np.ones((128, 1), np.float32)
    run = nki.run(kernel, x, b, nl.relu)
    assert (run.outputs == 1).all()
    assert run.findings == ()
    run = nki.run(kernel, x, b, nl.copy)
    assert (run.outputs == 1).all()
    assert codes(run) == ["sim.disputed_operand"]
    assert "bias" in run.findings[0].what
    assert "copy" in run.findings[0].what


def test_findings_have_a_text_and_a_json_form():
    def kernel():
        t, u = nl.ndarray((4, 8), nl.float32), nl.ndarray((4, 8), nl.float32)
        nisa.tensor_copy(u, t)
        return out_of(u)

    finding = nki.run(kernel).findings[0]
    lines = str(finding).splitlines()
    assert [line[:8] for line in lines[1:]] == [
        "  at    ", "  rule  ", "  fix   ", "  chip  ", "  more  ",
    ]  # fmt: skip
    assert lines[-1] == "  more  opentrn explain sim.uninitialised"
    assert finding.json()["at"]["text"] == "nisa.tensor_copy(u, t)"
    assert finding.json()["code"] == "sim.uninitialised"


@pytest.mark.parametrize(
    ("read", "address", "told"),
    [
        ("before", 256, 0),
        ("after", 256, 1),
        ("never", 256, 1),
        ("after", 512, 0),
        ("after", 2048, 0),
    ],
)
def test_a_psum_tile_by_address_over_unread_results_of_a_live_one(read, address, told):
    def kernel(x, read, address):
        tile = nl.load(x)
        a = nl.ndarray((64, 128), nl.float32, buffer=nl.psum, address=(0, 0), name="a")
        b = nl.ndarray((64, 128), nl.float32, buffer=nl.psum, address=(0, address), name="b")
        out = nl.ndarray((2, 64, 128), nl.float32, buffer=nl.shared_hbm)
        nisa.nc_matmul(a, tile[:, 0:64], tile)
        if read == "before":
            nl.store(out[0], nl.copy(a))
        nisa.nc_matmul(b, tile[:, 0:64], tile)
        if read == "after":
            nl.store(out[0], nl.copy(a))
        nl.store(out[1], nl.copy(b))
        return out

    x = np.ones((4, 128), np.float32)
    run = nki.run(kernel, x, read, address)
    found = [f for f in run.findings if f.code == "sim.unread_alias"]
    assert len(found) == told
    given = {"x": nki.Shaped(nl.float32, (4, 128)), "read": read, "address": address}
    checked = nki.check(kernel, "trn2", given)
    assert [f.what for f in checked.findings if f.code == "sim.unread_alias"] == [
        f.what for f in found
    ]
    for one in found:
        assert "`b` begins over unread results of `a`" in one.what
        assert 'name="b"' in one.where.text
    assert (run.outputs[1] == 4).all()


def added_to_a_number(w, x):
    acc = psum(128, 512)
    nisa.memset(acc, 3.0)
    nisa.nc_matmul(acc, nl.load(w), nl.load(x), accumulate=True)
    return out_of(acc)


def test_from_the_fourth_generation_on_a_matmul_adds_to_what_another_instruction_wrote():
    """NKI ISA reference, nc_matmul: undefined on NeuronCore-v2 and v3, where it is refused."""
    with nki.use_target("trn3"):
        run = nki.run(added_to_a_number, ONES, WIDE)
        assert (run.outputs == 131).all()
        assert run.findings == ()
        with pytest.raises(UnwrittenError):
            nki.run(accumulating_on_nothing, ONES, WIDE)
    for older in ("trn1", "trn2"):
        with nki.use_target(older), pytest.raises(UnwrittenError):
            nki.run(added_to_a_number, ONES, WIDE)
