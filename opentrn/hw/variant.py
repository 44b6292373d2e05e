"""A chip with some of its facts replaced, as people type it: `trn2.hbm_bandwidth=4TB/s`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opentrn.base.errors import UsageError, declare
from opentrn.hw.fact import Chip
from opentrn.hw.load import chips
from opentrn.hw.schema import PLAIN

declare(
    "hw.setting",
    "A setting of a machine's fact is written FACT=VALUE.",
    rule="FACT is [chip.][section.]name, VALUE a number with its unit: trn2.hbm_bandwidth=4TB/s",
    fix="`opentrn show <chip>` lists the facts",
)


def settings_of(texts: Iterable[str]) -> tuple[tuple[str, str, str], ...]:
    """Settings as `(chip or "", fact, value)`; UsageError `hw.setting` for other forms.

    A fact without a section is one of the chip as a whole.
    """
    found = []
    for text in texts:
        path, equals, value = text.partition("=")
        parts = [part.strip() for part in path.split(".")]
        owner = parts.pop(0) if parts[0] in chips() and len(parts) > 1 else ""
        if not equals or not value.strip() or len(parts) > 2 or not all(parts):
            raise UsageError(f"{text!r} does not set a fact", code="hw.setting")
        fact = ".".join(parts) if len(parts) == 2 else f"{Chip.main}.{parts[0]}"
        found.append((owner, fact, value.strip()))
    return tuple(found)


def variant(chip: Chip, texts: Iterable[str]) -> Chip:
    """`chip` with the settings that are about it (all that name no chip, or this one).

    The name of the variant tells what it changes; the new facts are graded `assumed`.  Returns
    `chip` itself when no setting is about it.  Raises UsageError `hw.setting`, UnknownNameError
    `hw.fact`, and FactError for a wrong unit.
    """
    own = [(fact, value) for owner, fact, value in settings_of(texts) if owner in ("", chip.name)]
    if not own:
        return chip
    said = ", ".join(f"{fact.removeprefix(f'{Chip.main}.')}={value}" for fact, value in own)
    values = {fact.replace(".", "__"): _typed(chip, fact, value) for fact, value in own}
    return chip.changed(f"{chip.name} with {said}", **values)


def _typed(chip: Chip, fact: str, text: str) -> Any:
    """A plain number as a number; everything else stays text, with its unit."""
    if chip.fact(fact).unit in PLAIN:
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
    return text


__all__ = ["settings_of", "variant"]
