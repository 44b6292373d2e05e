"""The map of the room: a newcomer finds every file in it, and no file that is gone."""

import re
from pathlib import Path

from opentrn import sim


def test_the_map_names_every_file():
    files = {file.stem for file in Path(sim.__file__).parent.glob("*.py")} - {"__init__"}
    named = set(re.findall(r"`(\w+)`", sim.__doc__)) - {"_fast"}
    assert named <= files
    beside = {f"{name}_fast" for name in named}  # they are told of by their ending
    assert files - named <= beside
