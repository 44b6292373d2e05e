"""A moving bar on standard error while a command thinks for more than two seconds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 2.0
"""Seconds before a bar is shown."""


@contextmanager
def waiting(doing: str, console: Any = None, patience: float = PATIENCE) -> Iterator[None]:
    """Show `doing`, a bar and the seconds so far, from `patience` seconds on until the block ends.

    Only on a terminal (`console`, by default standard error), and nothing of it stays. Nothing may
    be printed in the block: the bar would be torn. The work itself knows nothing of it, so the bar
    does not say how much is left.
    """
    shown: list[Any] = []
    lock, ended = threading.Lock(), threading.Event()

    def show() -> None:
        with lock:
            if not ended.is_set():
                shown.append(_bar(doing, console))

    timer = threading.Timer(patience, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        ended.set()
        timer.cancel()
        with lock:
            for bar in shown:
                bar.stop()


def _bar(doing: str, console: Any) -> Any:
    """A bar that moves until it is stopped."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TimeElapsedColumn

    console = console or Console(stderr=True)
    bar = Progress(
        "{task.description}", BarColumn(), TimeElapsedColumn(), console=console, transient=True,
        redirect_stdout=False, redirect_stderr=False, disable=not console.is_terminal,
    )  # fmt: skip
    bar.add_task(doing, total=None)
    bar.start()
    return bar
