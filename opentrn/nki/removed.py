"""Calls that do not fit a function of nki become refusals, at the line of the call.

A parameter of another NKI version is refused with what to write now.
"""

import inspect
import os
import re
from collections.abc import Callable

from opentrn.base import UsageError, Where, declare
from opentrn.nki.older_changes import CHANGES
from opentrn.nki.versions import current_version

declare(
    "nki.removed",
    "A call names a parameter that this version of NKI does not have.",
    rule="parameters are those of the version the kernel is run for (0.6, or opentrn run --nki)",
    fix="leave the parameter out, or run with the version the kernel was written for",
)
declare(
    "nki.signature",
    "A call does not fit the parameters of a function of nki.",
    rule="parameters are those of the version the kernel is run for (0.6, or opentrn run --nki)",
    fix="pass every parameter without a default, each once; opentrn explain names them",
)

# What to do about parameters that are in no older signature of `nki`.
_ADVICE = {
    "dtype": "leave it out: instructions convert to the dtype of `dst`",
    "mask": "slice the tiles with min(), or run the older neuronxcc.nki",
    "new_shape": "it is called `shape` since NKI 0.5",
    "num_channels": "pass channel_ids to collective_permute_implicit",
    "is_moving_zero": "it is called `is_moving_onezero` since NKI 0.2",
    "psumAccumulateFlag": "it never had an effect; see `accumulate`",
    "use_gpsimd_dma": "pass dma_engine=nisa.dma_engine.gpsimd_dma",
}
_UNKNOWN = re.compile(r"([\w.]+)\(\) got an unexpected keyword argument '(\w+)'")
_MISFIT = re.compile(r"([\w.]+)\(\) (?:missing \d|takes |got multiple|got some pos)")
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_KERNELS = os.path.join(_PACKAGE, "nki", "kernels") + os.sep


class RemovedError(UsageError, TypeError):
    """A call that does not fit: also the TypeError that Python raises for one."""


def removal(error: TypeError) -> RemovedError | None:
    """The refusal for a TypeError about a call of an nki function; None for other errors."""
    told = _UNKNOWN.search(str(error)) or _MISFIT.search(str(error))
    where = _line_of(error, told[1]) if told else None
    if where is None:
        return None
    name = told[1].removeprefix("NkiTensor.")
    if told.re is _UNKNOWN:
        return unknown(name, told[2], where)
    signature = inspect.signature(_public(told[1]))
    return misfit(str(error).replace("NkiTensor.", ""), name, signature, where)


def bound(name: str, signature: inspect.Signature, args: tuple, kwargs: dict):
    """The arguments of a call by parameter; RemovedError at the user's line if they do not fit."""
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        told = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if told:
            raise unknown(name, told[1]) from None
        raise misfit(f"{name}: {error}", name, signature) from None


def misfit(
    what: str, name: str, signature: inspect.Signature, where: Where | None = None
) -> RemovedError:
    """The refusal of too few, too many or doubled arguments, with the signature."""
    names = [n for n in signature.parameters if n != "self"]
    fix = f"the parameters are {name}({', '.join(names)})"
    return RemovedError(what, code="nki.signature", at=where, fix=fix)


def unknown(name: str, keyword: str, where: Where | None = None) -> RemovedError:
    """The refusal of a keyword, with what another version of NKI says of it."""
    fix, last = _ADVICE.get(keyword, ""), ""
    for key, changes in CHANGES.items():
        for change in changes:
            if key.endswith(f".{name}") and keyword in change.signature:
                fix, last = change.fix or change.what, change.last
    what = f"{name} has no parameter `{keyword}` in NKI {current_version()}"
    advice = f"{fix}; or opentrn run --nki {last}" if last else fix
    return RemovedError(what, code="nki.removed", at=where, fix=advice)


def _line_of(error: TypeError, name: str) -> Where | None:
    """The line that made the call, if it called a public function of nki."""
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    frame = trace.tb_frame
    file = frame.f_code.co_filename
    if file.startswith(_PACKAGE) and not file.startswith(_KERNELS):
        return None
    own = frame.f_locals.get(name, frame.f_globals.get(name))
    ours = own is None or getattr(own, "__module__", "").startswith(("nki.", "opentrn."))
    if not ours or _public(name) is None:
        return None
    return Where(file, trace.tb_lineno, frame.f_code.co_name)


def _public(name: str) -> Callable | None:
    """The function or method of nki with this name, as errors of Python spell it."""
    from opentrn.nki import collectives, isa, language
    from opentrn.nki.tensor import NkiTensor

    if name.startswith("NkiTensor."):
        return getattr(NkiTensor, name.removeprefix("NkiTensor."), None)
    found = (getattr(module, name, None) for module in (isa, language, collectives))
    return next((one for one in found if callable(one)), None)
