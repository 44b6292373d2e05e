"""Closed-form time, bytes and dollars, and how sure we are."""

from opentrn.cost.calibrate import Calibration, Sample, calibrate
from opentrn.cost.claims import Claim, check_claims, claims_document, claims_text
from opentrn.cost.demand import PARTS as MEMORY_PARTS
from opentrn.cost.demand import memory
from opentrn.cost.estimate import Estimate, total, weakest
from opentrn.cost.exchange import collective_time
from opentrn.cost.money import Dollars, dollars, dollars_per_million
from opentrn.cost.platform import Platform, Tier, platform
from opentrn.cost.roof import Roofline, roofline
from opentrn.cost.serving import decode_parts, prefill_parts
from opentrn.cost.split import RECOMPUTE, Serving, Split, Training
from opentrn.cost.step import StepTime, step_time
from opentrn.cost.tables import table_text
from opentrn.cost.training import COMMUNICATION, training_parts
from opentrn.hw import best_price

__all__ = [
    "COMMUNICATION", "Calibration", "Claim", "Dollars", "Estimate", "MEMORY_PARTS", "Platform",
    "RECOMPUTE", "Roofline", "Sample", "Serving", "Split", "StepTime", "Tier", "Training",
    "best_price", "calibrate", "check_claims", "claims_document", "claims_text",
    "collective_time", "decode_parts", "dollars", "dollars_per_million", "memory", "platform",
    "prefill_parts", "roofline", "step_time", "table_text", "total", "training_parts", "weakest",
]  # fmt: skip
