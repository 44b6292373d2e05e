"""Executables: round trips of every format, and files that were cut, flipped, swapped or forged."""

import hashlib
import io
import json
import os
import struct
import zipfile

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import numpy as safetensors_numpy

from opentrn import isa
from opentrn.base import FileFormatError, MissingFileError, UsageError, dtype
from opentrn.hw import chip
from opentrn.isa.exe import Executable, Spec, load
from opentrn.isa.program import Builder, Instruction
from opentrn.isa.text import program_text
from opentrn.sim.replay import Replay

STORAGE = {
    "float32": np.float32,
    "tfloat32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3": ml_dtypes.float8_e4m3,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float8_e3m4": ml_dtypes.float8_e3m4,
    "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu,
    "float4_e2m1fn_x4": np.uint16,
    "float8_e5m2_x4": np.uint32,
    "int32": np.int32,
    "uint8": np.uint8,
    "bool": np.bool_,
}


def random_bits(kind, shape, seed=0):
    """Any bit pattern of the format (NaN included); 0 and 1 for bool."""
    storage = np.dtype(STORAGE[kind])
    rng = np.random.default_rng(seed)
    count = int(np.prod(shape)) * storage.itemsize
    raw = rng.integers(0, 2 if kind == "bool" else 256, count, np.uint8)
    return raw.view(storage).reshape(shape)


def program_of(kinds=("bfloat16",), shape=(4, 6), on="trn3"):
    """A program that copies its input and holds one constant of each format."""
    builder = Builder("copy", on)
    x = builder.buffer("hbm", (4, 8), dtype("float32"), name="x", kind="input")
    y = builder.buffer("hbm", (4, 8), dtype("bfloat16"), name="y", kind="output")
    builder.inputs, builder.outputs = [x], [y]
    for seed, kind in enumerate(kinds):
        buffer = builder.buffer("hbm", shape, dtype(kind), name=f"w_{kind}", kind="constant")
        builder.constants[buffer] = random_bits(kind, shape, seed)
    views = (isa.view_of(y), isa.view_of(x))
    flags = (None, isa.oob_mode.error, isa.dge_mode.unknown, isa.engine.unknown)
    forms = tuple(isa.operand_form(v) for v in views)
    made = isa.form(isa.INSTRUCTIONS["dma_copy"], chip(on), forms, flags)
    builder.append(Instruction(made, views, (), None))
    return builder.program()


META = {"versions": {"opentrn": "0"}, "options": {"level": 2, "fast": True, "ratio": 0.5}}


def small(**more):
    return Executable.of(program_of(), graph_text="graph g\n", meta=META, **more)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("exe") / "m.trn"
    small().save(path)
    return path.read_bytes()


def refused(tmp_path, data, name="m.trn"):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(FileFormatError) as caught:
        load(path)
    assert caught.value.code == "isa.executable"
    lines = str(caught.value).splitlines()
    assert len(lines) <= 5
    assert lines[0].startswith(f"{name} is no executable: ")
    assert caught.value.fix
    return lines[0]


# ---------------------------------------------------------------------- round trips


def test_every_format_survives(tmp_path):
    program = program_of(tuple(STORAGE))
    made = Executable.of(program, name="all", graph_text="graph\nλ\n", meta=META)
    again = load(made.save(tmp_path / "all.trn"))
    assert (again.name, again.target, again.graph_text) == ("all", "trn3", "graph\nλ\n")
    assert again.meta == META
    assert again.inputs == (Spec("x", (4, 8), dtype("float32")),)
    assert again.outputs == (Spec("y", (4, 8), dtype("bfloat16")),)
    assert program_text(again.program) == program_text(program)
    assert set(again.constants) == {f"w_{kind}" for kind in STORAGE}
    for seed, kind in enumerate(STORAGE):
        array = again.constants[f"w_{kind}"]
        assert array.dtype == np.dtype(STORAGE[kind])
        assert array.tobytes() == random_bits(kind, (4, 6), seed).tobytes()
        assert array.flags.aligned
    held = {b.name: v for b, v in again.program.constants.items()}
    assert held.keys() == again.constants.keys()
    assert all(held[name] is array for name, array in again.constants.items())


def test_the_file_is_a_plain_zip_of_plain_files(tmp_path):
    path = Executable.of(program_of(("bfloat16", "float32")), meta=META).save(tmp_path / "m.trn")
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert {i.compress_type for i in archive.infolist()} == {zipfile.ZIP_STORED}
        manifest = json.loads(archive.read("manifest.json"))
        others = [n for n in archive.namelist() if n != "manifest.json"]
        digests = {n: hashlib.sha256(archive.read(n)).hexdigest() for n in others}
        assert json.loads(archive.read("meta.json")) == META
        arrays = safetensors_numpy.load(archive.read("constants.safetensors"))
    assert manifest["members"] == digests
    assert (manifest["format"], manifest["version"]) == ("opentrn executable", 1)
    # an independent reader finds the bits; bfloat16 is kept as 16-bit words
    assert (arrays["w_float32"].tobytes()) == random_bits("float32", (4, 6), 1).tobytes()
    assert arrays["w_bfloat16"].dtype == np.uint16
    assert arrays["w_bfloat16"].tobytes() == random_bits("bfloat16", (4, 6), 0).tobytes()


def test_content_hash_depends_on_the_content_only(tmp_path):
    one, two = small(), small()
    assert one.content_hash == two.content_hash
    assert len(one.content_hash) == 64
    again = load(one.save(tmp_path / "a.trn"))
    assert again.content_hash == one.content_hash
    assert load(two.save(tmp_path / "b.trn")).content_hash == one.content_hash
    assert (tmp_path / "a.trn").read_bytes() == (tmp_path / "b.trn").read_bytes()
    assert small(name="other").content_hash != one.content_hash
    changed = program_of()
    [buffer] = changed.constants
    changed.constants[buffer] = random_bits("bfloat16", (4, 6), 77)
    other = Executable.of(changed, graph_text="graph g\n", meta=META)
    assert other.content_hash != one.content_hash


def test_constants_may_be_strided_and_unnamed(tmp_path):
    program = program_of(())
    values = [np.arange(48, dtype=np.float32).reshape(6, 8)[:, ::2].T, np.full((4, 6), 2, "f4")]
    for value in values:
        buffer = isa.Buffer(9, "hbm", (4, 6), dtype("float32"), kind="constant")
        program.buffers.append(buffer)
        program.constants[buffer] = value
    again = load(Executable.of(program).save(tmp_path / "m.trn"))
    assert set(again.constants) == {"%2", "%3"}
    np.testing.assert_array_equal(again.constants["%2"], values[0])
    np.testing.assert_array_equal(again.constants["%3"], values[1])


def test_a_loaded_executable_computes_the_same(tmp_path):
    # y = bfloat16(exp(2 * x + w)), twice: as recorded, and as loaded
    program = exponential()
    x = np.random.default_rng(3).standard_normal((64, 32), np.float32)
    [(_, w)] = program.constants.items()
    path = Executable.of(program).save(tmp_path / "m.trn")
    [direct] = Replay(program, chip("trn2"))([x])
    [loaded] = Replay(load(path).program, chip("trn2"))([x])
    assert loaded.tobytes() == direct.tobytes()
    want = np.exp(2 * x.astype(np.float64) + w.astype(np.float64))
    np.testing.assert_allclose(loaded.astype(np.float64), want, rtol=2**-8)


def exponential():
    """A program by hand: load two tensors, activate, store."""
    builder = Builder("exponential", "trn2")
    x = builder.buffer("hbm", (64, 32), dtype("float32"), name="x", kind="input")
    w = builder.buffer("hbm", (64, 1), dtype("float32"), name="w", kind="constant")
    y = builder.buffer("hbm", (64, 32), dtype("bfloat16"), name="y", kind="output")
    tile = builder.buffer("sbuf", (64, 32), dtype("float32"))
    column = builder.buffer("sbuf", (64, 1), dtype("float32"))
    builder.inputs, builder.outputs = [x], [y]
    builder.constants[w] = np.linspace(-1, 1, 64, dtype=np.float32).reshape(64, 1)
    plain = (None, isa.oob_mode.error, isa.dge_mode.unknown, isa.engine.unknown)
    views = {b: isa.view_of(b) for b in (x, w, y, tile, column)}
    add(builder, "dma_copy", (views[tile], views[x]), plain)
    add(builder, "dma_copy", (views[column], views[w]), plain)
    operands = (views[tile], views[tile], views[column], 2.0, None)
    add(builder, "activation", operands, ("exp", None, isa.reduce_cmd.idle))
    add(builder, "dma_copy", (views[y], views[tile]), plain)
    return builder.program()


def add(builder, opcode, operands, flags):
    forms = tuple(
        isa.operand_form(o) if isinstance(o, isa.View) else o and isa.ImmediateForm()
        for o in operands
    )
    made = isa.form(isa.INSTRUCTIONS[opcode], chip("trn2"), forms, flags)
    builder.append(Instruction(made, operands, (), None))


def test_saving_replaces_whole_files_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "m.trn"
    path.write_bytes(b"old")
    small().save(path)
    assert load(path).name == "copy"
    assert os.listdir(tmp_path) == ["m.trn"]


def test_a_failed_save_leaves_the_old_file(tmp_path):
    path = tmp_path / "m.trn"
    small().save(path)
    before = path.read_bytes()
    with pytest.raises(UsageError):
        Executable.of(program_of(), meta={"when": object()}).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["m.trn"]


# ---------------------------------------------------------------------- parts that do not fit


def test_parts_must_fit():
    program = program_of()
    fine = {
        "name": "n",
        "target": "trn3",
        "program": program,
        "constants": {"w_bfloat16": random_bits("bfloat16", (4, 6))},
        "inputs": (Spec("x", (4, 8), dtype("float32")),),
        "outputs": (Spec("y", (4, 8), dtype("bfloat16")),),
    }
    Executable(**fine)
    for change in (
        {"constants": {}},
        {"constants": {**fine["constants"], "v": np.zeros(3, np.float32)}},
        {"constants": {"w_bfloat16": random_bits("bfloat16", (6, 4))}},
        {"constants": {"w_bfloat16": random_bits("float16", (4, 6))}},
        {"inputs": ()},
        {"outputs": (Spec("z", (4, 8), dtype("bfloat16")),)},
        {"target": "trn2"},
        {"name": 3},
        {"meta": [1]},
    ):
        with pytest.raises(UsageError) as caught:
            Executable(**(fine | change))
        assert caught.value.code == "isa.executable_parts"


# ---------------------------------------------------------------------- files that are not right


def test_a_missing_file(tmp_path):
    with pytest.raises(MissingFileError) as caught:
        load(tmp_path / "none.trn")
    assert isinstance(caught.value, FileNotFoundError)
    with pytest.raises(MissingFileError):
        small().save(tmp_path / "no" / "m.trn")


def test_a_directory_is_no_executable(tmp_path):
    with pytest.raises(FileFormatError):
        load(tmp_path)


@pytest.mark.parametrize(
    "data", [b"", b"PK", b"hello" * 99, b"PK\x05\x06" + bytes(18), bytes(9999)]
)
def test_what_is_no_zip(tmp_path, data):
    refused(tmp_path, data)


def test_every_truncation_is_noticed(tmp_path, good):
    for end in [*range(0, len(good), 61), *range(len(good) - 130, len(good))]:
        refused(tmp_path, good[:end])


def test_appended_and_prepended_bytes_are_noticed(tmp_path, good):
    for more in (b"\0", b"x" * 100, good):
        refused(tmp_path, good + more)
        refused(tmp_path, more + good)


def frame(data):
    """Positions of all bytes outside the data of members, and of the manifest."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        infos = archive.infolist()
    inside = set()
    for info in infos:
        name, extra = struct.unpack_from("<HH", data, info.header_offset + 26)
        start = info.header_offset + 30 + name + extra
        if info.filename != "manifest.json":
            inside.update(range(start, start + info.file_size))
    return [n for n in range(len(data)) if n not in inside]


def flipped(data, at, bit):
    changed = bytearray(data)
    changed[at] ^= 1 << bit
    return bytes(changed)


def test_a_flipped_bit_in_any_byte_outside_the_members_is_noticed(tmp_path, good):
    for n, at in enumerate(frame(good)):
        refused(tmp_path, flipped(good, at, n % 8))


@given(st.data())
@settings(max_examples=250, deadline=None)
def test_any_flipped_bit_is_noticed(tmp_path_factory, good, data):
    at = data.draw(st.integers(0, len(good) - 1))
    bit = data.draw(st.integers(0, 7))
    refused(tmp_path_factory.getbasetemp(), flipped(good, at, bit), "flip.trn")


# ---------------------------------------------------------------------- forgeries: right digests


ORDER = ("constants.safetensors", "program.txt", "graph.txt", "meta.json", "manifest.json")


def forge(good, members=None, manifest=None, names=ORDER, compression=zipfile.ZIP_STORED):
    """A file with other members whose digests and seal are right, made without our writer."""
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        parts = {name: archive.read(name) for name in ORDER}
    parts |= members or {}
    content = json.loads(parts["manifest.json"]) | (manifest or {})
    if "members" not in (manifest or {}):
        content["members"] = {n: hashlib.sha256(parts[n]).hexdigest() for n in ORDER[:-1]}
    del content["content"]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    parts["manifest.json"] = json.dumps(content | {"content": digest}, indent=1).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name in names:
            info = zipfile.ZipInfo(name)
            info.compress_type = compression
            archive.writestr(info, parts.get(name, b"evil"))
        archive.comment = b"opentrn sha256 " + b"0" * 64
    data = bytearray(out.getvalue())
    keep = bytes(data[n] for n in frame(bytes(data)) if n < len(data) - 79)
    data[-64:] = hashlib.sha256(keep).hexdigest().encode()
    return bytes(data)


def test_a_forgery_that_changes_nothing_loads(tmp_path, good):
    path = tmp_path / "m.trn"
    path.write_bytes(forge(good))
    assert load(path).content_hash == small().content_hash


def test_another_format_version(tmp_path, good):
    text = refused(tmp_path, forge(good, manifest={"version": 2}))
    assert "version 2" in text
    assert "version 1" in text
    refused(tmp_path, forge(good, manifest={"format": "other"}))


def test_path_tricks(tmp_path, good):
    for trick in ("../evil", "/evil", "program.txt/../x", "C:\\evil"):
        refused(tmp_path, forge(good, names=(*ORDER, trick)))
        refused(tmp_path, forge(good, names=(ORDER[0], trick, *ORDER[2:])))
    refused(tmp_path, forge(good, names=ORDER[1:]))
    refused(tmp_path, forge(good, names=ORDER[::-1]))
    assert [p.name for p in tmp_path.iterdir()] == ["m.trn"]


def test_two_members_of_one_name(tmp_path, good):
    with pytest.warns(UserWarning, match="Duplicate name"):
        data = forge(good, names=(*ORDER[:-1], ORDER[1], ORDER[-1]))
    refused(tmp_path, data)


def test_compressed_members_are_refused(tmp_path, good):
    refused(tmp_path, forge(good, compression=zipfile.ZIP_DEFLATED))


def tensors_file(header, body=bytes(48)):
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return len(text).to_bytes(8, "little") + text + body


def row(code="U16", shape=(4, 6), offsets=(0, 48)):
    return {"w_bfloat16": {"dtype": code, "shape": list(shape), "data_offsets": list(offsets)}}


@pytest.mark.parametrize(
    "constants",
    [
        b"",
        b"\xff" * 8,
        (1 << 60).to_bytes(8, "little") + b"{}",
        tensors_file(b"[]"),
        tensors_file(b"{"),
        tensors_file({}),
        tensors_file(row(offsets=(0, 1 << 62), shape=(1 << 61,))),
        tensors_file(row(offsets=(0, 49))),
        tensors_file(row(offsets=(-48, 0))),
        tensors_file(row(offsets=(2, 50))),
        tensors_file(row(shape=(-4, -6))),
        tensors_file(row(shape=(4.0, 6))),
        tensors_file(row(shape=(6, 4))),
        tensors_file(row(shape=("4", 6))),
        tensors_file(row(code="F32")),
        tensors_file(row(code="X")),
        tensors_file(row(code=["U16"])),
        tensors_file({"w_bfloat16": 4}),
        tensors_file({"other": row()["w_bfloat16"]}),
    ],
)
def test_impossible_constants(tmp_path, good, constants):
    refused(tmp_path, forge(good, {"constants.safetensors": constants}))


def test_the_constants_of_the_forgeries_are_otherwise_fine(tmp_path, good):
    path = tmp_path / "m.trn"
    path.write_bytes(forge(good, {"constants.safetensors": tensors_file(row())}))
    assert not load(path).constants["w_bfloat16"].astype(np.float32).any()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("opentrn program 1", "opentrn program 9"),
        ("%0[0; 8:4, 1:8]", "%0[1; 8:4, 1:8]"),
        ("dma_copy", "__import__"),
        ("float32 input", "float32 temp"),
        ('input "x"', 'input "z"'),
        ("bfloat16 constant", "float16 constant"),
        ('"trn3"', '"trn2"'),
        ("end\n", ""),
    ],
)
def test_impossible_programs(tmp_path, good, old, new):
    text = program_text(program_of())
    assert old in text
    data = forge(good, {"program.txt": text.replace(old, new).encode()})
    if (old, new) == ("float32 input", "float32 temp"):
        # the kind of a buffer is free: still the same inputs, so this one is an executable
        (tmp_path / "m.trn").write_bytes(data)
        assert load(tmp_path / "m.trn").inputs[0].name == "x"
    else:
        refused(tmp_path, data)


@pytest.mark.parametrize(
    "members",
    [
        {"program.txt": b"\xff\xfe"},
        {"graph.txt": b"\xff"},
        {"meta.json": b"{"},
        {"meta.json": b"[1]"},
        {"meta.json": b"[" * 100000},
    ],
)
def test_impossible_texts(tmp_path, good, members):
    refused(tmp_path, forge(good, members))


@pytest.mark.parametrize(
    "manifest",
    [
        {"members": {}},
        {"members": 3},
        {"inputs": [["x", [4, 8], "bfloat16"]]},
        {"inputs": 3},
        {"outputs": [["y"]]},
        {"constants": {}},
        {"constants": {"w_bfloat16": "float99"}},
        {"constants": ["w_bfloat16"]},
        {"name": 3},
        {"target": "trn2"},
        {"extra": 1},
    ],
)
def test_impossible_manifests(tmp_path, good, manifest):
    refused(tmp_path, forge(good, manifest=manifest))
