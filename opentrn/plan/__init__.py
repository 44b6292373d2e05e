"""Choose how to split a model over a fleet, and say why."""

from opentrn.plan.answer import Plan, Plans, Rejected
from opentrn.plan.fits import Fit, fits
from opentrn.plan.legal import Degree, Degrees, degrees
from opentrn.plan.page import around, comparison, efficient, page, save_page, scaling
from opentrn.plan.search import Limits, plan
from opentrn.plan.serve import plan_serving
from opentrn.plan.versus import Versus, compare

__all__ = [
    "Degree", "Degrees", "Fit", "Limits", "Plan", "Plans", "Rejected", "Versus", "around",
    "compare", "comparison", "degrees", "efficient", "fits", "page", "plan", "plan_serving",
    "save_page", "scaling",
]  # fmt: skip
