"""One machine running a program: what it computes, and when."""

from opentrn.sim.functional import Machine
from opentrn.sim.replay import Replay
from opentrn.sim.strict import Finding, Strict
from opentrn.sim.threads import one_blas_thread

__all__ = ["Finding", "Machine", "Replay", "Strict", "one_blas_thread"]
