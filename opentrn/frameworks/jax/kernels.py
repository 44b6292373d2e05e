"""NKI kernels inside functions that are compiled for the device: ops of their graph.

JAX's program holds a custom call for each, which names the kernel by a token (`nki.TracedKernel`);
the tokens of a function are found in what JAX traced, so nothing is kept between compilations.
"""

from collections.abc import Callable, Iterator
from typing import Any

from opentrn.graph import Callee, StablehloCall, Value
from opentrn.nki import TracedKernel


def equations(program: Any) -> Iterator[Any]:
    """Every equation of a jaxpr, those of inner functions and loops too."""
    from jax.extend.core import jaxprs_in_params

    for equation in program.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def kernels_of(program: Any) -> dict[str, Callable[[StablehloCall], list[Value]]]:
    """The importer's rule for the kernels that a jaxpr calls; empty where there are none."""
    found: dict[str, TracedKernel] = {}
    for equation in equations(program):
        if str(equation.primitive) == "nki_kernel":
            traced = equation.params["traced"]
            found[traced.token] = traced

    def rule(call: StablehloCall) -> list[Value]:
        traced = found[call.attr("mhlo.backend_config")["token"]]
        takes, gives = (tuple(a.type for a in call.args), tuple(call.results))
        name = traced.bound.__name__
        callee = Callee(name, takes, gives, traced.bound, traced, traced.flops)
        return call.parts(call.g.foreign(*call.args, callee=callee))

    return {TracedKernel.TARGET: rule} if found else {}


__all__ = ["equations", "kernels_of"]
