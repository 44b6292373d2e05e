"""The codes that the tools of the Neuron SDK print: what they mean there, and here."""

import functools
import tomllib
from dataclasses import dataclass
from importlib.resources import files

from opentrn.base import codes, explanation

ALIASES = {"NRT_OOB": "NRT_EXEC_OOB"}
"""Other names that the same pages use."""


@dataclass(frozen=True)
class NeuronCode:
    """A code of the Neuron compiler (NCC_) or runtime (NRT_, with its status `number`).

    `source` says where the meaning is documented; `ours` are the codes of this program that refuse
    the same thing.
    """

    code: str
    meaning: str
    fix: str
    source: str
    number: int | None = None
    ours: tuple[str, ...] = ()

    def json(self) -> dict:
        """What `opentrn explain --json` tells, with the keys of an Explanation."""
        return {
            "code": self.code, "meaning": self.meaning, "rule": "", "fix": self.fix,
            "neuron": self.code if self.number is None else f"{self.code} {self.number}",
            "fault": "", "source": self.source, "ours": list(self.ours),
        }  # fmt: skip


@functools.cache
def _file() -> dict:
    return tomllib.loads((files("opentrn.commands") / "neuron_codes.toml").read_text("utf-8"))


def neuron_codes() -> dict[str, NeuronCode]:
    """Every known code.  The rooms whose codes are to be among `ours` are imported before."""
    read = _file()
    found = {}
    for tool in ("compiler", "runtime"):
        for code, told in read[tool].items():
            ours = [*_declared(code), *told.get("ours", ())]
            found[code] = NeuronCode(
                code, told["meaning"], told.get("fix", ""),
                read["sources"][told.get("source", tool)], told.get("number"),
                tuple(dict.fromkeys(ours)),
            )  # fmt: skip
    return found


def _declared(code: str) -> list[str]:
    """Codes of ours that were declared with a Neuron code."""
    return [ours for ours in codes() if code in explanation(ours).neuron.split()]


def named(text: str) -> str:
    """The code that a user means by NCC_EVRF035, EVRF035, `NRT_EXEC_OOB 1006`, NRT_OOB or 1006."""
    read = _file()
    word = text.split()[0].upper() if text.split() else ""
    for code, told in read["runtime"].items():
        if word == str(told["number"]):
            return code
    if f"NCC_{word}" in read["compiler"]:
        return f"NCC_{word}"
    return ALIASES.get(word, word)


__all__ = ["NeuronCode", "named", "neuron_codes"]
