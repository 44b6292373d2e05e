"""Files that a user names, written whole or not at all."""

import contextlib
import os
import secrets
import signal
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from opentrn.base.errors import MissingFileError, TrnError, UnwritableError, declare

declare(
    "base.no_folder",
    "The directory that a file is to be written into does not exist.",
    rule="a file is written into a directory that exists",
    fix="create the directory first, or check the path",
)
declare(
    "base.unwritable",
    "A file cannot be written at this path.",
    rule="the path names a file, not a directory, in a directory that this user may write to",
    fix="name another file, or another directory",
)
declare(
    "base.source_file",
    "A file is to be written over a program or a model of the user.",
    rule="results never take the place of a file of Python, of a notebook, or of a model",
    fix="name another file for the result",
)
# What users write or bring, and nothing here makes.
SOURCES = (".py", ".ipynb", ".mlir", ".onnx", ".safetensors", ".pt", ".pth")


@contextlib.contextmanager
def writing(path: str | os.PathLike) -> Iterator[IO[bytes]]:
    """A new binary file (read and written) that takes the place of `path` when the block ends well.

    Until then it lies beside `path` under a temporary name, which goes away whatever happens, an
    end by SIGTERM included.  Raises MissingFileError `base.no_folder`, UnwritableError
    `base.unwritable`, and `base.source_file` for an existing file of one of the kinds `SOURCES`.
    """
    path = Path(path)
    _refuse_place(path)
    # Named before it is made, so that there is no moment at which its name is not known.
    temporary = _beside(path)
    try:
        with _ended_by_exception():
            with open(temporary, "x+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
    except TrnError:  # some kinds are OSErrors too
        raise
    except OSError as error:
        why = error.strerror or str(error)
        raise UnwritableError(f"cannot write {path}: {why}", code="base.unwritable") from error
    finally:
        with contextlib.suppress(OSError):  # the folder may be one that nothing is made in
            temporary.unlink(missing_ok=True)


def refuse_unwritable(path: str | os.PathLike) -> None:
    """Raise what `writing` would raise for this path, before there is anything to write."""
    path = Path(path)
    _refuse_place(path)
    _try(path)


def refuse_no_folder(path: str | os.PathLike) -> None:
    """Raise what `folder`, and writing a file in it, would raise, before either is done."""
    path = Path(path).absolute()
    there = next(one for one in (path, *path.parents) if one.exists())
    if not there.is_dir():
        what = f"cannot write into the directory {path}: {there} is a file"
        raise UnwritableError(what, code="base.unwritable")
    _try(there / "file")


def _refuse_place(path: Path) -> None:
    if path.suffix.lower() in SOURCES and path.exists():
        what = f"cannot write {path}: a {path.suffix} file is there"
        raise UnwritableError(what, code="base.source_file")
    if not path.parent.is_dir():
        raise MissingFileError(f"there is no directory {path.parent}", code="base.no_folder")
    if path.exists() and not path.is_file():
        kind = "a directory" if path.is_dir() else "a device"
        raise UnwritableError(f"cannot write {path}: it is {kind}", code="base.unwritable")


def _beside(path: Path) -> Path:
    return path.parent / f".{path.name}.{secrets.token_hex(8)}"


def _try(path: Path) -> None:
    """Make a file beside this path and take it away: what may be written is only known then."""
    temporary = _beside(path)
    try:
        with open(temporary, "xb"):
            pass
        temporary.unlink()
    except OSError as error:
        why = error.strerror or str(error)
        raise UnwritableError(f"cannot write {path}: {why}", code="base.unwritable") from error


def write_whole(path: str | os.PathLike, pieces: Iterable[str]) -> Path:
    """Write text in UTF-8, whole or not at all; raises what `writing` raises."""
    with writing(path) as file:
        for piece in pieces:
            file.write(piece.encode())
    return Path(path)


def folder(path: str | os.PathLike) -> Path:
    """A directory, made where it is missing.  Raises UnwritableError `base.unwritable`."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        why = error.strerror or str(error)
        what = f"cannot write into the directory {path}: {why}"
        raise UnwritableError(what, code="base.unwritable") from error
    return Path(path)


@contextlib.contextmanager
def _ended_by_exception() -> Iterator[None]:
    """SIGTERM ends the block by SystemExit 143, so that what stands in `finally` runs."""

    def end(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    usual = signal.SIG_DFL
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
    elif signal.getsignal(signal.SIGTERM) is not usual:
        yield  # the program has its own way to end
    else:
        signal.signal(signal.SIGTERM, end)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, usual)


__all__ = ["folder", "refuse_no_folder", "refuse_unwritable", "write_whole", "writing"]
