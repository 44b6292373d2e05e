"""Choose how to split a model over a fleet, and say why."""

from opentrn.plan.answer import Plan, Plans, Rejected
from opentrn.plan.charts import Curve, Point, curves, stacked
from opentrn.plan.fits import Fit, fits
from opentrn.plan.legal import Degree, Degrees, degrees
from opentrn.plan.page import (
    around,
    comparison,
    count_text,
    efficient,
    page,
    save_page,
    scaling,
    styled,
    table,
    time_unit,
    whole_page,
)
from opentrn.plan.search import Limits, plan
from opentrn.plan.serve import plan_serving
from opentrn.plan.versus import Versus, compare, versus_text

__all__ = [
    "Curve", "Degree", "Degrees", "Fit", "Limits", "Plan", "Plans", "Point", "Rejected", "Versus",
    "around", "compare", "comparison", "count_text", "curves", "degrees", "efficient", "fits",
    "page", "plan", "plan_serving", "save_page", "scaling", "stacked", "styled", "table",
    "time_unit", "versus_text", "whole_page",
]  # fmt: skip
