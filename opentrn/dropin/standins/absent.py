"""How a stand-in answers for what it does not have: with what to do instead."""

from opentrn.base import NotBuiltError, declare

ABSENT = declare(
    "dropin.absent",
    "A script asked a stand-in of the Neuron SDK for something it does not have.",
    rule="stand-ins cover what scripts around kernels call; tensors stay on the CPU",
    fix="leave the call out here, or compile the model with `opentrn compile`",
)


def refuse(module: str, name: str, fix: str = "") -> None:
    """NotBuiltError for a public name; AttributeError for a private one, as Python asks for."""
    if name.startswith("_"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    what = f"OpenTrn's stand-in for {module} has no `{name}`"
    raise NotBuiltError(what, code=ABSENT, fix=fix)
