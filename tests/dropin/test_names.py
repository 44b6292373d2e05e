"""`import nki` means OpenTrn while installed, and nothing is left behind."""

import importlib
import sys
from types import ModuleType

import pytest

import opentrn.nki
from opentrn.base import TrnError
from opentrn.dropin import NAMES, install


@pytest.fixture(autouse=True)
def same_state_after():
    before = dict(sys.modules), list(sys.meta_path)
    yield
    assert [n for n in sys.modules if n.split(".")[0] == "nki"] == [
        n for n in before[0] if n.split(".")[0] == "nki"
    ]
    assert sys.meta_path == before[1]


def test_every_name_is_the_module_it_stands_for():
    with install():
        for name, real in NAMES.items():
            assert importlib.import_module(name) is importlib.import_module(real), name
        import nki
        import nki.language as nl
        from nki import isa as nisa

        assert nki is opentrn.nki
        assert nl is opentrn.nki.language
        assert nisa is opentrn.nki.isa
        assert nki.__name__ == "opentrn.nki"
        assert nki.__spec__.name == "opentrn.nki"


def test_the_names_are_gone_afterwards():
    with install():
        importlib.import_module("nki.language")
    with pytest.raises(ModuleNotFoundError, match="No module named 'nki'"):
        importlib.import_module("nki")


def test_another_package_of_that_name_is_set_aside_and_put_back(monkeypatch):
    theirs = {"nki": ModuleType("nki"), "nki.language": ModuleType("nki.language")}
    for name, module in theirs.items():
        monkeypatch.setitem(sys.modules, name, module)
    with install():
        assert importlib.import_module("nki") is opentrn.nki
        assert importlib.import_module("nki.language") is opentrn.nki.language
        assert "nki.isa" not in sys.modules
    assert {n: sys.modules[n] for n in theirs} == theirs


def test_a_name_we_do_not_have_is_refused_with_those_we_have():
    with install(), pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module("nki.nothing")
    assert caught.value.name == "nki.nothing"
    assert "nki.language" in str(caught.value)


def test_private_rooms_are_not_reached_through_the_name():
    with install(), pytest.raises(ModuleNotFoundError):
        importlib.import_module("nki.target")


def test_other_names_are_left_alone():
    with install(), pytest.raises(ModuleNotFoundError, match="No module named 'nkilib_absent'"):
        importlib.import_module("nkilib_absent")


def test_an_unknown_target_changes_nothing():
    with pytest.raises(TrnError, match="trn9"):
        install("trn9")


def test_installations_nest_and_removal_twice_is_fine():
    outer = install("trn1")
    with install("trn2"):
        assert importlib.import_module("nki") is opentrn.nki
    assert importlib.import_module("nki") is opentrn.nki
    outer.remove()
    outer.remove()


def test_the_compilers_internals_are_refused_with_advice():
    with install(), pytest.raises(ModuleNotFoundError, match="a script can import nki, ") as caught:
        importlib.import_module("nki.compiler.ncc_driver")
    assert "Leave the import out" in str(caught.value)
