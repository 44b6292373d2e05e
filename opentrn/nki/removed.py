"""A call with a parameter of another NKI version becomes a refusal that says what to write now."""

import re

from opentrn.base import UsageError, Where, declare
from opentrn.isa import INSTRUCTIONS
from opentrn.nki.older_changes import CHANGES
from opentrn.nki.versions import current_version

declare(
    "nki.removed",
    "A call names a parameter that this version of NKI does not have.",
    rule="parameters are those of the version the kernel is run for (0.6, or opentrn run --nki)",
    fix="leave the parameter out, or run with the version the kernel was written for",
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


class RemovedError(UsageError, TypeError):
    """A refused keyword: also the TypeError that Python raises for one."""


def removal(error: TypeError) -> RemovedError | None:
    """The refusal for a TypeError about a keyword of an nki function; None for other errors."""
    told = _UNKNOWN.search(str(error))
    where = _line_of(error, told[1]) if told else None
    if where is None:
        return None
    name, keyword = told[1].removeprefix("NkiTensor."), told[2]
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
    own = frame.f_locals.get(name, frame.f_globals.get(name))
    ours = own is None or getattr(own, "__module__", "").startswith(("nki.", "opentrn."))
    if not ours or not _is_public(name):
        return None
    return Where(frame.f_code.co_filename, trace.tb_lineno, frame.f_code.co_name)


def _is_public(name: str) -> bool:
    from opentrn.nki import isa, language

    method = name.startswith("NkiTensor.")
    return method or name in INSTRUCTIONS or hasattr(language, name) or hasattr(isa, name)
