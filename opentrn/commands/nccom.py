"""`opentrn nccom-test` and `opentrn claims`: collectives timed, public statements checked."""

import json as jsonlib
import sys

import click

from opentrn.commands.waiting import waiting


@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def nccom_test(args: tuple[str, ...]) -> None:
    """Time a collective on a simulated fabric, with the options of nccom-test.

    For example: opentrn nccom-test allr -r 32 -b 8 -e 1G -f 4 -d bf16 --check.  GB are 2**30
    bytes.  --instance names the machine, --lnc the physical cores of a rank.
    """
    from opentrn.comm import nccom

    sys.exit(nccom.main(args, click.echo))


@click.option("--json", is_flag=True, help="Print JSON, for programs.")
@click.argument("claim", required=False)
def claims(json: bool, claim: str | None) -> None:
    """Check what public articles say about Trainium; with CLAIM (A05), only that one.

    Each claim agrees with cited facts, contradicts one of them or itself, or cannot be checked.
    Claims of features are tried: a PyTorch model is compiled and run, for example.
    """
    from opentrn import cost
    from opentrn.commands.features import FEATURES

    with waiting("checking claims"):
        checked = cost.check_claims(claim, FEATURES)
    told = cost.claims_document(checked)
    click.echo(jsonlib.dumps(told, ensure_ascii=False) if json else cost.claims_text(checked))
