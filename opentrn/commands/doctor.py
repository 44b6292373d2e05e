"""`opentrn doctor`: what is installed, what each extra adds, which variables mean something."""

import json as jsonlib
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import click

from opentrn import __version__
from opentrn.commands import environment

# What each extra of pyproject.toml brings; `built` is False while nothing here uses it yet.
EXTRAS: dict[str, tuple[str, bool]] = {
    "fast": ("compiled loops for the timing model (the results are the same)", True),
    "torch": ("PyTorch: torch.compile, traces, training steps on a simulated chip", True),
    "jax": ("JAX: jit for a simulated chip; StableHLO programs as input", True),
    "tensorflow": ("TensorFlow and Keras: functions, models, SavedModels, training", True),
    "onnx": ("ONNX models as input", True),
    "ray": ("runs spread over several machines", False),
    "jobs": ("managed training jobs", False),
    "report": ("instruction tables as Parquet (the HTML page needs nothing)", True),
    "demo": ("what the examples run: PyTorch, a tokenizer, a sentence encoder, digits", True),
    "test": ("what `make test` runs", True),
}


@click.option("--json", is_flag=True, help="Print JSON, for programs.")
def doctor(json: bool) -> None:
    """Say what is installed, what each extra would add, and what stands in the way."""
    report = examine()
    click.echo(jsonlib.dumps(report) if json else "\n".join(_doctor_lines(report)))
    if report["problems"]:
        sys.exit(1)


def examine() -> dict[str, Any]:
    """Look at this machine: versions, threads, memory and disk in bytes, extras, problems."""
    core, extras = _requirements()
    missing = [name for name in core if _version(name) is None]
    problems = [f"{name} is missing: pip install {name}" for name in missing]
    if not core:
        problems.append("opentrn runs from its sources and is not installed: pip install -e .")
    return {
        "opentrn": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cores": _cores(),
        "memory_bytes": _memory(),
        "disk_free_bytes": shutil.disk_usage(".").free,
        "blas": _blas(),
        "core": {name: _version(name) for name in core},
        "extras": extras,
        "variables": dict(environment.HONOURED),
        "ignored_variables": environment.ignored(),
        "problems": problems,
    }


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _version(package: str) -> str | None:
    """The installed version of a package, or None."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _requirements() -> tuple[list[str], dict[str, Any]]:
    """Core packages, and for each extra its packages' versions, from the installed metadata."""
    import re
    from importlib import metadata

    core: list[str] = []
    extras: dict[str, Any] = {}
    for name, (adds, built) in EXTRAS.items():
        extras[name] = {"adds": adds, "built": built, "packages": {}}
        extras[name]["install"] = f"pip install 'opentrn[{name}]'"
    try:
        lines = metadata.requires("opentrn") or []
    except metadata.PackageNotFoundError:
        return core, extras
    for line in lines:
        package = re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0]
        extra = re.search(r"extra == [\"'](\w+)[\"']", line)
        if extra is None:
            core.append(package)
        elif extra[1] in extras:
            extras[extra[1]]["packages"][package] = _version(package)
    return core, extras


def _blas() -> dict[str, Any]:
    """NumPy's linear algebra library and the number of threads it was told to use (None: all)."""
    if _version("numpy") is None:
        return {"name": None, "threads": None}
    import numpy

    built = numpy.show_config(mode="dicts").get("Build Dependencies", {})
    return {
        "name": built.get("blas", {}).get("name", "unknown"),
        "threads": environment.blas_threads(),
    }


def _doctor_lines(report: dict[str, Any]) -> Iterator[str]:
    yield f"opentrn {report['opentrn']} on Python {report['python']} ({report['executable']})"
    yield f"  {report['platform']}"
    yield (
        f"  {report['cores']} cores, {report['memory_bytes'] / 2**30:.1f} GiB of memory, "
        f"{report['disk_free_bytes'] / 2**30:.1f} GiB of disk free here"
    )
    blas = report["blas"]
    threads = blas["threads"]
    yield f"  BLAS: {blas['name']}, " + (
        f"{threads} thread{'s' * (threads > 1)}"
        if threads
        else "as many threads as cores (OPENBLAS_NUM_THREADS=1 is faster while others compute)"
    )
    yield ""
    for name, version in report["core"].items():
        yield f"  {name:12} {version or 'MISSING'}"
    yield ""
    yield "extras"
    for name, extra in report["extras"].items():
        yield f"  {name:12} {extra['adds']}" + ("" if extra["built"] else " (not built yet)")
        if extra["built"]:
            yield f"  {'':12} {_extra_state(extra)}"
    yield ""
    yield "environment variables with a meaning here"
    for name, meaning in report["variables"].items():
        yield f"  {name:32} {meaning}"
    if report["ignored_variables"]:
        yield f"  set, without a meaning here: {', '.join(report['ignored_variables'])}"
    yield ""
    yield from (report["problems"] or ["No problem found."])


def _extra_state(extra: dict[str, Any]) -> str:
    packages = extra["packages"]
    have = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    lack = ", ".join(name for name, version in packages.items() if not version)
    if not lack:
        return f"installed: {have}"
    return f"{extra['install']}   ({'also ' if have else ''}brings {lack})"


__all__ = ["EXTRAS", "doctor", "examine"]
