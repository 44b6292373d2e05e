"""What a user names is written whole or not at all, and refused where it cannot be."""

import os
import signal
import subprocess
import sys

import pytest

from opentrn.base import MissingFileError, UnwritableError, folder, write_whole, writing


def test_a_file_is_replaced_at_the_end_only(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with writing(path) as file:
        file.write("é".encode())
        assert path.read_text() == "old"
    assert path.read_bytes() == b"\xc3\xa9"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_failure_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def pieces():
        yield "new"
        raise KeyError("x")

    with pytest.raises(KeyError):
        write_whole(path, pieces())
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize(
    ("place", "kind", "code"),
    [("no/a.txt", MissingFileError, "base.no_folder"), (".", UnwritableError, "base.unwritable"),
     ("/proc/a.txt", UnwritableError, "base.unwritable")],
)  # fmt: skip
def test_places_that_cannot_be_written(tmp_path, place, kind, code):
    if place.startswith("/proc") and not os.path.isdir("/proc"):
        pytest.skip("this system has no /proc")
    with pytest.raises(kind) as raised:
        write_whole(tmp_path / place, ["x"])
    assert raised.value.code == code
    assert raised.value.rule
    assert raised.value.fix
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(UnwritableError, match="cannot write into the directory"):
        folder(tmp_path / "a")
    assert folder(tmp_path / "b" / "c").is_dir()


def test_an_end_by_sigterm_leaves_nothing(tmp_path):
    code = (
        "import sys, time\nfrom opentrn.base import writing\n"
        "with writing('out.bin') as file:\n"
        "    file.write(b'half')\n    print('in', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "in\n"
        assert len(os.listdir(tmp_path)) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 128 + signal.SIGTERM
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["model.py", "MODEL.PY", "net.onnx", "net.mlir", "notes.ipynb"])
def test_results_never_take_the_place_of_what_a_user_wrote(tmp_path, name):
    path = tmp_path / name
    path.write_text("the user's own")
    with pytest.raises(UnwritableError) as error, writing(path) as file:
        file.write(b"a result")
    assert error.value.code == "base.source_file"
    assert path.read_text() == "the user's own"
    assert [p.name for p in tmp_path.iterdir()] == [name]
