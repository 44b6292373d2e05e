"""`neuronxcc`: the package of which only `neuronxcc.nki` exists here."""

from opentrn.nki import beta1 as nki

# Imported under its older name it is a package: `.nki` lies below it.
__path__: list[str] = []

__version__ = "2.21"

__all__ = ["__version__", "nki"]
