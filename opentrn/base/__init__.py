"""The words every room speaks: units, data types, rounding, errors, clock and trace."""

from opentrn.base import clock, dtypes, errors, functions, numerics, trace, units
from opentrn.base.clock import Agenda, Clock, EventKey
from opentrn.base.dtypes import ALL, FLOATS, INTS, ON_CHIP, PACKED, DType, dtype
from opentrn.base.errors import (
    BoundsError,
    Bug,
    CapacityError,
    DtypeError,
    Explanation,
    FactError,
    FileFormatError,
    LimitError,
    MissingFileError,
    NotBuiltError,
    OrderError,
    ShapeError,
    SpaceError,
    TrnError,
    UnknownNameError,
    UnsupportedError,
    UnwrittenError,
    UsageError,
    Where,
    codes,
    declare,
    explanation,
    nearest,
    user_line,
)
from opentrn.base.functions import FUNCTIONS
from opentrn.base.trace import GRADES, Event, Trace
from opentrn.base.units import (
    Quantity,
    bytes_text,
    dollars_text,
    flops_text,
    parse,
    rate_text,
    seconds_text,
)

__all__ = [
    "ALL", "FLOATS", "FUNCTIONS", "GRADES", "INTS", "ON_CHIP", "PACKED",
    "Agenda", "BoundsError", "Bug", "CapacityError", "Clock", "DType", "DtypeError", "Event",
    "EventKey", "Explanation", "FactError", "FileFormatError", "LimitError", "MissingFileError",
    "NotBuiltError", "OrderError", "Quantity", "ShapeError", "SpaceError", "Trace", "TrnError",
    "UnknownNameError", "UnsupportedError", "UnwrittenError", "UsageError", "Where",
    "bytes_text", "clock", "codes", "declare", "dollars_text", "dtype", "dtypes", "errors",
    "explanation", "flops_text", "functions", "nearest", "numerics", "parse", "rate_text",
    "seconds_text", "trace", "units", "user_line",
]  # fmt: skip
