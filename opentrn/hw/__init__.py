"""Facts about machines, each with unit, source and grade; TOML files, no logic."""

from opentrn.hw.accelerator import (
    ALIASES,
    Accelerator,
    accelerator,
    accelerator_prices,
    accelerators,
)
from opentrn.hw.fact import Chip, Fabric, Fact, Instance, Price, Reading
from opentrn.hw.load import chip, chips, fabric, fabrics, instances, prices, read_file, read_prices
from opentrn.hw.names import best_price, names, price, target
from opentrn.hw.names import find_instance as instance
from opentrn.hw.page import page
from opentrn.hw.schema import BASES, GRADES
from opentrn.hw.variant import settings_of, variant

__all__ = [
    "ALIASES", "BASES", "GRADES", "Accelerator", "Chip", "Fabric", "Fact", "Instance", "Price",
    "Reading", "accelerator", "accelerator_prices", "accelerators", "best_price", "chip", "chips",
    "fabric", "fabrics", "instance", "instances", "names", "page", "price", "prices", "read_file",
    "read_prices", "settings_of", "target", "variant",
]  # fmt: skip
