"""`python -m opentrn`: the same command as `opentrn`."""

from opentrn.cli import main

if __name__ == "__main__":
    main(prog_name="opentrn")
