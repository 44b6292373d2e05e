"""Options of compilation as PyTorch users give them: target, precision, weights."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from opentrn import compiler, hw, nki
from opentrn.base import UnknownNameError, UsageError, declare, nearest

OPTION = declare(
    "frameworks.option",
    "An option of torch.compile(backend='neuron') does not exist, or has no such value.",
    rule='options are {"target": chip, "dtype": precision, "auto_cast": level, "numerics": who, '
    '"freeze": bool, "name": str}',
    fix='for example torch.compile(model, backend="neuron", options={"dtype": "bfloat16"})',
)

PRECISIONS = {
    "keep": "float32", "float32": "float32", "fp32": "float32", "bfloat16": "bfloat16",
    "bf16": "bfloat16", "float16": "float16", "fp16": "float16", "tf32": "tf32",
    "fp8_e4m3": "fp8_e4m3",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How captured graphs are compiled.

    `target` is a chip, generation or instance ("": the one in force, see `nki.use_target`).
    `dtype` "keep" leaves each tensor the dtype the model gives it; "bfloat16" and "float16" store
    what was float32 between ops as that; with `auto_cast` "matmult" they, "tf32" and "fp8_e4m3" are
    what operands of products are rounded to, and nothing else.  `freeze` makes parameters constants
    of graphs that need no gradients, laid out for the chip once; changing them compiles anew.
    `numerics` says who computes, as in `compiler.compile` ("": those in force, see
    `compiler.use_numerics`).
    """

    target: str = ""
    dtype: str = "keep"
    auto_cast: str = "all"
    numerics: str = ""
    freeze: bool = True
    name: str = ""

    @property
    def chip(self) -> str:
        """The name of the chip that is meant."""
        return hw.target(self.target).name if self.target else nki.current_chip().name

    @property
    def precision(self) -> str:
        """What floats are stored as between ops."""
        alone = self.auto_cast != "all" or self.dtype == "tf32"
        return "float32" if alone else PRECISIONS[self.dtype]

    @property
    def casts(self) -> dict[str, str]:
        """The `dtype` and `auto_cast` of `compiler.compile`."""
        return {"dtype": PRECISIONS[self.dtype], "auto_cast": self.auto_cast}

    @property
    def computed(self) -> str:
        """The `numerics` of `compiler.compile`."""
        return self.numerics or compiler.numerics_in_force()

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> "Settings":
        """Settings from a dictionary; UsageError or UnknownNameError `frameworks.option`."""
        known = [field.name for field in fields(cls)]
        for name in given or {}:
            if name not in known:
                near = ", ".join(nearest(name, known)) or ", ".join(known)
                raise UnknownNameError(
                    f"backend neuron has no option `{name}`", code=OPTION, fix=f"nearest: {near}"
                )
        made = cls(**{name: _plain(name, value) for name, value in (given or {}).items()})
        if made.computed not in compiler.NUMERICS:
            raise UsageError(
                f"there are no numerics `{made.computed}`",
                code=OPTION,
                fix=f"one of {', '.join(compiler.NUMERICS)}",
            )
        if made.dtype not in PRECISIONS:
            raise UsageError(
                f"backend neuron has no precision `{made.dtype}`",
                code=OPTION,
                fix=f"one of {', '.join(PRECISIONS)}",
            )
        return made


def _plain(name: str, value: Any) -> Any:
    """A dtype given as torch.bfloat16 by its name."""
    return str(value).removeprefix("torch.") if name == "dtype" else value


__all__ = ["PRECISIONS", "Settings"]
