"""Commands of `opentrn` that are more than a call of one room."""

from opentrn.commands.calibrate import calibrate
from opentrn.commands.cluster import simulate
from opentrn.commands.doctor import doctor
from opentrn.commands.explain import explain
from opentrn.commands.model import load_model, read_shape
from opentrn.commands.nccom import claims, nccom_test
from opentrn.commands.plan import compare, plan
from opentrn.commands.profile import profile
from opentrn.commands.waiting import waiting

__all__ = [
    "calibrate", "claims", "compare", "doctor", "explain", "load_model", "nccom_test",
    "plan", "profile", "read_shape", "simulate", "waiting",
]  # fmt: skip
