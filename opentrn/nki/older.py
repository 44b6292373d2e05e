"""NKI versions where they differ from 0.6: names, signatures and meanings of their functions.

`functions(module, version)` gives what differs in `nki.isa`, `nki.language` and `nki.collectives`
of a version: each function takes the signature of that version, calls today's, and notes
`nki.migrate.<function>` wherever today's function would take the same call for another or refuse
it.  Sources: the stubs of every release (aws-neuron-sdk v2.27.0 to v2.32.0, nki/api/nki), and for
meanings nki/migration/index.rst of v2.32.0.  `CHANGES` holds the facts, `older_turns` what a call
becomes.
"""

import inspect
from collections.abc import Callable, Mapping
from enum import Enum
from types import ModuleType
from typing import Any

from opentrn.base import declare
from opentrn.isa import engine, reduce_cmd
from opentrn.nki import newer, older_turns, quirks, removed
from opentrn.nki.older_changes import CHANGES, RENAMED, SINCE, Change
from opentrn.nki.session import current, running
from opentrn.nki.versions import VERSIONS

declare(
    "nki.migrate.number",
    "A number stands for a member of an enumeration, as NKI 0.1 and 0.2 allowed.",
    rule="since NKI 0.3 modes and engines are members of nki.isa enumerations (update guide)",
    fix="pass the member, for example dge_mode=nisa.dge_mode.hwdge",
)
declare(
    "nki.migrate.keyword",
    "A call names a parameter its function does not have (or no longer has).",
    rule="NKI 0.1 ignored unknown keywords, later versions refuse them (release notes of 2.28)",
    fix="leave it out: instructions convert to the dtype of `dst`, and masks are slices",
)

# The last version that takes numbers for enumeration members.  The guide says 0.2; the NKI Library
# of 0.3 still gives them (norm_tkg_utils at d2ad3a57).
LAST_WITH_NUMBERS = "0.3"


def order(version: str) -> int:
    """The place of a version among all."""
    return VERSIONS.index(version)


def change_of(module: str, name: str, version: str) -> Change | None:
    """How a function of this version differs from today's; None when it does not."""
    for change in CHANGES.get(f"{module}.{name}", ()):
        if order(version) <= order(change.last):
            return change
    return None


def missing(module: str, name: str, version: str) -> str | None:
    """The later version in which a name of today came, if this one does not have it."""
    since = SINCE.get(f"{module}.{name}")
    return since if since and order(version) < order(since) else None


def functions(module: str, today: ModuleType, version: str) -> dict[str, Any]:
    """What differs in a module of that version, by name; None for names it does not have."""
    found: dict[str, Any] = {}
    for name, thing in vars(today).items():
        if missing(module, name, version):
            found[name] = None
            continue
        change = change_of(module, name, version)
        numbers = order(version) <= order(LAST_WITH_NUMBERS) and _is_call(module, thing)
        if change is not None or numbers:
            found[name] = older_function(thing, f"{module}.{name}", change, version)
    for key, changes in CHANGES.items():
        place, _, name = key.rpartition(".")
        gone = place == module and name not in found and not hasattr(today, name)
        if gone and order(version) <= order(changes[-1].last):
            now = getattr(today, changes[-1].now)
            found[name] = older_function(now, key, changes[-1], version)
    return found | (newer.functions(module) if version >= newer.FIRST else {})


def _is_call(module: str, thing: Any) -> bool:
    return module != "nki.language" and callable(thing) and not isinstance(thing, type)


def older_function(now: Callable, key: str, change: Change | None, version: str) -> Callable:
    """Today's function `now` under the signature it had in `version`."""
    today = inspect.signature(now)
    then = signature_of(change, today) if change is not None and change.signature else today
    name = key.rpartition(".")[2]
    turn = getattr(older_turns, change.turn) if change is not None and change.turn else None

    def call(*args: Any, **kwargs: Any) -> Any:
        if order(version) <= order(LAST_WITH_NUMBERS):
            args, kwargs = _members(then, args, kwargs, name)
        if version == "0.1":
            kwargs = _first_keywords(then, kwargs, name)
        fitted = removed.bound(name, then, args, kwargs)
        fitted.apply_defaults()
        given = quirks.applied(key, version, dict(fitted.arguments))
        if turn is not None:
            return turn(now, given, lambda what, fix="": note(name, what, fix))
        given = {n: v for n, v in given.items() if n in today.parameters}
        if change is not None and _differs(today, args, kwargs, given):
            note(name, change.what, change.fix)
        return now(**given)

    call.__name__ = call.__qualname__ = name
    call.__doc__, call.__module__, call.__signature__ = now.__doc__, key.rpartition(".")[0], then
    if hasattr(now, "nki_op"):
        call.nki_op = now.nki_op
    return call


def signature_of(change: Change, today: inspect.Signature) -> inspect.Signature:
    """The older signature; a default written `=` alone is today's."""
    made = []
    for part in change.signature.split(", "):
        name, written, default = part.partition("=")
        value = inspect.Parameter.empty
        if written:
            value = today.parameters[name].default if default == "" else _DEFAULTS[default]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        made.append(inspect.Parameter(name, kind, default=value))
    return inspect.Signature(made)


# Older defaults that are not those of today.
_DEFAULTS = {
    "None": None, "0": 0, "1": 1, "0.0": 0.0, "True": True, "False": False, "()": (), "[0]": [0],
    "engine.unknown": engine.unknown, "reduce_cmd.idle": reduce_cmd.idle, "''": "",
    "-3.4028235e+38": -3.4028235e38,
}  # fmt: skip


def note(name: str, what: str, fix: str = "") -> None:
    """Notice a migration in the running kernel."""
    if running():
        current().note(f"nki.migrate.{name}", what, fix)


def _differs(today: inspect.Signature, args: tuple, kwargs: Mapping, given: Mapping) -> bool:
    """Whether today's function would take this very call otherwise, or not at all."""
    try:
        bound = today.bind(*args, **kwargs)
    except TypeError:
        return True
    bound.apply_defaults()
    now = bound.arguments
    return any(not _same(now.get(n), v) for n, v in given.items())


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and isinstance(a, int | float | str | Enum) and a == b)


def _members(then: inspect.Signature, args: tuple, kwargs: dict, name: str) -> tuple[tuple, dict]:
    """Numbers in place of enumeration members, which NKI 0.2 took."""
    names = list(then.parameters)
    kinds = {n: type(p.default) for n, p in then.parameters.items() if isinstance(p.default, Enum)}

    def member(parameter: str, value: Any) -> Any:
        kind = kinds.get(parameter)
        if kind is None or isinstance(value, kind) or type(value) not in (int, str):
            return value
        found = kind(value)
        what = f"`{parameter}` is {value!r}: since NKI 0.3 a member of nisa.{kind.__name__}"
        note("number", f"{name}: {what}", f"pass {parameter}=nisa.{kind.__name__}.{found.name}")
        return found

    turned = tuple(member(n, v) for n, v in zip(names, args, strict=False))
    turned += args[len(names) :]
    return turned, {n: member(n, v) for n, v in kwargs.items()}


def _first_keywords(then: inspect.Signature, kwargs: dict, name: str) -> dict:
    """What NKI 0.1 made of keywords: some had another name, those it did not know it ignored."""
    found = {}
    for given, value in kwargs.items():
        known = given if given in then.parameters else RENAMED.get((name, given))
        if known != given:
            now = f"is `{known}` since NKI 0.2" if known else "is no parameter, and is ignored"
            note("keyword", f"{name}: `{given}` {now}")
        if known:
            found[known] = value
    return found
