"""Answer `import nki` and `import neuronxcc.nki` with OpenTrn's kernel languages, while asked to.

This is the one place where OpenTrn changes state that belongs to others (`sys.meta_path`,
`sys.modules`, and `jax.jit` for scripts that set JAX_PLATFORMS=neuron). It does so on request only,
and puts back exactly what it found.
"""

import contextlib
import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

from opentrn import nki
from opentrn.dropin import environment
from opentrn.dropin.jitting import on_neuron
from opentrn.dropin.older import Modules
from opentrn.sim import Strict

_STANDINS = "opentrn.dropin.standins"

NAMES = {
    "nki": "opentrn.nki",
    "nki.language": "opentrn.nki.language",
    "nki.language.dtypes": "opentrn.nki.dtype",
    "nki.isa": "opentrn.nki.isa",
    "nki.isa.constants": "opentrn.nki.isa.constants",
    "nki.collectives": "opentrn.nki.collectives",
    "nki.compiler": "opentrn.nki.compiler",
    "nki.compiler.frontend": f"{_STANDINS}.frontend",
    "nki.dtype": "opentrn.nki.dtype",
    "nki.tensor": "opentrn.nki.tensor",
    "nki.typing": "opentrn.nki.typing",
    "nki_cpu_simulator": f"{_STANDINS}.cpu_simulator",
    "nki_cpu_simulator.nki": f"{_STANDINS}.cpu_simulator_nki",
    "nki_cpu_simulator.nki.builtin": f"{_STANDINS}.builtin",
    "nki_cpu_simulator.nki.collectives": "opentrn.nki.collectives",
    "nki_cpu_simulator.nki.compiler": "opentrn.nki.compiler",
    "nki_cpu_simulator.nki.isa": "opentrn.nki.isa",
    "nki_cpu_simulator.nki.isa.constants": "opentrn.nki.isa.constants",
    "nki_cpu_simulator.nki.language": "opentrn.nki.language",
    "nki_cpu_simulator.nki.language.dtypes": "opentrn.nki.dtype",
    "nki_cpu_simulator.nki.tensor": "opentrn.nki.tensor",
    "nki_cpu_simulator.nki.typing": "opentrn.nki.typing",
    "neuron_dtypes": f"{_STANDINS}.neuron_dtypes",
    "neuronxcc": "opentrn.nki.beta1.root",
    "neuronxcc.nki": "opentrn.nki.beta1",
    "neuronxcc.nki.compiler": "opentrn.nki.beta1.compiler",
    "neuronxcc.nki.isa": "opentrn.nki.beta1.isa",
    "neuronxcc.nki.isa.constants": "opentrn.nki.beta1.constants",
    "neuronxcc.nki.language": "opentrn.nki.beta1.language",
    "neuronxcc.nki.language.constants": "opentrn.nki.beta1.constants",
    "neuronxcc.nki.nccl": "opentrn.nki.beta1.nccl",
    "neuronxcc.nki.nccl.collectives": "opentrn.nki.beta1.nccl",
    "neuronxcc.nki.typing": "opentrn.nki.beta1.typing",
    "torch_neuronx": "opentrn.frameworks.torch.neuronx",
    "torch_xla": f"{_STANDINS}.torch_xla",
    "torch_xla.core": f"{_STANDINS}.torch_xla_core",
    "torch_xla.core.xla_model": f"{_STANDINS}.xla_model",
}
"""What a script may import -> the module it gets, one object under both names."""

_ROOTS = frozenset(name.partition(".")[0] for name in NAMES)
PACKAGES = frozenset(name.rpartition(".")[0] for name in NAMES)


def _ours(name: str) -> bool:
    return name.partition(".")[0] in _ROOTS


def _advice(name: str) -> str:
    """What to do about a name that is not there."""
    root = name.partition(".")[0]
    known = [n for n, r in NAMES.items() if _ours_has(r) and n.partition(".")[0] == root]
    offer = f"a script can import {', '.join(known)}" if known else "it is not built yet"
    return (
        f"OpenTrn has no module named {name!r}; {offer}. "
        "Leave the import out, or make it conditional"
    )


def _ours_has(real: str) -> bool:
    try:
        return importlib.util.find_spec(real) is not None
    except ModuleNotFoundError:
        return False


class _Alias:
    """Import a name of NAMES as the module it stands for; refuse its siblings with a reason."""

    def __init__(self, version: str) -> None:
        self._modules = Modules(version)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Answer for our roots and everything below, so that no other package mixes with ours."""
        if not _ours(name):
            return None
        real = NAMES.get(name)
        if real is None or not _ours_has(real):
            raise ModuleNotFoundError(_advice(name), name=name)
        return importlib.machinery.ModuleSpec(name, self, is_package=name in PACKAGES)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Let Python make an empty stand-in; `exec_module` replaces it."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the real module in the stand-in's place: the import system re-reads `sys.modules`."""
        name = module.__name__
        sys.modules[name] = self._modules.of(importlib.import_module(NAMES[name]))


class Installed:
    """A standing installation: leave it with `remove()` or at the end of a `with` block."""

    def __init__(self, target: str | None, version: str | None) -> None:
        self._found = {n: m for n, m in sys.modules.items() if _ours(n)}
        self._stack = contextlib.ExitStack()
        version = version or environment.nki_version()
        if version is not None:
            self._stack.enter_context(nki.use_version(version))
        self._alias = _Alias(nki.current_version())
        if target is not None:
            self._stack.enter_context(nki.use_target(target))
        strict = Strict(precise=environment.precise(), as_observed=environment.as_observed())
        if strict != Strict():
            self._stack.enter_context(nki.use_strict(strict))
        if environment.jax_on_neuron():
            self._stack.enter_context(on_neuron(target))
        for name in self._found:
            del sys.modules[name]
        sys.meta_path.insert(0, self._alias)

    def remove(self) -> None:
        """Put back the modules and the target of before; a second call does nothing."""
        if self._alias not in sys.meta_path:
            return
        sys.meta_path.remove(self._alias)
        for name in [n for n in sys.modules if _ours(n)]:
            del sys.modules[name]
        sys.modules.update(self._found)
        self._stack.close()

    def __enter__(self) -> "Installed":
        return self

    def __exit__(self, *details: object) -> None:
        self.remove()


def install(target: str | None = None, version: str | None = None) -> Installed:
    """Make `import nki` (and the names of NAMES) mean OpenTrn from now on, for one target.

    `version` is the NKI the script was written for, "0.1" to "0.7" (or its SDK, "2.27" to "2.33");
    without one that of OPENTRN_NKI, else the one in force.

    `target` is a chip, a generation or an instance as `hw.target` knows them; without one, the
    current target of `opentrn.nki` stays. A package of that name that was imported before is set
    aside until `remove()`. Raises UnknownNameError for an unknown target or version, before
    anything changes.
    """
    return Installed(target, version)
