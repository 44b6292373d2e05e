"""Machines of other makers, to compare with: one file for each system, with its accelerator."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from opentrn.base.errors import FactError, UnknownNameError, Where, nearest
from opentrn.hw.fact import Fact, Machine, Price
from opentrn.hw.load import read_fact, read_prices, read_toml
from opentrn.hw.schema import Need

FOLDER = Path(__file__).parent

_ROWS = {
    "accelerator.name": ("text", "as its maker calls it"),
    "accelerator.maker": ("text", "who makes it"),
    "accelerator.memory": ("byte", "device memory"),
    "accelerator.memory_bandwidth": ("byte/s", "of the device memory"),
    "accelerator.peak_bf16": ("flop/s", "dense bfloat16 and float16"),
    "accelerator.peak_fp8": ("flop/s", "dense float8", False),
    "accelerator.peak_fp32": ("flop/s", "float32 without tensor cores", False),
    "accelerator.measured_bf16": ("flop/s", "best measured bfloat16 matmul", False),
    "accelerator.link_bandwidth": ("byte/s", "to its neighbours, one direction, all links"),
    "accelerator.tdp": ("W", "design power", False),
    "system.accelerators": ("count", "accelerators of one system"),
    "system.domain": ("count", "accelerators joined by links"),
    "system.network": ("byte/s", "network of the whole system"),
    "system.host_memory": ("byte", "host memory", False),
}
SCHEMA = {path: Need(*row) for path, row in _ROWS.items()}
"""Facts of a system of another maker."""

ALIASES = {
    "p4de": "p4de.24xlarge", "p4d": "p4d.24xlarge", "p5": "p5.48xlarge", "p5en": "p5en.48xlarge",
    "p6-b200": "p6-b200.48xlarge", "a100": "p4d.24xlarge", "h100": "p5.48xlarge",
    "h200": "p5en.48xlarge", "b200": "p6-b200.48xlarge", "v5p": "tpu-v5p", "v6e": "tpu-v6e",
}  # fmt: skip
"""Other names of the systems."""


class Accelerator(Machine):
    """A system of another maker; the facts of [accelerator] are attributes, `.system` a group."""

    kind = "accelerator"
    main = "accelerator"


@cache
def accelerators() -> tuple[str, ...]:
    """The names of all systems of other makers."""
    return tuple(sorted(f.name.removesuffix(".toml") for f in (FOLDER / "accelerators").glob("*")))


def read_accelerator(file: Path) -> Accelerator:
    """A system from a file; FactError as for chips."""
    data, _ = read_toml(file)
    sources: Mapping[str, str] = {k: " ".join(v.split()) for k, v in data.pop("sources").items()}
    at = Where(str(file), 1)
    facts: dict[str, Fact] = {}
    for section, rows in data.items():
        for key, raw in rows.items():
            path = f"{section}.{key}"
            if path not in SCHEMA:
                raise FactError(f"{file.name}: {path} is no known fact", code="hw.unknown", at=at)
            facts[path] = read_fact(raw, path, SCHEMA[path].dimension, dict(sources), at)
    gone = [path for path, need in SCHEMA.items() if need.required and path not in facts]
    if gone:
        raise FactError(f"{file.name} lacks {', '.join(gone)}", code="hw.missing", at=at)
    return Accelerator(file.name.removesuffix(".toml"), facts, sources)


@cache
def accelerator(name: str) -> Accelerator:
    """The system of that name (`p5.48xlarge`, `h100`); UnknownNameError `hw.target`."""
    plain = name.strip().lower().removeprefix("ml.")
    plain = ALIASES.get(plain, plain)
    if plain not in accelerators():
        close = ", ".join(nearest(plain, [*accelerators(), *ALIASES])) or ", ".join(accelerators())
        raise UnknownNameError(
            f"no system is called {name!r}", code="hw.target", fix=f"try {close}"
        )
    return read_accelerator(FOLDER / "accelerators" / f"{plain}.toml")


@cache
def accelerator_prices(name: str) -> tuple[Price, ...]:
    """Every known price of such a system; none known is an empty tuple."""
    file = FOLDER / "prices" / f"{accelerator(name).name}.toml"
    return read_prices(file) if file.exists() else ()
