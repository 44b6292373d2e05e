"""Commands of `opentrn` that are more than a call of one room."""

from opentrn.commands.profile import profile

__all__ = ["profile"]
