"""`trace(model, example)`: a TensorFlow function as a program on a simulated NeuronCore.

Variables live in TensorFlow: each call hands their values over, and the new values of those that
the function assigns come back into them, so that a training step trains the model it was made of.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from opentrn.base import UsageError
from opentrn.frameworks.judge import PRECISION, PRECISIONS
from opentrn.frameworks.program import Program
from opentrn.frameworks.tensorflow.lower import MODEL, Lowered, lower, spec_of, tensorflow, write
from opentrn.frameworks.tensorflow.saved import signature_of


class Traced(Program):
    """A function compiled for one set of shapes and dtypes; call it like the function."""

    lowered: Lowered

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result, as TensorFlow's tensors; assigned variables have new values.

        Raises UsageError `frameworks.tf_model` for arguments that are not like the examples.
        """
        tf = tensorflow()
        leaves = tf.nest.flatten((args, kwargs))
        traced = [spec_of(leaf) is not None for leaf in leaves]
        pairs = list(zip(leaves, traced, strict=True))
        _refuse_names(kwargs, self.lowered.names)
        _refuse_fixed([leaf for leaf, own in pairs if not own], self.lowered.fixed)
        arrays = [_array(leaf) for leaf, own in pairs if own]
        _refuse_others(arrays, self.lowered.arguments)
        found = self.run([*arrays, *self.lowered.values()])
        count = len(found) - len(self.lowered.updates)
        for place, array in zip(self.lowered.updates, found[count:], strict=True):
            write(self.lowered.captured[place], array)
        return _packed(self.lowered.outputs, found[:count])

    def __repr__(self) -> str:
        return f"<traced {self.lowered.graph.name}: {self.calls} calls>"


def _array(leaf: Any) -> Any:
    import numpy as np

    return leaf.numpy() if hasattr(leaf, "numpy") else np.asarray(leaf)


def _refuse_names(given: Mapping[str, Any], names: Sequence[str]) -> None:
    """Arguments by name stand in the order of their names: other names would mix them up."""
    if given and sorted(given) != list(names):
        told = f"by the names {', '.join(names)}" if names else "by place"
        raise UsageError(f"the example gives arguments {told}, the call {', '.join(given)}",
                         code=MODEL, fix="give arguments as the example does")  # fmt: skip


def _refuse_fixed(given: Sequence[Any], fixed: Sequence[Any]) -> None:
    """What is no tensor is part of the program: it may be left out, but not be another."""
    if given and (len(given) != len(fixed) or not all(map(_same, given, fixed))):
        raise UsageError(
            f"the program is traced for {', '.join(map(repr, fixed)) or 'tensors alone'}; it was "
            f"given {', '.join(map(repr, given))}", code=MODEL,
            rule="arguments that are no tensors are fixed when a program is traced",
            fix="trace it again for these arguments",
        )  # fmt: skip


def _same(one: Any, other: Any) -> bool:
    plain = type(one) is type(other) and isinstance(one, (bool, int, float, str))
    return one is other or (plain and one == other)


def _refuse_others(arrays: Sequence[Any], specs: Sequence[Any]) -> None:
    have = [(tuple(a.shape), a.dtype.name) for a in arrays]
    want = [(tuple(s.shape), s.dtype.name) for s in specs]
    if have != want:
        raise UsageError(
            f"the program takes {_told(want)}; it was given {_told(have)}", code=MODEL,
            rule="a program is traced for the shapes and dtypes of its examples",
            fix="trace it again for these shapes",
        )  # fmt: skip


def _told(kinds: Sequence[tuple[tuple[int, ...], str]]) -> str:
    return ", ".join(f"{dtype}{list(shape)}" for shape, dtype in kinds) or "nothing"


def _packed(tree: Any, arrays: Sequence[Any]) -> Any:
    """The arrays as tensors in the tree a function returns."""
    tf = tensorflow()
    rest = iter(arrays)
    leaves = tf.nest.flatten(tree, expand_composites=True)
    made = []
    for leaf in leaves:
        if not isinstance(leaf, tf.Tensor):
            made.append(leaf)
            continue
        array = next(rest)
        made.append(tf.constant(array.reshape(leaf.shape), leaf.dtype))
    return tf.nest.pack_sequence_as(tree, made, expand_composites=True)


def trace(model: Any, example: Any = None, *, target: str = "", dtype: str = "keep") -> Traced:
    """A TensorFlow model compiled for a NeuronCore of `target` (left out: the one in force).

    `model` is a tf.function, any callable of TensorFlow, a Keras model on the TensorFlow backend,
    or the folder of a SavedModel. `example` is one argument or a tuple of them, a dict for names:
    arrays, tensors or `tf.TensorSpec`; of a SavedModel it may be left out if its signature has
    fixed shapes. `dtype` "bfloat16" or "float16" stores what is float32 between ops as that.

    Raises UsageError `frameworks.tf_model`, and as `lower` and `compiler.compile` do.
    """
    tensorflow()
    if dtype not in PRECISIONS:
        raise UsageError(f"trace: there is no precision {dtype}", code=PRECISION)
    function, args, kwargs = callable_of(model, example)
    return Traced.of(lower(function, args, kwargs), target, PRECISIONS[dtype])


def callable_of(model: Any, example: Any) -> tuple[Any, tuple, dict]:
    """(function, arguments, keywords) of what `trace` is given."""
    if isinstance(model, (str, os.PathLike)):
        function, named = signature_of(model, example)
        return function, (), named
    backend = _keras_backend(model)
    if backend not in ("", "tensorflow"):
        raise UsageError(
            f"a Keras model on the {backend} backend", code=MODEL,
            fix="opentrn.frameworks.jax.jit for JAX, torch.compile(backend='neuron') for PyTorch",
        )  # fmt: skip
    if not callable(model) or example is None:
        what = "no example was given" if callable(model) else f"a {type(model).__name__}"
        raise UsageError(f"trace: {what}", code=MODEL)
    if isinstance(example, dict) and not backend:
        return model, (), example
    args = example if isinstance(example, (tuple, list)) else (example,)
    return model, tuple(args), {}


def _keras_backend(model: Any) -> str:
    """The backend of a Keras model, "" for what is none."""
    import sys

    keras = sys.modules.get("keras")
    if keras is None or not isinstance(model, keras.Layer):
        return ""
    return keras.backend.backend()


__all__ = ["Traced", "trace"]
