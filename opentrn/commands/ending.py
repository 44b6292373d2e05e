"""How a command ends: refusals in five lines, errors of a user's file, and the exit status.

| status | meaning |
|---|---|
| 0 | done, and the answer is yes |
| 1 | refused: the chip, the compiler, a file or the machine says no, or the script failed |
| 2 | the command line is wrong: an option, a value, a name or a path means nothing here |
| 3 | `check` only: findings, nothing refused |
| 130 | interrupted |

`run` passes on the status that its script ends with.
"""

import json as jsonlib
import os
import sys
from typing import Any

import click

from opentrn.commands import environment

REFUSED, WRONG, INTERRUPTED = 1, 2, 130
TYPED = "command line"
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Command(click.Command):
    """A command that shows refusals as five lines (or as JSON) instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what it raises becomes lines on standard error and a status."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except click.exceptions.Exit:
            raise
        except click.UsageError as error:
            ctx.exit(show_usage(error, as_json=bool(ctx.params.get("json"))))
        except Exception as error:
            from opentrn.base import TrnError

            if isinstance(error, TrnError):
                ctx.exit(show_refusal(error, as_json=bool(ctx.params.get("json"))))
            if ctx.command.name not in LOADERS or not _show_users_error(error):
                raise
            ctx.exit(REFUSED)


class Commands(click.Group):
    """The group of commands: what is wrong with a command line is five lines too."""

    command_class = Command

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Parse the options before the command's name."""
        try:
            return super().make_context(*args, **extra)
        except click.exceptions.NoArgsIsHelpError:  # shows the help
            raise
        except click.UsageError as error:
            sys.exit(show_usage(error, as_json=False))

    def invoke(self, ctx: click.Context) -> Any:
        """Parse and run the command."""
        try:
            return super().invoke(ctx)
        except click.exceptions.Exit:
            raise
        except click.UsageError as error:
            ctx.exit(show_usage(error, as_json="--json" in sys.argv[1:]))
        except Exception as error:  # of an option's own type, while parsing
            from opentrn.base import TrnError

            if not isinstance(error, TrnError):
                raise
            ctx.exit(show_refusal(error, as_json="--json" in sys.argv[1:]))


# -------------------------------------------------------------------------------------- refusals


def show_refusal(error: Any, *, as_json: bool) -> int:
    """Print a TrnError on standard error, and return the exit status it ends a command with.

    One that no script's line caused is placed on the command line; if it is about what was typed
    there (a name, a path, a value), the command line is wrong.
    """
    from opentrn import base

    typed = error.at is None or error.at.file == TYPED or _is_runner(error.at.file)
    if typed:
        error.at = command_line()
    if environment.full_tracebacks() and not as_json:
        show_traceback(error)
    else:
        click.echo(jsonlib.dumps(error.json()) if as_json else str(error), err=True)
        for note in () if as_json else getattr(error, "__notes__", ()):
            click.echo(note, err=True)
    about = (base.UsageError, base.UnknownNameError, base.FactError, base.MissingFileError,
             base.UnwritableError)  # fmt: skip
    return WRONG if typed and isinstance(error, about) else REFUSED


def show_usage(error: click.UsageError, *, as_json: bool) -> int:
    """Print what click says of a command line as a refusal; return the exit status."""
    from opentrn.base import UsageError
    from opentrn.commands.codes import USAGE

    context = error.ctx or click.get_current_context(silent=True)
    usage, fix = "", ""
    if context is not None:
        usage = " ".join(context.get_usage().split()).removeprefix("Usage: ")
        usage = _help_of(error, context) or usage
        fix = f"`{context.command_path} --help` tells what it takes"
    what = " ".join(error.format_message().split()).rstrip(".")
    what = what[:1].lower() + what[1:]
    refusal = UsageError(what, code=USAGE, at=command_line(), rule=usage, fix=fix)
    return show_refusal(refusal, as_json=as_json) and WRONG


def _help_of(error: click.UsageError, context: click.Context) -> str:
    """What the option is for whose value is wrong; "" where none is named or it has no help."""
    hint = getattr(error, "param_hint", None) or ""
    for option in context.command.params:
        if option is getattr(error, "param", None) or hint in option.opts:
            told = getattr(option, "help", None)
            return f"{option.opts[0]}: {told}" if told else ""
    return ""


def command_line() -> Any:
    """What the user typed, as a place in a source file."""
    import linecache
    import shlex

    from opentrn.base import Where

    typed = shlex.join(["opentrn", *sys.argv[1:]])
    linecache.cache[TYPED] = (len(typed), None, [typed + "\n"], TYPED)
    return Where(TYPED, 1)


# ---------------------------------------------------------------------- errors of a user's file

LOADERS = ("analyze", "calibrate", "check", "compile", "diff", "profile")
"""Commands that import a user's file; what it raises is shown without our part of the traceback."""


def _show_users_error(error: Exception) -> bool:
    """Show an error of a user's file as Python would; False when no line of theirs took part."""
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not (_is_standard(file) or file.startswith(_PACKAGE) or _is_runner(file)):
            break
        trace = trace.tb_next
    if trace is None and not isinstance(error, SyntaxError):  # of a package's __init__.py
        return False
    show_users_error(error if environment.full_tracebacks() else error.with_traceback(trace))
    return True


def show_users_error(error: BaseException) -> int:
    """Show an error that a user's file let through and what that means; return the exit status."""
    show_traceback(error)
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    name = type(error).__name__
    if _is_ours(error):
        said = f"{name} inside OpenTrn: a defect to report, with the lines above"
    else:
        said = f"the script's own {name}"
    if not environment.full_tracebacks():
        said += "; OPENTRN_TRACEBACK=full shows OpenTrn's lines too"
    click.echo(f"opentrn: {said} (exit status {REFUSED})", err=True)
    return REFUSED


def _is_ours(error: BaseException) -> bool:
    """Whether an error arose in a line of this package, or in a library that it called."""
    trace, ours = error.__traceback__, False
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.startswith(_PACKAGE):  # which lies among installed packages too
            ours = True
        elif not _is_standard(file) and "-packages" not in file:
            ours = False
        trace = trace.tb_next
    return ours


def _is_standard(file: str) -> bool:
    library = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
    return file.startswith("<frozen ") or (file.startswith(library) and "-packages" not in file)


def show_traceback(error: BaseException) -> None:
    """Show an error as Python would, with the user's lines only unless all were asked for."""
    from opentrn.base import hide_frames

    if not environment.full_tracebacks():
        hide_frames(error)
    sys.excepthook(type(error), error, error.__traceback__)


def _is_runner(file: str) -> bool:
    """Whether a source file belongs to those who run commands: click, or the entry script."""
    click_home = os.path.dirname(click.__file__) + os.sep
    return file.startswith(click_home) or os.path.abspath(file) == os.path.abspath(sys.argv[0])


__all__ = [
    "Command", "Commands", "command_line", "show_refusal", "show_traceback",
    "show_usage", "show_users_error",
]  # fmt: skip
