"""The linear recurrence of `operators.scan`, compiled by Numba: the same steps, equal bit by bit.

`operators.scan` is the specification.  Numba is optional, so nothing imports this module unless it
is installed.
"""

import numpy as np
from numba import njit

_AT_A_TIME = 8  # rows side by side, so that one row's wait for its last step is another's work


_ROWS = "float32[:, :]"  # of any strides: one compiled form serves every tile


@njit(f"void({_ROWS}, {_ROWS}, float32[:], {_ROWS})", cache=True)
def linear(factors: np.ndarray, terms: np.ndarray, first: np.ndarray, out: np.ndarray) -> None:
    """out[p, i] = factors[p, i] · out[p, i - 1] + terms[p, i], float32; out[p, -1] is first[p]."""
    rows, steps = out.shape
    state = np.empty(_AT_A_TIME, np.float32)
    for row in range(0, rows, _AT_A_TIME):
        count = min(_AT_A_TIME, rows - row)
        for n in range(count):
            state[n] = first[row + n]
        for step in range(steps):
            for n in range(count):
                value = factors[row + n, step] * state[n] + terms[row + n, step]
                state[n] = value
                out[row + n, step] = value
