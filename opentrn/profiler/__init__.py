"""Turn a trace into answers."""

from opentrn.profiler.advice import Advice
from opentrn.profiler.bounds import Bound
from opentrn.profiler.compare import compare
from opentrn.profiler.metrics import METRICS
from opentrn.profiler.perfetto import load_summary, save_perfetto, save_summary
from opentrn.profiler.profile import Profile, Timed, profile
from opentrn.profiler.reloads import Reload
from opentrn.profiler.report import report
from opentrn.profiler.source import Line, top_lines
from opentrn.profiler.summary import SCHEMA, Metric, Summary, summarize
from opentrn.profiler.tiles import Peak, Tile, memory_text, peak_of

__all__ = [
    "METRICS", "SCHEMA", "Advice", "Bound", "Line", "Metric", "Peak", "Profile", "Reload",
    "Summary", "Tile", "Timed", "compare", "load_summary", "memory_text", "peak_of", "profile",
    "report", "save_perfetto", "save_summary", "summarize", "top_lines",
]  # fmt: skip
