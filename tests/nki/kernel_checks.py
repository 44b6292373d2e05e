"""What the kernel tests share: inputs, tolerances that follow from the formats, the one check."""

import ml_dtypes
import numpy as np
import pytest

from opentrn import nki

TARGETS = ("trn1", "trn2", "trn3")
STORED = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
# Half a unit in the last place, relative to the number.
ROUNDING = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}

every_target = pytest.mark.parametrize("target", TARGETS)
every_dtype = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


def numbers(seed, *shape, dtype="float32"):
    """Normal numbers of a format."""
    return np.random.default_rng(seed).standard_normal(shape).astype(STORED[dtype])


def exact(x):
    """The values of an array as float64."""
    return np.asarray(x).astype(np.float64)


def run(kernel, *args, target="trn2", **options):
    """The outputs of a run on which nothing was found."""
    with nki.use_target(target):
        done = nki.run(kernel, *args, **options)
    assert done.findings == ()
    return done.outputs


def close(got, want, roundings=1.0, dtype=None):
    """Equal shapes, and errors of at most so many roundings of the largest number."""
    assert got.shape == want.shape
    unit = ROUNDING[dtype or got.dtype.name]
    assert np.abs(exact(got) - want).max() <= roundings * unit * np.abs(want).max()


def sums(count):
    """Roundings a float32 sum of `count` products may show: √count of them, with room."""
    return 8 + 4 * np.sqrt(count)


def about(dtype, count):
    """Roundings to allow for a float32 sum of `count` products stored as `dtype`."""
    return sums(count) if dtype == "float32" else 1.1
