"""Environment variables of the Neuron SDK: which mean something here, and which set ones do not."""

import os

HONOURED = {
    "NEURON_PLATFORM_TARGET_OVERRIDE": "the target of kernels and of `profile`, as --target",
    "NKI_NC_VERSION": "the target of the stand-ins for older simulators (gen2, gen3, gen4)",
    "NKI_PRECISE_FP": "0 leaves floats unrounded, at float32",
    "NKI_SIMULATOR": "set to 1 for scripts that ask for it; an own value is left as it is",
    "NEURON_RT_DEBUG_OUTPUT_DIR": "where nl.device_print saves tensors",
    "JAX_PLATFORMS": "neuron makes jax.jit run scripts on the simulated device",
    "NEURON_RT_STOCHASTIC_ROUNDING_EN": "1 has models of the frameworks round by chance",
    "NEURON_RT_STOCHASTIC_ROUNDING_SEED": "the seed of that (0)",
    "OPENTRN_BEHAVIOUR": "as-observed has kernels do what users saw chips do, against the spec",
    "OPENTRN_NKI": "the version of NKI a script was written for, as run --nki",
    "OPENTRN_TRACEBACK": "full shows the lines of OpenTrn in tracebacks, and those of refusals",
}
"""Variable -> what it does; doctor and the documentation show this."""

OF_THE_SDK = ("NEURON_", "NEURONCORE_", "NKI_")
# Deprecated names of torch_xla, still in many scripts, that change the numbers on the real system.
ALSO = ("XLA_USE_BF16", "XLA_DOWNCAST_BF16", "XLA_USE_FP16", "XLA_DOWNCAST_FP16")


def ignored() -> list[str]:
    """Variables of the SDK that are set and mean nothing here, sorted."""
    ours = (name for name in os.environ if name.startswith(OF_THE_SDK) or name in ALSO)
    return sorted(name for name in ours if name not in HONOURED)


def full_tracebacks() -> bool:
    """Whether OPENTRN_TRACEBACK asks for our lines of tracebacks too."""
    return os.environ.get("OPENTRN_TRACEBACK", "").strip().lower() == "full"


def blas_threads() -> int | None:
    """The number of threads that linear algebra was told to use; None for all there are."""
    names = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
    told = [os.environ[name] for name in names if os.environ.get(name, "").isdigit()]
    return int(told[0]) if told else None


__all__ = ["ALSO", "HONOURED", "OF_THE_SDK", "blas_threads", "full_tracebacks", "ignored"]
