"""What an engine keeps from one instruction to the next: accumulators, states of generators."""

import numpy as np


class EngineStates:
    """The state arrays of a core's engines, by engine and kind, begun when first asked for."""

    __slots__ = ("_begun", "_held")

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], np.ndarray] = {}
        self._begun: dict[tuple[str, str], np.ndarray] = {}

    def of(self, form) -> np.ndarray:
        """The state that instructions of this form read and change, in place."""
        key = form.engine_name, form.state
        known = self._held.get(key)
        if known is None:
            known = self._held[key] = form.fresh()
            self._begun[key] = known.copy()
        return known

    def keep(self, form, result: dict) -> None:
        """Take over the state that an instruction left, if it left one."""
        after, known = result.get(form.state), self.of(form)
        if after is not None and after is not known:
            np.copyto(known, after)

    def reset(self) -> None:
        """Every state as before the first instruction, in place."""
        for key, held in self._held.items():
            np.copyto(held, self._begun[key])


__all__ = ["EngineStates"]
