"""`opentrn explain`: what a code means, of this program's refusals or of the Neuron tools."""

import functools
import json as jsonlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click


@click.argument("code", required=False)
@click.option("--json", is_flag=True, help="Print JSON, for programs.")
def explain(code: str | None, json: bool) -> None:
    """Explain an error CODE; without one, list the codes.

    CODE is one of this program (nc_matmul.N, sim.race), an instruction (nc_matmul: all of its
    codes), or one that the Neuron tools print (NCC_EVRF035, NRT_EXEC_OOB, 1006): what it means
    there, and the refusals here that mean the same.
    """
    found = list(_explanations(code))
    if json:
        click.echo(jsonlib.dumps(found))
        return
    if code is None or len(found) > _MOST_WHOLE:
        width = max(len(each["code"]) for each in found)
        for each in found:
            click.echo(f"{each['code']:{width}}  {each['meaning'].splitlines()[0]}")
        return
    click.echo("\n\n".join(map(_text, found)))


_MOST_WHOLE = 6  # explanations that are shown whole: more are listed


def _text(found: dict[str, Any]) -> str:
    """An explanation as lines under its code."""
    neuron = found["neuron"].removeprefix(found["code"]).strip()
    also = f"  ({neuron})" if neuron else ""
    parts = [("", found["meaning"]), ("rule  ", found["rule"]), ("fix   ", found["fix"])]
    if found["fault"]:
        from opentrn.base import FAULTS

        parts.append(("chip  ", f"{found['fault']}: {FAULTS[found['fault']]}"))
    if "ours" in found:
        none = "nothing here refuses this under a code of its own"
        parts += [("here  ", ", ".join(found["ours"]) or none), ("from  ", found["source"])]
    return "\n".join([found["code"] + also, *(f"  {name}{text}" for name, text in parts if text)])


def _explanations(code: str | None) -> Iterator[dict[str, Any]]:
    """The explanations of one code, of an instruction's codes, or (None) of every code."""
    from opentrn import base
    from opentrn.commands.neuron_codes import named, neuron_codes

    dotted = code is not None and "." in code
    _load_rooms(code.partition(".")[0] if dotted else None)
    if code is None:
        yield from (asdict(base.explanation(each)) for each in base.codes())
        yield from (each.json() for each in neuron_codes().values())
        return
    ours = base.explanation(code) or _instruction(code)
    neuron = neuron_codes().get(named(code))
    if neuron is not None:
        yield neuron.json()
        mine = (base.explanation(each) or _instruction(each) for each in neuron.ours)
        yield from map(asdict, mine)
    elif ours is not None:
        yield asdict(ours)
    elif not (parts := _parts(code)):
        _refuse(code, [*base.codes(), *neuron_codes()])
    else:
        yield from parts


def _instruction(code: str) -> Any:
    from opentrn import isa

    return isa.explain(code)


def _parts(name: str) -> list[dict[str, Any]]:
    """Every code that an instruction, or a room (nki), has."""
    from opentrn import base, isa

    found = isa.explain_all(name)
    if not found:
        found = [base.explanation(each) for each in base.codes() if each.startswith(f"{name}.")]
    return [asdict(each) for each in found]


@functools.cache
def unknown_code() -> str:
    """The code of a code that is not there, declared when it is first needed."""
    from opentrn.base import declare

    return declare(
        "cli.code",
        "There is no explanation under this code.",
        rule="a code is <instruction>.<part>, <room>.<name>, or a code the Neuron tools print",
        fix="`opentrn explain` without a code lists them",
    )


def _refuse(code: str, known: list[str]) -> None:
    from opentrn.base import UnknownNameError, nearest

    like = nearest(code, known)
    also = f"; did you mean {' or '.join(like)}?" if like else ""
    raise UnknownNameError(f"there is no error code {code}{also}", code=unknown_code())


def _load_rooms(room: str | None) -> None:
    """Import every module of one room, or of all for None or another word, to declare its codes."""
    import importlib.util
    import pkgutil

    unknown_code()
    prefix = f"opentrn.{room}"
    if room is None or importlib.util.find_spec(prefix) is None:
        prefix = "opentrn"
    top = importlib.import_module(prefix)
    for found in pkgutil.walk_packages(getattr(top, "__path__", []), f"{prefix}."):
        if found.name == "opentrn.__main__":
            continue
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:  # a part that needs an extra which is not installed
            if str(error.name).startswith("opentrn"):
                raise


__all__ = ["explain"]
