"""The pytest plugin: `pytest --opentrn` runs a test suite with the drop-in names in place.

Installed with the package and idle unless asked for, by the option or by `opentrn = true` in the
suite's configuration.  The names stand from before the first conftest until the run ends, so that
conftests and test modules may import `nki` and the stand-ins at their top.
"""

from typing import Any

import pytest

_INSTALLED: Any = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare --opentrn, --opentrn-target and --opentrn-nki, and the same as configuration.

    Without a target it is what kernels and the environment say, else trn2, as for `opentrn run`.
    """
    group = parser.getgroup("opentrn", "kernels on a simulated Trainium")
    group.addoption("--opentrn", action="store_true", help="import nki means OpenTrn")
    group.addoption("--opentrn-target", metavar="NAME", help="chip to simulate [trn2]")
    written = "NKI the suite is written for, 0.1 to 0.7 [0.6]"
    group.addoption("--opentrn-nki", metavar="VERSION", help=written)
    parser.addini("opentrn", "import nki means OpenTrn", type="bool", default=False)
    parser.addini("opentrn_target", "chip to simulate", default="")
    parser.addini("opentrn_nki", "NKI version the suite is written for", default="")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Install the names, when asked to, before any conftest is imported."""
    asked = early_config.known_args_namespace
    if not (asked.opentrn or early_config.getini("opentrn")):
        return
    from opentrn.base import TrnError
    from opentrn.dropin import install

    target = asked.opentrn_target or early_config.getini("opentrn_target") or None
    version = asked.opentrn_nki or early_config.getini("opentrn_nki") or None
    try:
        early_config.stash[_INSTALLED] = install(target, version)
    except TrnError as error:
        error.at = None
        raise pytest.UsageError(str(error)) from None


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say in the header of the run that `nki` is OpenTrn, and for which chip."""
    if _INSTALLED not in config.stash:
        return None
    from opentrn import nki

    version = nki.current_version()
    return f"opentrn: nki is simulated, target {nki.current_chip().name}, NKI {version}"


def pytest_unconfigure(config: pytest.Config) -> None:
    """Put back what was there before."""
    if _INSTALLED in config.stash:
        config.stash[_INSTALLED].remove()
        del config.stash[_INSTALLED]
