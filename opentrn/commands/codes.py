"""Codes of what is wrong with a command line itself; imported when one is needed."""

from opentrn.base import declare

NO_CODE = declare(
    "cli.code",
    "There is no explanation under this code.",
    rule="a code is <instruction>.<part>, <room>.<name>, or a code the Neuron tools print",
    fix="`opentrn explain` without a code lists them",
)
USAGE = declare(
    "cli.usage",
    "The command line has an option, an argument or a value that the command does not take, or "
    "lacks one that it needs. Nothing was done, and the exit status is 2.",
    rule="a command takes the options and arguments that its --help lists",
    fix="`opentrn COMMAND --help` lists them",
)
