"""Configuration objects of kernels: NKIObject, alone and as a dataclass."""

from dataclasses import dataclass, field

import pytest

from opentrn.nki import language as nl


def test_keywords_become_attributes():
    made = nl.NKIObject(a=1, b="two")
    assert (made.a, made.b) == (1, "two")

    class Own(nl.NKIObject):
        def __init__(self, n):
            self.doubled = 2 * n

    @dataclass
    class Below(Own):
        other: int = 3

    assert Own(4).doubled == 8
    assert Below(other=5).other == 5
    with pytest.raises(TypeError):
        Below(extra=1)  # below an `__init__` of its own a dataclass is Python's


def test_a_dataclass_takes_places_names_and_defaults_as_pythons_does():
    @dataclass
    class Sizes(nl.NKIObject):
        rows: int
        columns: int = 7
        seen: list = field(default_factory=list)
        doubled: int = field(init=False, default=0)

        def __post_init__(self):
            self.doubled = 2 * self.rows

    first, second = Sizes(1), Sizes(2, columns=3, seen=[4])
    assert (first.rows, first.columns, first.seen, first.doubled) == (1, 7, [], 2)
    assert (second.rows, second.columns, second.seen, second.doubled) == (2, 3, [4], 4)
    assert first == Sizes(rows=1)
    assert first.seen is not Sizes(1).seen
    assert "columns=7" in repr(first)
    for args, names in (((1, 2, [], 4), {}), ((1,), {"rows": 2})):
        with pytest.raises(TypeError):
            Sizes(*args, **names)

    @dataclass(frozen=True)
    class Fixed(nl.NKIObject):
        n: int

    assert Fixed(3).n == 3
    with pytest.raises(AttributeError):
        Fixed(3).n = 4


def test_a_dataclass_takes_undeclared_names_and_lacks_what_nobody_gave():
    @dataclass
    class Section(nl.NKIObject):
        index = None  # without an annotation this is no field
        width: int

    made = Section(index=2)
    assert made.index == 2
    assert Section(width=5).index is None
    with pytest.raises(AttributeError, match="width"):
        _ = made.width
