"""`opentrn explain`: what a code means, of this program's refusals or of the Neuron tools."""

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
    from opentrn.commands.neuron_codes import named, neuron_codes

    room = code.partition(".")[0] if code is not None and "." in code else None
    known = _declared("commands" if room == "cli" else room)
    if code is None:
        yield from map(asdict, known.values())
        yield from (each.json() for each in neuron_codes().values())
        return
    ours = known.get(code) or _instruction(code)
    neuron = neuron_codes().get(named(code))
    if neuron is not None:
        yield neuron.json()
        mine = (known.get(each) or _instruction(each) for each in neuron.ours)
        yield from map(asdict, mine)
    elif ours is not None:
        yield asdict(ours)
    elif not (parts := _parts(code, known)):
        _refuse(code, [*known, *neuron_codes()])
    else:
        yield from parts


def _instruction(code: str) -> Any:
    from opentrn import isa

    return isa.explain(code)


def _parts(name: str, known: dict[str, Any]) -> list[dict[str, Any]]:
    """Every code that an instruction, or a room (nki), has."""
    from opentrn import isa

    found = isa.explain_all(name)
    if not found:
        found = [one for code, one in known.items() if code.startswith(f"{name}.")]
    return list(map(asdict, found))


def _refuse(code: str, known: list[str]) -> None:
    from opentrn.base import UnknownNameError, nearest
    from opentrn.commands.codes import NO_CODE

    like = nearest(code, known)
    also = f"; did you mean {' or '.join(like)}?" if like else ""
    raise UnknownNameError(f"there is no error code {code}{also}", code=NO_CODE)


def _declared(room: str | None) -> dict[str, Any]:
    """Code -> explanation: those that one room declares, or (None, another word) all rooms.

    Modules that declare codes are imported, except those of `frameworks`: they import frameworks
    of seconds, and their codes are read out of their sources instead.
    """
    import ast
    import importlib
    from pathlib import Path

    from opentrn import base

    package = Path(__file__).parents[1]
    folder = package / (room or "")
    found: dict[str, Any] = {}
    for file in sorted((folder if folder.is_dir() else package).rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if "declare(" not in text:
            continue
        place = file.relative_to(package.parent).with_suffix("")
        if place.parts[1] in _READ:
            calls = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call))
            declared = map(_literal, calls)
            found |= {one.code: one for one in declared if one is not None}
        else:
            importlib.import_module(".".join(place.parts).removesuffix(".__init__"))
    found |= {code: base.explanation(code) for code in base.codes()}
    return dict(sorted(found.items()))


_READ = ("frameworks",)


def _literal(call: Any) -> Any:
    """The explanation of a call of `declare` whose arguments are written out."""
    import ast

    from opentrn.base import Explanation

    if getattr(call.func, "id", "") != "declare":
        return None
    names = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    return Explanation(*map(ast.literal_eval, call.args), **names)


__all__ = ["explain"]
