"""Documented limits as cases: what a few lines of a kernel do, legal or refused with a code.

Each case quotes what the NKI API reference (nki.isa, Neuron SDK 2.32) says of a function.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from opentrn import nki
from opentrn.base import TrnError
from opentrn.nki import isa as nisa
from opentrn.nki import language as nl


@dataclass(frozen=True)
class Case:
    """A body of a kernel, and the code of its refusal (None where it is legal)."""

    function: str
    says: str
    code: str | None
    target: str
    body: Callable[[], None]

    def __str__(self) -> str:
        return f"{self.function}-{self.says}-{self.target}".replace(" ", "_")

    def check(self) -> None:
        """Run it; legal bodies leave no finding."""

        def kernel():
            self.body()
            return nl.zeros((1, 1), nl.float32, buffer=nl.shared_hbm)

        with nki.use_target(self.target):
            if self.code is None:
                assert nki.run(kernel).findings == ()
                return
            with pytest.raises(TrnError) as caught:
                nki.run(kernel)
        assert caught.value.code == self.code
        assert caught.value.fix


class Cases(list):
    """The cases of one file, filled by the decorators `refused` and `legal`."""

    def refused(self, function: str, says: str, code: str, on: str = "trn2"):
        """The decorated body is refused with this code."""
        return lambda body: self.append(Case(function, says, code, on, body))

    def legal(self, function: str, says: str, on: str = "trn2"):
        """The decorated body runs without a finding."""
        return lambda body: self.append(Case(function, says, None, on, body))


def raw(*shape, dtype=nl.float32, psum=False):
    """A tile nobody wrote."""
    return nl.ndarray(shape, dtype, buffer=nl.psum if psum else nl.sbuf)


def tile(*shape, dtype=nl.float32, psum=False, fill=1):
    """A tile full of one number."""
    made = raw(*shape, dtype=dtype, psum=psum)
    nisa.memset(made, fill)
    return made


def hbm(*shape, dtype=nl.float32, fill=1):
    """A tensor in HBM full of one number."""
    made = nl.ndarray(shape, dtype, buffer=nl.private_hbm)
    part = tile(min(shape[0], 128), *shape[1:], dtype=dtype, fill=fill)
    for start in range(0, shape[0], 128):
        count = min(128, shape[0] - start)
        nisa.dma_copy(made[start : start + count], part[0:count])
    return made
