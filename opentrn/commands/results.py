"""Options that name where results go: what cannot be written is refused before any work."""

from typing import Any

import click


class NewFile(click.ParamType):
    """A path that a file can be written to; raises what `base.refuse_unwritable` raises."""

    name = "file"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        """The path as it was given."""
        from opentrn.base import refuse_unwritable

        refuse_unwritable(value)
        return str(value)


class NewFolder(click.ParamType):
    """A directory, there or to be made; raises what `base.refuse_no_folder` raises."""

    name = "directory"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        """The path as it was given."""
        from opentrn.base import refuse_no_folder

        refuse_no_folder(value)
        return str(value)


__all__ = ["NewFile", "NewFolder"]
