"""Stairs go down: who may import whom, and only by public names."""

import pytest

from tests.house import rules


def test_the_table_is_a_staircase():
    order = rules.staircase(rules.MAY_IMPORT)
    assert len(order) == 18
    for room, may in rules.MAY_IMPORT.items():
        assert all(order.index(other) < order.index(room) for other in may), room


def test_a_circle_is_refused():
    with pytest.raises(ValueError, match=r"circle: \['isa', 'sim'\]"):
        rules.staircase({"base": (), "isa": ("sim",), "sim": ("base", "isa")})


def test_the_table_goes_down_or_left():
    place = {r: (f, n) for f, floor in enumerate(rules.FLOORS) for n, r in enumerate(floor)}
    assert set(place) == set(rules.MAY_IMPORT)
    for room, may in rules.MAY_IMPORT.items():
        for other in may:
            assert place[other] < place[room], f"{room} -> {other}"


def test_rooms_import_down_or_left_by_public_names():
    assert rules.import_findings() == []


def test_every_file_is_in_a_room_and_every_room_is_a_list():
    assert rules.room_findings() == []


def test_base_keeps_its_nine_files():
    assert rules.base_findings() == []


def test_bad_imports_are_found(sample):
    package = sample(
        {
            "base/__init__.py": "from opentrn.base.errors import TrnError\n"
            "__all__ = ['TrnError']\n",
            "base/errors.py": "class TrnError(Exception): ...\n",
            "isa/__init__.py": "",
            "isa/program.py": "def f():\n    from opentrn.sim.memory import Memory\n",
            "isa/view.py": "from opentrn import sim\n",
            "sim/a.py": "from opentrn.base.errors import TrnError\n",
            "sim/b.py": "from opentrn.base import Bug\n",
            "sim/c.py": "from .a import x\n",
            "sim/d.py": "import torch\n",
            "sim/e.py": "import requests\n",
            "sim/f.py": "from opentrn.isa import Program\n",
            "sim/g.py": "import numba\n",
            "sim/timing_fast.py": "from numba import njit\n",
            "sim/good.py": "import ast\nimport numpy as np\nfrom opentrn.base import TrnError\n"
            "from opentrn import base\nfrom opentrn.sim.a import y\n\n\n"
            "def f():\n    import numba\n",
        }
    )
    assert rules.import_findings(package) == [
        "opentrn/isa/program.py:2: isa may not import sim (it may import base, hw, comm)",
        "opentrn/isa/view.py:1: isa may not import sim (it may import base, hw, comm)",
        "opentrn/sim/a.py:1: errors is not a public name of base",
        "opentrn/sim/b.py:1: Bug is not a public name of base",
        "opentrn/sim/c.py:1: relative import",
        "opentrn/sim/d.py:1: torch is heavy: import it inside the function that needs it",
        "opentrn/sim/e.py:1: requests is not among the project's requirements",
        "opentrn/sim/f.py:1: isa has no __all__",
        "opentrn/sim/g.py:1: numba is heavy: import it inside the function that needs it",
    ]


def test_a_public_sub_module_may_be_imported_from(sample):
    package = sample(
        {
            "base/__init__.py": "from opentrn.base import numerics\n__all__ = ['numerics']\n",
            "hw/load.py": "from opentrn.base.numerics import cast\n",
        }
    )
    assert rules.import_findings(package) == []


def test_unknown_rooms_and_busy_lists_are_found(sample):
    package = sample(
        {
            "helpers.py": "",
            "tricks/a.py": "",
            "hw/__init__.py": '"""Facts."""\n\n__all__ = ["f"]\n\n\ndef f():\n    return 1\n',
            "sim/__init__.py": "from opentrn.sim.a import x\n",
            "base/tenth.py": "",
        }
    )
    assert rules.room_findings(package) == [
        "opentrn/helpers.py: a file on the roof that the house does not know",
        "opentrn/hw/__init__.py:6: more than a public list",
        "opentrn/sim/__init__.py: no __all__",
        "opentrn/tricks/a.py: no such room in the table",
    ]
    assert rules.base_findings(package) == ["opentrn/base/tenth.py: base has nine files"]
