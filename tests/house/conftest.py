"""Bad samples: a check that has never failed proves nothing."""

import pytest


@pytest.fixture
def sample(tmp_path):
    """Write source files (path -> text) under a fresh folder and return it."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tmp_path

    return write
