"""Turn a trace into answers."""

from opentrn.profiler.advice import Advice
from opentrn.profiler.bounds import Bound
from opentrn.profiler.compare import compare, side_by_side
from opentrn.profiler.instructions import (
    COLUMNS,
    TABLE,
    csv_pieces,
    instructions,
    json_pieces,
    save_parquet,
)
from opentrn.profiler.metrics import METRICS
from opentrn.profiler.page import page_pieces, save_page
from opentrn.profiler.perfetto import (
    perfetto_pieces,
    save_perfetto,
    save_summary,
)
from opentrn.profiler.profile import Profile, Timed, profile
from opentrn.profiler.reloads import Reload
from opentrn.profiler.report import report
from opentrn.profiler.saved import from_json, load_summary
from opentrn.profiler.source import Line, top_lines
from opentrn.profiler.summary import SCHEMA, Metric, Summary, summarize
from opentrn.profiler.tiles import Peak, Tile, memory_text, peak_of

__all__ = [
    "COLUMNS", "METRICS", "SCHEMA", "TABLE", "Advice", "Bound", "Line", "Metric", "Peak",
    "Profile", "Reload", "Summary", "Tile", "Timed", "compare", "csv_pieces", "from_json",
    "instructions", "json_pieces", "load_summary", "memory_text", "page_pieces", "peak_of",
    "perfetto_pieces", "profile", "report", "save_page", "save_parquet", "save_perfetto",
    "save_summary", "side_by_side", "summarize", "top_lines",
]  # fmt: skip
