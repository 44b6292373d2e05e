"""The loader refuses every way in which a number can fail to be a fact."""

import pickle

import pytest

from opentrn import hw
from opentrn.base.errors import FactError, MissingFileError, UnknownNameError
from opentrn.hw.load import FOLDER, read_file, read_prices

TRN2 = (FOLDER / "chips" / "trn2.toml").read_text(encoding="utf-8")
HBM = 'hbm              = ["96 GiB", "trainium2-page", "stated"]'
CLOCK = 'clock           = ["2.4 GHz", "nki-trn2-guide", "stated"]'


@pytest.fixture
def refused(tmp_path):
    """Load trn2 with one text replaced, and return the refusal."""

    def load(old, new):
        assert TRN2.count(old) == 1, old
        file = tmp_path / "mine.toml"
        file.write_text(TRN2.replace(old, new), encoding="utf-8")
        with pytest.raises(FactError) as caught:
            read_file(file)
        return caught.value

    return load


REFUSALS = {
    "wrong dimension": (HBM, HBM.replace("GiB", "GHz"), "hw.dimension", "chip.hbm"),
    "rate for a size": (HBM, HBM.replace("GiB", "GiB/s"), "hw.dimension", "byte/s, wanted byte"),
    "unknown unit": (HBM, HBM.replace("GiB", "gibi"), "hw.unit", "gibi"),
    "no number": (HBM, HBM.replace("96 GiB", "much"), "hw.unit", "much"),
    "bare number": (HBM, HBM.replace('"96 GiB"', "96"), "hw.bare", "byte"),
    "text without unit": (HBM, HBM.replace("96 GiB", "96"), "hw.bare", "byte"),
    "duplicate key": (HBM, f"{HBM}\n{HBM}", "hw.duplicate", "mine.toml"),
    "not TOML": (HBM, "hbm = [", "hw.toml", "mine.toml"),
    "missing fact": (HBM, "", "hw.missing", "chip.hbm"),
    "unknown fact": (HBM, HBM.replace("hbm ", "hmb "), "hw.unknown", "chip.hbm"),
    "unlisted source": (HBM, HBM.replace("trainium2-page", "rumour"), "hw.source", "rumour"),
    "unknown grade": (HBM, HBM.replace("stated", "sure"), "hw.grade", "sure"),
    "assumed without reason": (HBM, HBM.replace("stated", "assumed"), "hw.reason", "chip.hbm"),
    "fitted without reason": (HBM, HBM.replace("stated", "fitted"), "hw.reason", "chip.hbm"),
    "zero for unknown": (HBM, HBM.replace("96 GiB", "0 GiB"), "hw.zero", "chip.hbm"),
    "no grade": (HBM, 'hbm = ["96 GiB", "trainium2-page"]', "hw.form", "chip.hbm"),
    "bare value": (HBM, 'hbm = "96 GiB"', "hw.form", "chip.hbm"),
    "unknown part": (HBM, HBM + '\nsbuf_total.size = "1 B"', "hw.unknown", "chip.sbuf"),
    "fraction of a core": (
        "cores            = [8,",
        "cores            = [8.5,",
        "hw.dimension",
        "8.5",
    ),
    "no cores": ("cores            = [8,", "cores            = [0,", "hw.zero", "chip.cores"),
    "flag of two": (
        "hwdge             = [1,",
        "hwdge             = [2,",
        "hw.dimension",
        "dma.hwdge",
    ),
    "true for one": (
        "hwdge             = [1,",
        "hwdge             = [true,",
        "hw.dimension",
        "True",
    ),
    "contested, no reason": (
        'hbm_bandwidth.because = "16 x 2.9 is the 46.4 TB/s of the instance page"\n',
        "",
        "hw.reason",
        "chip.hbm_bandwidth",
    ),
    "reading of other dimension": ('[["3 TB/s",', '[["3 TB",', "hw.dimension", "hbm_bandwidth"),
    "reading of unlisted source": (
        '[["3 TB/s", "nki-trn2-guide"]]',
        '[["3 TB/s", "rumour"]]',
        "hw.source",
        "rumour",
    ),
    "outside a section": ("[chip]\n", "loose = 1\n[chip]\n", "hw.form", "loose"),
    "no sources": ("[sources]\n", "[wells]\n", "hw.source", "[sources]"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusal(refused, case):
    old, new, code, told = REFUSALS[case]
    error = refused(old, new)
    assert error.code == code
    assert told in error.what
    assert error.at.file.endswith("mine.toml")
    assert error.fix


def test_refusal_points_at_the_line(refused):
    error = refused(CLOCK, CLOCK.replace("GHz", "GB"))
    line = next(n for n, text in enumerate(TRN2.splitlines(), 1) if text == CLOCK)
    assert error.at.line == line
    assert "tensor.clock = '2.4 GB' is measured in byte, wanted Hz" in str(error)


def test_a_link_section_is_complete_or_refused(tmp_path):
    text = (FOLDER / "fabrics" / "trn2-torus.toml").read_text(encoding="utf-8")
    file = tmp_path / "mine.toml"
    cut = text[text.index("[link_x]") : text.index("[efa]")]
    file.write_text(text.replace(cut, ""), encoding="utf-8")
    with pytest.raises(FactError, match="link section") as caught:
        read_file(file, "fabric")
    assert caught.value.code == "hw.missing"
    file.write_text(text.replace("links       = [2", "rings = [2", 1), encoding="utf-8")
    with pytest.raises(FactError, match="link_x.rings"):
        read_file(file, "fabric")
    file.write_text(text.replace('"torus"', '"mesh"', 1), encoding="utf-8")
    with pytest.raises(FactError, match="topology"):
        read_file(file, "fabric")


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ('basis  = "on-demand"', 'basis  = "cheap"', "hw.form"),
        ('date   = "2026-07-20"', 'date   = "July"', "hw.form"),
        ('hourly = "24.78 $/h"', 'hourly = "24.78"', "hw.bare"),
        ('hourly = "24.78 $/h"', 'hourly = "24.78 W"', "hw.dimension"),
        ('region = "us-east-1"\n', "", "hw.missing"),
        ('region = "us-east-1"\n', 'region = "us-east-1"\nzone = "a"\n', "hw.unknown"),
        ('source = "karpenter-pricing"', 'source = "rumour"', "hw.source"),
        ('grade  = "stated"', 'grade  = "sure"', "hw.grade"),
    ],
)
def test_price_refusal(tmp_path, old, new, code):
    text = (FOLDER / "prices" / "trn1n.32xlarge.toml").read_text(encoding="utf-8")
    assert text.count(old) == 1
    file = tmp_path / "trn1n.32xlarge.toml"
    file.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(FactError) as caught:
        read_prices(file)
    assert caught.value.code == code


def test_missing_file():
    with pytest.raises(MissingFileError) as caught:
        read_file("nowhere.toml")
    assert caught.value.code == "hw.file"


def test_your_own_chip_loads(tmp_path):
    file = tmp_path / "faster.toml"
    file.write_text(TRN2.replace(CLOCK, CLOCK.replace("2.4", "3")), encoding="utf-8")
    chip = read_file(file)
    assert (chip.name, chip.tensor.clock, chip.vector.clock) == ("faster", 3e9, 0.96e9)


def test_machines_are_read_only_and_kept():
    chip = hw.chip("trn2")
    assert hw.chip("trn2") is chip
    with pytest.raises(AttributeError, match="read-only"):
        chip.cores = 9
    with pytest.raises(AttributeError, match="read-only"):
        chip.tensor.clock = 1.0
    with pytest.raises(AttributeError, match=r"trn2 has no fact tensor.clok; nearest: clock"):
        _ = chip.tensor.clok
    assert not hasattr(chip, "nothing")
    assert chip.tensor.clock == 2.4e9


def test_a_variant_is_checked_and_graded():
    chip = hw.chip("trn2")
    slow = chip.changed("slow", dma__engine_rate="10 GB/s", chip__cores=4)
    assert (slow.dma.engine_rate, slow.cores, slow.name) == (10e9, 4, "slow")
    assert chip.dma.engine_rate == 23e9
    assert slow.fact("dma.engine_rate").grade == "assumed"
    assert "23 GB/s" in slow.fact("dma.engine_rate").because
    assert slow != chip
    assert {chip, slow, hw.chip("trn2")} == {chip, slow}
    with pytest.raises(FactError) as caught:
        chip.changed("wrong", dma__engine_rate="10 GB")
    assert caught.value.code == "hw.dimension"
    with pytest.raises(UnknownNameError, match="nearest: dma.engine_rate"):
        chip.changed("wrong", dma__engin_rate="10 GB/s")
    with pytest.raises(FactError, match="name of its own"):
        chip.changed("trn2")


def test_machines_pickle_by_content():
    for machine in (
        hw.chip("trn3").changed("mine", tensor__clock="3 GHz"),
        hw.instance("trn2.3xlarge"),
    ):
        again = pickle.loads(pickle.dumps(machine))
        assert again == machine
        assert again.facts == machine.facts
        assert again.sources == machine.sources
