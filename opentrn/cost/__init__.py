"""Closed-form time, bytes and dollars, and how sure we are."""

from opentrn.cost.estimate import Estimate, total, weakest
from opentrn.cost.money import Dollars, dollars, dollars_per_million
from opentrn.cost.roof import Roofline, roofline
from opentrn.hw import best_price

__all__ = [
    "Dollars", "Estimate", "Roofline", "best_price", "dollars", "dollars_per_million", "roofline",
    "total", "weakest",
]  # fmt: skip
