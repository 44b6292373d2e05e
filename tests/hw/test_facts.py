"""The numbers: each file complete, each sum checked by independent arithmetic."""

import math
import re
import time
import tomllib

import pytest

from opentrn import hw
from opentrn.base.units import parse
from opentrn.hw.load import FOLDER, read_machine

MACHINES = (
    [(name, hw.chip) for name in hw.chips()]
    + [(name, hw.instance) for name in hw.instances()]
    + [(name, hw.fabric) for name in hw.fabrics()]
)
GIB, TERA, GIGA = 2**30, 1e12, 1e9


def test_the_lists():
    assert hw.chips() == ("inf2", "trn1", "trn2", "trn3")
    assert set(hw.instances()) == {
        "trn1.2xlarge", "trn1.32xlarge", "trn1n.32xlarge", "trn2.3xlarge", "trn2.48xlarge",
        "trn2u.48xlarge", "trn2-ultraserver", "trn3-gen1-ultraserver", "trn3-gen2-ultraserver",
        "inf2.xlarge", "inf2.8xlarge", "inf2.24xlarge", "inf2.48xlarge",
    }  # fmt: skip


@pytest.mark.parametrize(("name", "find"), MACHINES)
def test_every_machine_is_sourced(name, find):
    machine = find(name)
    used = set()
    for fact in machine:
        used |= {fact.source, *(reading.source for reading in fact.also)}
        if fact.unit not in ("text", "shape", "count", "number", "flag", "ratio"):
            quantity = parse(fact.text)
            assert (quantity.value, quantity.dimension) == (fact.value, fact.unit)
        if fact.grade == "assumed":
            assert len(fact.because) >= 6, fact.path
    assert used == set(machine.sources), "sources that no fact cites, or the other way round"
    for text in machine.sources.values():
        assert re.search(r"20\d\d|same commit|own choice", text), text


# Stated on the chip pages: cores, HBM GiB, HBM GB/s, bf16, fp8, fp32 TFLOP/s, SBUF MiB.
CHIPS = {
    "trn1": (2, 32, 820, 190, 190, 47.5, 48),
    "inf2": (2, 32, 820, 190, 190, 47.5, 48),
    "trn2": (8, 96, 2900, 667, 1299, 181, 224),
    "trn3": (8, 144, 4900, 671, 1258, 183, 256),
}


@pytest.mark.parametrize("name", CHIPS)
def test_chip(name):
    chip = hw.chip(name)
    cores, hbm, rate, bf16, fp8, fp32, sbuf = CHIPS[name]
    assert (chip.cores, chip.hbm, chip.hbm_bandwidth) == (cores, hbm * GIB, rate * GIGA)
    assert chip.peak_bf16 == pytest.approx(bf16 * TERA)
    assert chip.peak_fp8 == pytest.approx(fp8 * TERA)
    assert chip.peak_fp32 == pytest.approx(fp32 * TERA)
    assert chip.sbuf == sbuf * 2**20 == cores * chip.core.partitions * chip.core.sbuf_partition
    assert chip.dma_engines == cores * chip.dma.engines


@pytest.mark.parametrize(
    ("name", "core_bf16", "core_fp8", "core_mx"),
    [
        ("trn1", 92, 92, None),
        ("inf2", 92, 92, None),
        ("trn2", 79, 158, None),
        ("trn3", 79, 157.3, 315),
    ],
)
def test_core_peak_is_array_times_clock(name, core_bf16, core_fp8, core_mx):
    chip = hw.chip(name)
    made = 128 * 128 * 2 * {"trn1": 2.8e9, "inf2": 2.8e9, "trn2": 2.4e9, "trn3": 2.4e9}[name]
    assert chip.core.peak_bf16 == core_bf16 * TERA == pytest.approx(made, rel=0.01)
    assert chip.core.peak_fp8 == pytest.approx(core_fp8 * TERA)
    assert chip.core.peak_fp8 == pytest.approx(
        made * (2 if chip.tensor.double_row else 1), rel=0.01
    )
    assert chip.core.peak_fp32 == pytest.approx(made / 4, rel=0.03)
    if core_mx:
        assert chip.core.peak_mx == core_mx * TERA == pytest.approx(made * 4, rel=0.01)
        assert chip.peak_mx == pytest.approx(8 * made * 4, rel=0.001)
    else:
        assert not hasattr(chip.core, "peak_mx")


def test_chip_peak_is_not_the_sum_of_its_cores():
    """A known contradiction of the documents, kept as it is: 667 against 8 x 79 = 632."""
    trn2 = hw.chip("trn2")
    assert 1.04 < trn2.peak_bf16 / (8 * trn2.core.peak_bf16) < 1.07


@pytest.mark.parametrize(
    ("name", "engines", "peak", "advertised", "off"),
    [("trn1", 32, 27.2, 1.0, 0.14), ("trn2", 128, 27.2, 3.5, 0.01), ("trn3", 128, 38.4, 4.9, 0.01)],
)
def test_dma_sums(name, engines, peak, advertised, off):
    chip = hw.chip(name)
    assert chip.dma.engine_peak == peak * GIGA
    assert chip.dma_bandwidth == advertised * TERA
    assert engines * peak * GIGA == pytest.approx(chip.dma_bandwidth, rel=off)


@pytest.mark.parametrize(
    ("name", "share", "reach"), [("trn1", 410, 272), ("trn2", 362.5, 368), ("trn3", 612.5, 528)]
)
def test_a_core_and_its_share_of_hbm(name, share, reach):
    chip = hw.chip(name)
    assert chip.hbm_bandwidth / chip.cores == pytest.approx(share * GIGA)
    assert chip.dma.engines * chip.dma.engine_rate == pytest.approx(reach * GIGA)


@pytest.mark.parametrize(
    ("name", "usable", "physical", "moving", "row"),
    [
        ("trn1", 180224, 192, 512, 64),
        ("inf2", 180224, 192, 512, 64),
        ("trn2", 212984, 224, 512, 32),
        ("trn3", 245752, 256, 4096, 32),
    ],
)
def test_tile_limits(name, usable, physical, moving, row):
    chip = hw.chip(name)
    core, tensor = chip.core, chip.tensor
    assert (core.partitions, core.psum_banks, core.psum_bank) == (128, 8, 2048)
    assert core.psum_partition == core.psum_banks * core.psum_bank
    assert (core.sbuf_usable, core.sbuf_partition) == (usable, physical * 1024)
    assert (tensor.stationary_free, tensor.moving_free, tensor.row_tile) == (128, moving, row)
    assert (chip.vector.bn_stats_free, core.sbuf_alignment, core.psum_alignment) == (512, 4, 4)


def test_clocks():
    clocks = {
        name: [
            getattr(hw.chip(name), e).clock / 1e9 for e in ("tensor", "vector", "scalar", "gpsimd")
        ]
        for name in hw.chips()
    }
    assert clocks == {
        "inf2": [2.8, 1.12, 1.4, 1.4],
        "trn1": [2.8, 1.12, 1.4, 1.4],
        "trn2": [2.4, 0.96, 1.2, 1.2],
        "trn3": [2.4, 1.2, 1.2, 1.2],
    }


def test_inferentia2_has_the_core_of_trainium():
    trn1, inf2 = hw.chip("trn1"), hw.chip("inf2")
    for fact in trn1:
        if not fact.path.startswith("chip."):
            assert inf2.fact(fact.path) == fact


# ---------------------------------------------------------------------------- the DMA model
# Published points of NeuronCore-v3, each against t(d) = descriptor + d / engine_rate.


def engine_ns(run_bytes):
    dma = hw.chip("trn2").dma
    return 1e9 * (dma.descriptor + run_bytes / dma.engine_rate)


@pytest.mark.parametrize(
    ("run_bytes", "relative"), [(4096, 0.966), (8192, 0.983), (16384, 0.990), (32768, 1.0)]
)
def test_dma_model_follows_the_published_curve(run_bytes, relative):
    """[128, d]: eight runs an engine; the curve is digitised to 1 %."""
    published = 8 * run_bytes / (relative * 23.0)
    assert 8 * engine_ns(run_bytes) == pytest.approx(published, rel=0.01)


def test_dma_model_against_single_measurements():
    assert engine_ns(2048) == pytest.approx(97, rel=0.01)  # overview, figure 6
    assert 4 * engine_ns(8192) == pytest.approx(1416, rel=0.03)  # overview, [4,4096] bfloat16
    assert 16 * 4096 / engine_ns(4096) == pytest.approx(354, rel=0.01)  # in flight, GB/s


@pytest.mark.parametrize(
    ("run_bytes", "measured"), [(4, 9), (256, 17), (512, 27), (1024, 43), (2048, 83), (4096, 158)]
)
def test_descriptor_cost_fits_measured_packets(run_bytes, measured):
    dma = hw.chip("trn2").dma
    assert 1e9 * (dma.descriptor + run_bytes / dma.engine_peak) == pytest.approx(measured, abs=2.2)


def test_small_transfers_are_bound_by_issue():
    """A stream moves on by max(issue, engines); 8 runs an engine for 128 partitions."""
    issue = hw.chip("trn2").dma.static_issue * 1e9
    assert issue > 8 * engine_ns(1024) > 8 * engine_ns(8)
    assert 128 * 1024 / issue == pytest.approx(259, rel=0.02)  # [128,512] bfloat16, GB/s
    assert 76_800 * issue == pytest.approx(37_318e3, rel=0.04)  # DMAs of one element
    assert issue == pytest.approx((186e3 - 15e3) / 297, rel=0.15)  # [128,2] float32


@pytest.mark.parametrize(
    ("stationary_loads", "measured_ms"), [(32 * 16 * 64, 519.58), (32 * 64, 402.07)]
)
def test_packet_time_of_the_matmul_tutorial(stationary_loads, measured_ms):
    """float32, M 4096, K and N 8192, tiles 128 x 128 and 128 x 512; all 16 engines together."""
    moving_loads, stores = 32 * 16 * 64, 32 * 16
    packets = stationary_loads * 128 * engine_ns(512)
    packets += (moving_loads + stores) * 128 * engine_ns(2048)
    assert packets * 1e-6 == pytest.approx(measured_ms, rel=0.05)


def test_dma_model_on_trn1():
    """256 gathers of 128 rows of 6528 B: 0.98 ms with the launch (third-party measurement)."""
    chip = hw.chip("trn1")
    one = chip.dma.descriptor + 6528 / chip.dma.engine_rate
    assert 256 * 8 * one + 0.14e-3 == pytest.approx(0.98e-3, rel=0.05)


# ------------------------------------------------------------------------ instances and fabrics


@pytest.mark.parametrize("name", hw.instances())
def test_advertised_totals_are_the_chips(name):
    """Page totals against chips x chip; pages round, and 820 GiB/s is 820 GB/s elsewhere."""
    instance = hw.instance(name)
    if name == "trn2.3xlarge":
        assert not hasattr(instance, "totals")
        return
    chip, chips, totals = instance.chip, instance.chips, instance.totals
    assert totals.hbm == chips * chip.hbm
    assert totals.hbm_bandwidth == pytest.approx(chips * chip.hbm_bandwidth, rel=0.08)
    if chip.generation > 2:
        assert totals.hbm_bandwidth == pytest.approx(chips * chip.hbm_bandwidth, rel=1e-9)
    assert totals.peak_bf16 == pytest.approx(chips * chip.peak_bf16, rel=0.005)
    assert totals.peak_fp32 == pytest.approx(chips * chip.peak_fp32, rel=0.005)
    if hasattr(totals, "peak_mx"):
        assert totals.peak_mx == pytest.approx(chips * chip.peak_mx, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "chips", "cores", "logical", "vcpus", "gib"),
    [
        ("trn1.2xlarge", 1, 2, 2, 8, 32),
        ("trn1.32xlarge", 16, 32, 32, 128, 512),
        ("trn1n.32xlarge", 16, 32, 32, 128, 512),
        ("trn2.3xlarge", 1, 8, 4, 12, 128),
        ("trn2.48xlarge", 16, 128, 64, 192, 2048),
        ("trn2u.48xlarge", 16, 128, 64, 192, 2048),
        ("trn2-ultraserver", 64, 512, 256, 768, 8192),
        ("trn3-gen1-ultraserver", 64, 512, 256, 768, 8192),
        ("trn3-gen2-ultraserver", 144, 1152, 576, 2304, 27648),
        ("inf2.xlarge", 1, 2, 2, 4, 16),
        ("inf2.8xlarge", 1, 2, 2, 32, 128),
        ("inf2.24xlarge", 6, 12, 12, 96, 384),
        ("inf2.48xlarge", 12, 24, 24, 192, 768),
    ],
)
def test_instance(name, chips, cores, logical, vcpus, gib):
    i = hw.instance(name)
    assert (i.chips, i.cores, i.logical_cores, i.vcpus) == (chips, cores, logical, vcpus)
    assert i.host_memory == gib * GIB
    assert (i.fabric is None) == (chips == 1)
    if i.fabric:
        assert (i.fabric.chips, i.fabric.fabric.chip) == (chips, i.chip.name)


def test_an_ultraserver_is_its_servers():
    ultra, one = hw.instance("u-trn2x64"), hw.instance("trn2u.48xlarge")
    assert ultra.servers == 4
    assert ultra.server == one.name
    assert ultra.chips == 4 * one.chips
    assert ultra.vcpus == 4 * one.vcpus
    assert ultra.host.efa == 4 * one.host.efa
    assert ultra.host.network == 4 * one.host.network == pytest.approx(12800e9 / 8)


@pytest.mark.parametrize("name", hw.fabrics())
def test_fabric_shape_and_links(name):
    fabric = hw.fabric(name)
    assert math.prod(fabric.shape) == fabric.chips
    for link in fabric.links:
        assert link.both == 2 * link.bandwidth
    if fabric.topology != "switched":
        total = sum(link.links * link.both for link in fabric.links)
        assert total == pytest.approx(fabric.fabric.bandwidth)


def test_trn3_links_add_up_to_704_in_one_direction():
    gen2 = hw.fabric("trn3-gen2-switch")
    assert sum(link.links * link.bandwidth for link in gen2.links) == 704 * GIGA
    readings = {reading.text for reading in gen2.fact("fabric.bandwidth").also}
    assert readings == {"2.56 TB/s", "704 GB/s"}


@pytest.mark.parametrize(
    ("name", "gbps", "interfaces"),
    [("trn1-torus", 800, 8), ("trn1n-torus", 1600, 16), ("trn2-torus", 3200, 16),
     ("trn2-torus3d", 12800, 64)],
)  # fmt: skip
def test_efa_sums(name, gbps, interfaces):
    efa = hw.fabric(name).efa
    assert efa.bandwidth == gbps * 1e9 / 8
    assert efa.interfaces == interfaces
    if name.startswith("trn2"):
        assert efa.bandwidth == pytest.approx(hw.fabric(name).chips * efa.per_chip)
        assert efa.bandwidth / efa.interfaces == pytest.approx(200e9 / 8)


def test_contradictions_keep_every_reading():
    fact = hw.chip("trn2").fact("chip.hbm_bandwidth")
    assert (fact.text, fact.source, fact.grade) == ("2.9 TB/s", "trainium2-page", "stated")
    assert [(r.value, r.source) for r in fact.also] == [(3e12, "nki-trn2-guide")]
    assert "46.4" in fact.because
    assert [r.value for r in hw.chip("trn2").fact("chip.cc_cores").also] == [20, 20]


def test_loading_is_fast():
    """Checking the facts of a chip takes no longer than a few times reading their TOML."""
    path, reads, checks = FOLDER / "chips" / "trn2.toml", [], []
    for _ in range(9):
        start = time.process_time()
        tomllib.loads(path.read_text())
        middle = time.process_time()
        read_machine(path, "chip")
        reads.append(middle - start)
        checks.append(time.process_time() - middle)
    assert min(checks) < 8 * min(reads)
