"""The names existing Trainium scripts import, on request."""

from opentrn.dropin.checking import check_file
from opentrn.dropin.names import NAMES, Installed, install
from opentrn.dropin.script import NO_MODEL, load_name, run_script

__all__ = [
    "NAMES",
    "NO_MODEL",
    "Installed",
    "check_file",
    "install",
    "load_name",
    "run_script",
]
