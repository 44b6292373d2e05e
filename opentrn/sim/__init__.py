"""One machine running a program: what it computes, and when."""

from opentrn.sim.functional import Machine
from opentrn.sim.strict import Finding, Strict

__all__ = ["Finding", "Machine", "Strict"]
