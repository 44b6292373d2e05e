"""Executables: what the compiler emits and the runtime loads, in one file that runs no code.

The file is a zip whose members are stored as they are, in this order:

    constants.safetensors   values of constant HBM buffers (formats NumPy lacks as unsigned bits)
    program.txt             the program in its text form
    graph.txt               the graph it was made from
    meta.json               versions and compile options
    manifest.json           format version, name, target, tensors, SHA-256 of every member above

The zip comment seals what no member covers: the zip's own headers, and the manifest.  One changed
byte anywhere makes `load` refuse.
"""

import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from opentrn.base import (
    DType,
    FileFormatError,
    MissingFileError,
    TrnError,
    UsageError,
    declare,
    dtype,
    writing,
)
from opentrn.isa import tensors
from opentrn.isa.program import Program
from opentrn.isa.read import parse_program
from opentrn.isa.text import program_text

declare(
    "isa.executable",
    "A file is not an executable, or it was damaged or changed since it was written.",
    rule="an executable is loaded only exactly as `Executable.save` wrote it",
    fix="compile the model again, or copy the file again from where it came",
)
declare(
    "isa.no_executable",
    "There is no file at the path of an executable.",
    rule="the path of an executable exists",
    fix="check the path, or write the file with `Executable.save`",
)
declare(
    "isa.executable_parts",
    "The parts of an executable do not fit each other.",
    rule="inputs, outputs and constants are those of the program",
    fix="make it with `Executable.of(program)`",
)

FORMAT, VERSION = "opentrn executable", 1
CONSTANTS, MANIFEST = "constants.safetensors", "manifest.json"
MEMBERS = (CONSTANTS, "program.txt", "graph.txt", "meta.json", MANIFEST)
SEAL = b"opentrn sha256 "
# A local zip header: 30 bytes, the name, 20 bytes of 64-bit sizes.  The constants come first, so
# this is where they begin, and their own header can be padded to align every tensor.
FIRST_BYTE = 30 + len(CONSTANTS) + 20
# What bytes in wrong places make zipfile, json and our own parsers raise.
DAMAGE = (zipfile.BadZipFile, OSError, ValueError, LookupError, TypeError, AttributeError,
          NotImplementedError, EOFError, ArithmeticError, RecursionError)  # fmt: skip


class Spec(NamedTuple):
    """An input or output: its name, shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True, kw_only=True, eq=False)
class Executable:
    """A compiled program with its constants: everything a device needs, and where it came from.

    `constants` maps names (see `constant_names`) to arrays in storage dtypes; `meta` is plain JSON
    data.  `fast`, which is not saved, computes the outputs from the inputs in place of the program.
    Raises UsageError `isa.executable_parts` when the parts do not fit each other.
    """

    name: str
    target: str
    program: Program
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    inputs: tuple[Spec, ...] = ()
    outputs: tuple[Spec, ...] = ()
    graph_text: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
    fast: Callable[[list[np.ndarray]], list[np.ndarray]] | None = field(default=None, repr=False)

    def __post_init__(self):
        if not isinstance(self.name, str) or not isinstance(self.meta, Mapping):
            _unfit("`name` is a string and `meta` a dictionary")
        known = {name: buffer for buffer, name in constant_names(self.program).items()}
        for name, array in self.constants.items():
            buffer = known.get(name)
            if buffer is None:
                _unfit(f"there is no HBM buffer {name!r} for a constant")
            if array.dtype != buffer.dtype.storage or tuple(array.shape or (1,)) != buffer.shape:
                _unfit(f"constant {name!r} is {array.dtype}{list(array.shape)}, not {buffer!r}")
        for name, buffer in known.items():
            if buffer.kind == "constant" and name not in self.constants:
                _unfit(f"constant {name!r} has no value")
        returned = self.program.results or self.program.outputs
        for word, known in (("inputs", self.program.inputs), ("outputs", returned)):
            if getattr(self, word) != specs(known):
                _unfit(f"the {word} are not those of the program")
        if self.target != self.program.target:
            _unfit(f"target {self.target!r}, but the program is for {self.program.target!r}")

    @classmethod
    def of(
        cls,
        program: Program,
        *,
        name: str | None = None,
        graph_text: str = "",
        meta: Mapping[str, Any] | None = None,
        fast: Callable[[list[np.ndarray]], list[np.ndarray]] | None = None,
    ) -> "Executable":
        """The executable of a program, with the constants, inputs and outputs it has."""
        names = constant_names(program)
        return cls(
            name=program.name if name is None else name,
            target=program.target,
            program=program,
            constants={names[b]: np.asarray(v) for b, v in program.constants.items()},
            inputs=specs(program.inputs),
            outputs=specs(program.results or program.outputs),
            graph_text=graph_text,
            meta=dict(meta or {}),
            fast=fast,
        )

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of the content in hexadecimal; equal for equal content, wherever it is saved."""
        members = {}
        for name, pieces in self._members():
            members[name] = _digest(pieces)
        return json.loads(self._manifest(members))["content"]

    def save(self, path: str | os.PathLike) -> Path:
        """Write the file, whole or not at all; raises what `base.writing` raises."""
        with writing(path) as file:
            self._write(file)
        return Path(path)

    def _write(self, file) -> None:
        digests: dict[str, str] = {}
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, pieces in self._members():
                digests[name] = _add(archive, name, pieces)
            _add(archive, MANIFEST, [self._manifest(digests)])
            archive.comment = SEAL + b"0" * 64
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
        end = file.seek(0, os.SEEK_END)

        def read(start: int, stop: int) -> bytes:
            file.seek(start)
            return file.read(stop - start)

        ranges = _ranges(infos, read, end)
        seal = _digest(read(*gap) for gap in _gaps(ranges, end - len(SEAL) - 64))
        file.seek(end - 64)
        file.write(seal.encode())

    def _members(self) -> Iterator[tuple[str, Any]]:
        """Every member but the manifest, as pieces of bytes."""
        yield CONSTANTS, tensors.pieces(self.constants, FIRST_BYTE)
        yield "program.txt", [program_text(self.program).encode()]
        yield "graph.txt", [self.graph_text.encode()]
        try:
            yield "meta.json", [json.dumps(dict(self.meta), sort_keys=True, indent=1).encode()]
        except (TypeError, ValueError) as error:
            _unfit(f"`meta` is not plain JSON data: {error}")

    def _manifest(self, digests: Mapping[str, str]) -> bytes:
        content = {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "target": self.target,
            "inputs": [(s.name, list(s.shape), s.dtype.name) for s in self.inputs],
            "outputs": [(s.name, list(s.shape), s.dtype.name) for s in self.outputs],
            "constants": {n: dtype(a.dtype).name for n, a in sorted(self.constants.items())},
            "members": dict(digests),
        }
        content["content"] = _digest([json.dumps(content, sort_keys=True).encode()])
        return json.dumps(content, indent=1).encode()


def _unfit(what: str) -> NoReturn:
    raise UsageError(what, code="isa.executable_parts")


def specs(tensors) -> tuple[Spec, ...]:
    """Name, shape and dtype of each buffer, or view of one."""
    return tuple(Spec(getattr(t, "buffer", t).name, t.shape, t.dtype) for t in tensors)


def with_empty(held: Iterable[Spec], empty: Iterable[list]) -> tuple[Spec, ...]:
    """The specs of a program's ends with those of tensors without elements, which it has not, in
    their places: rows of place, name, shape and dtype."""
    made = list(held)
    for place, name, shape, kind in empty:
        made.insert(place, Spec(name, tuple(shape), dtype(kind)))
    return tuple(made)


def constant_names(program: Program) -> dict[Any, str]:
    """The name of every HBM buffer: its own if no other has it, else `%` and its number."""
    hbm = {b: n for n, b in enumerate(program.buffers) if b.space == "hbm"}
    own = [b.name for b in hbm]
    return {
        b: b.name if b.name and b.name[0] != "%" and own.count(b.name) == 1 else f"%{n}"
        for b, n in hbm.items()
    }


def _digest(pieces) -> str:
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()


def _add(archive: zipfile.ZipFile, name: str, pieces) -> str:
    """Store one member, the same bytes for the same content; its SHA-256."""
    info = zipfile.ZipInfo(name)  # the date is 1980-01-01 unless one is given
    info.external_attr, info.create_system = 0o644 << 16, 3
    found = hashlib.sha256()
    with archive.open(info, "w", force_zip64=True) as member:
        for piece in pieces:
            found.update(piece)
            member.write(piece)
    return found.hexdigest()


# ---------------------------------------------------------------------- the frame of the zip


def _ranges(infos, read: Callable[[int, int], bytes], end: int) -> dict[str, tuple[int, int]]:
    """First and last byte of each member's data; ValueError unless they are where they must be."""
    if tuple(info.filename for info in infos) != MEMBERS:
        raise ValueError(f"its members are not {', '.join(MEMBERS)}")
    found, at = {}, 0
    for info in infos:
        plain = info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1
        if not plain or info.compress_size != info.file_size or info.header_offset != at:
            raise ValueError(f"{info.filename} is not stored as it is")
        header = read(at, at + 30)
        if header[:4] != b"PK\x03\x04":
            raise ValueError(f"{info.filename} has no header")
        start = at + 30 + int.from_bytes(header[26:28], "little")
        start += int.from_bytes(header[28:30], "little")
        at = start + info.file_size
        if at > end:
            raise ValueError(f"{info.filename} reaches beyond the end of the file")
        found[info.filename] = (start, at)
    return found


def _gaps(ranges: Mapping[str, tuple[int, int]], end: int) -> Iterator[tuple[int, int]]:
    """The stretches of the file that no SHA-256 of the manifest covers."""
    at = 0
    for name, (start, stop) in ranges.items():
        if name != MANIFEST:
            yield at, start
            at = stop
    yield at, end


# ---------------------------------------------------------------------- loading

PICKLED = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
"""How pickles of protocols 2 to 5 begin."""


def load(path: str | os.PathLike) -> Executable:
    """The executable in a file.  Nothing of the file is executed.

    Raises MissingFileError when there is no file, and FileFormatError `isa.executable` for any
    file that `Executable.save` has not written exactly so.
    """
    path = Path(path)
    if not path.exists():
        raise MissingFileError(f"there is no file {path}", code="isa.no_executable")
    if not path.is_file():
        _damaged(path, "it is not a file")
    with open(path, "rb") as file:
        data = np.fromfile(file, np.uint8)
        try:
            with zipfile.ZipFile(file) as archive:
                infos, comment = archive.infolist(), archive.comment
        except DAMAGE as error:
            if bytes(data[:2]) in PICKLED:
                _pickled(path)
            _damaged(path, f"not a zip, or cut short ({error})")
    if any(info.filename.endswith(".pkl") for info in infos):
        _pickled(path)
    data.flags.writeable = False
    try:
        members, manifest = _checked(data, infos, comment)
        return _decoded(members, manifest)
    except TrnError as error:
        _damaged(path, error.what)
    except DAMAGE as error:
        _damaged(path, str(error) or type(error).__name__)


def _pickled(path: Path) -> NoReturn:
    raise FileFormatError(
        f"{path.name} is no executable: it is a pickle, which runs code when it is read",
        code="isa.executable",
        fix="safetensors.torch.save_file(model.state_dict(), path) and load_file; of a file you "
        "trust torch.load(path, weights_only=True), then compile the model",
    )


def _damaged(path: Path, why: str) -> NoReturn:
    why = " ".join(why.split())[:200]
    raise FileFormatError(f"{path.name} is no executable: {why}", code="isa.executable")


def _checked(data: np.ndarray, infos, comment: bytes):
    """Every member as a view of the data, and the manifest, when all digests are right."""
    end = len(data) - len(SEAL) - 64
    ranges = _ranges(infos, lambda start, stop: data[start:stop].tobytes(), len(data))
    members = {name: data[start:stop] for name, (start, stop) in ranges.items()}
    manifest = json.loads(members[MANIFEST].tobytes())
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError("the manifest is not one of ours")
    if manifest.get("version") != VERSION:
        raise ValueError(
            f"format version {manifest.get('version')}, this program reads version {VERSION}"
        )
    seal = _digest(data[start:stop] for start, stop in _gaps(ranges, end))
    if comment != SEAL + seal.encode() or data[end:].tobytes() != comment:
        raise ValueError("its seal is broken: the file was changed")
    digests = {name: _digest([members[name]]) for name in MEMBERS[:-1]}
    if manifest["members"] != digests:
        wrong = [name for name in digests if manifest["members"].get(name) != digests[name]]
        raise ValueError(f"{', '.join(wrong)} was changed")
    return members, manifest


def _decoded(members: Mapping[str, np.ndarray], manifest: Mapping[str, Any]) -> Executable:
    """The executable of checked members; it must give the same content hash again."""
    program = parse_program(members["program.txt"].tobytes().decode(), "program.txt")
    kinds = {name: dtype(kind) for name, kind in manifest["constants"].items()}
    constants = tensors.read(members[CONSTANTS], kinds)
    names = {name: buffer for buffer, name in constant_names(program).items()}
    program.constants.update({names[name]: array for name, array in constants.items()})
    made = Executable(
        name=manifest["name"],
        target=manifest["target"],
        program=program,
        constants=constants,
        inputs=_specs_of(manifest["inputs"]),
        outputs=_specs_of(manifest["outputs"]),
        graph_text=members["graph.txt"].tobytes().decode(),
        meta=json.loads(members["meta.json"].tobytes()),
    )
    if made._manifest(manifest["members"]) != members[MANIFEST].tobytes():
        raise ValueError("the manifest does not describe the content")
    made.__dict__["content_hash"] = manifest["content"]
    return made


def _specs_of(rows) -> tuple[Spec, ...]:
    return tuple(Spec(name, tuple(shape), dtype(kind)) for name, shape, kind in rows)


__all__ = ["Executable", "Spec", "constant_names", "load", "specs", "with_empty"]
