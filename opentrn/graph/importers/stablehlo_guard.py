"""A process that parses MLIR before this one does: what stops MLIR's parser stops only that one.

The file is run as a script of its own, without the rest of the package, so that it starts quickly.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
from threading import Timer
from typing import Any

BYTECODE = b"ML\xefR"
PIPELINE = "builtin.module(func.func(chlo-legalize-to-stablehlo))"
PORTABLE = b"StableHLO_v"
HEAD = 64  # bytes of an artifact in which its producer is named
DEEPEST = 2000  # MLIR's parser recurses for each bracket; deeper text would overflow its stack
# MLIR's parser runs for ever on some damaged inputs.  It reads some megabytes a second, so this is
# time enough on a machine that does other things too.
LEAST_SECONDS, BYTES_A_SECOND = 30.0, 50_000


def make_context() -> Any:
    """An MLIR context with the dialects JAX and TensorFlow write; ops of others stay generic."""
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

    made = ir.Context()
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    made.append_dialect_registry(registry)
    made.load_all_available_dialects()
    made.allow_unregistered_dialects = True
    chlo.register_dialect(made)
    stablehlo.register_dialect(made)
    mhlo.register_mhlo_dialect(made)
    sdy.register_dialect(made)
    return made


def parse_module(data: bytes, context: Any) -> Any:
    """The module of text, bytecode or a portable artifact; jaxlib's errors."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with context:
        if data.startswith(BYTECODE) and PORTABLE in data[:HEAD]:
            return stablehlo.deserialize_portable_artifact(context, data)
        if data.startswith(BYTECODE):
            return ir.Module.parse(data, context)
        return ir.Module.parse(data.decode(), context)


def depth(data: bytes) -> int:
    """How deeply brackets are nested in a text."""
    import numpy as np

    letters = np.frombuffer(data.replace(b"->", b"  "), np.uint8)
    step = np.zeros(letters.size, np.int32)
    for opened, closed in (b"()", b"[]", b"{}", b"<>"):
        step += (letters == opened).astype(np.int32) - (letters == closed)
    return int(step.cumsum().max(initial=0))


def read_names(operation: Any) -> None:
    """Read every name and text of a program: UnicodeDecodeError or RuntimeError for what is none.

    Text without escapes has only names that are text; bytecode and escapes may hold any bytes."""
    str(operation.location)
    for each in operation.attributes:
        name = each if isinstance(each, str) else each.name
        try:
            getattr(operation.attributes[name], "value", None)
        except TypeError:
            continue  # an attribute these bindings cannot show; who needs it will say so
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                read_names(inner.operation)


def try_to_expand(operation: Any) -> None:
    """Take CHLO's ops apart: what stops the process here would stop it there.  A pass that merely
    fails does no harm."""
    from jaxlib.mlir import ir, passmanager
    from jaxlib.mlir.dialects import stablehlo

    stablehlo.register_stablehlo_passes()
    with operation.context:
        try:
            passmanager.PassManager.parse(PIPELINE).run(operation)
        except ir.MLIRError:
            return


class Guard:
    """The other process; started when first needed, again after an input stopped it."""

    _one: Guard | None = None

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    @classmethod
    def shared(cls) -> Guard:
        """The one of this process."""
        if cls._one is None:
            cls._one = cls()
        return cls._one

    def check(self, data: bytes) -> str:
        """What is wrong with the data, "" if it can be parsed."""
        process = self._running()
        if process.stdin is None or process.stdout is None:
            return "the process that reads programs has no pipes"
        seconds = LEAST_SECONDS + len(data) / BYTES_A_SECOND
        late = Timer(seconds, process.kill)
        late.start()
        try:
            process.stdin.write(len(data).to_bytes(8, "little") + data)
            process.stdin.flush()
            size = process.stdout.read(8)
        except BrokenPipeError:
            size = b""
        in_time = late.is_alive()
        late.cancel()
        if len(size) < 8:
            ended = self._ended()
            if not in_time:
                return f"MLIR's parser came to no end on it in {seconds:.0f} s"
            return f"MLIR's parser stopped on it ({ended})"
        return process.stdout.read(int.from_bytes(size, "little")).decode(errors="replace")

    def _running(self) -> subprocess.Popen[bytes]:
        if self.process is not None and self.process.poll() is not None:
            self.close()
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-P", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL)
        return self.process

    def _ended(self) -> str:
        """How the process ended."""
        process, self.process = self.process, None
        if process is None:
            return "it is gone"
        code = _closed(process)
        return f"signal {-code}" if code < 0 else f"status {code}"

    def close(self) -> None:
        """End the process."""
        process, self.process = self.process, None
        if process is not None:
            _closed(process)


def _closed(process: subprocess.Popen[bytes]) -> int:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # it is gone already
    return process.wait()


def serve() -> None:
    """Answer each program on stdin with what is wrong with it, until stdin ends."""
    inward, outward = sys.stdin.buffer, sys.stdout.buffer
    context = make_context()
    while len(size := inward.read(8)) == 8:
        data = inward.read(int.from_bytes(size, "little"))
        problem = ""
        try:
            if not data.startswith(BYTECODE) and depth(data) > DEEPEST:
                raise ValueError(f"brackets are nested more than {DEEPEST} deep")
            operation = parse_module(data, context).operation
            operation.verify()
            if data.startswith(BYTECODE) or b"\\" in data:
                read_names(operation)
            if b"chlo" in data:
                try_to_expand(operation)
        except Exception as error:
            problem = str(error) or type(error).__name__
        answer = problem.encode()
        outward.write(len(answer).to_bytes(8, "little") + answer)
        outward.flush()


if __name__ == "__main__":
    serve()
