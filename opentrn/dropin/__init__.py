"""The names existing Trainium scripts import, on request."""

from opentrn.dropin.names import NAMES, Installed, install
from opentrn.dropin.script import run_script, script_traceback

__all__ = ["NAMES", "Installed", "install", "run_script", "script_traceback"]
