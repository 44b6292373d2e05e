"""A matrix product put into or added to a matrix in one pass, by the BLAS that NumPy loaded.

NumPy can multiply or add, not both: PSUM accumulation through it reads and writes the sum twice
over (measured: 161 us for a [128, 128] · [128, 512] step, 118 us in one pass). BLAS has the
operation, so it is called directly where it can be found; `dot` falls back to NumPy,
with the same result to the last bit. A file of its own because numerics is the place that rounds,
and this is foreign-function plumbing.
"""

import ctypes
import sys
from functools import cache
from typing import Any

import numpy as np

ROW_MAJOR, PLAIN, TURNED = 101, 111, 112
# Where wheels and distributions put single-precision GEMM; "64_" takes 64-bit sizes.
NAMES = ("scipy_cblas_sgemm64_", "cblas_sgemm64_", "scipy_cblas_sgemm", "cblas_sgemm")


@cache
def _sgemm() -> Any:
    """The function, or None where NumPy's BLAS does not show it."""
    from threadpoolctl import ThreadpoolController

    for found in ThreadpoolController().info():
        if found["user_api"] != "blas":
            continue
        library = ctypes.CDLL(found["filepath"])
        for name in NAMES:
            if hasattr(library, name):
                return _declared(getattr(library, name), name)
    return None


def _declared(function: Any, name: str) -> Any:
    size = ctypes.c_int64 if "64_" in name else ctypes.c_int
    pointer, number = ctypes.c_void_p, ctypes.c_float
    matrix = [pointer, size]
    function.argtypes = [
        *[ctypes.c_int] * 3, size, size, size, number, *matrix, *matrix, number, *matrix
    ]  # fmt: skip
    function.restype = None
    return function


def _pitch(x: np.ndarray) -> int:
    """Elements from one row to the next; 0 unless rows are dense and lie one after another."""
    row, column = x.strides
    if x.dtype != np.float32 or column != 4 or row % 4 or row < 4 * x.shape[1]:
        return 0
    return row // 4


def _by_layout(x: np.ndarray) -> int:
    """The address of the first element, where CPython keeps it: after the header of the object."""
    return _POINTER(id(x) + _HEADER).value


def _by_interface(x: np.ndarray) -> int:
    return x.__array_interface__["data"][0]


def _quick_start() -> Any:
    """`_by_layout` where it tells the truth, else the public way.

    The public way takes 1.3 us, for three matrices a third of what one matmul costs in Python.
    """
    probe = np.zeros((2, 2))[1:, 1:]
    known = sys.implementation.name == "cpython" and _by_layout(probe) == _by_interface(probe)
    return _by_layout if known else _by_interface


_POINTER, _HEADER = ctypes.c_void_p.from_address, object.__basicsize__
_start = _quick_start()


def product(turned: np.ndarray, right: np.ndarray, out: np.ndarray, add: bool) -> bool:
    """out [M, N] = turned [K, M]ᵀ · right [K, N], all float32; False when it was not done.

    With `add` the product is added to what `out` holds.  Not done where BLAS was not found or a
    matrix does not have dense rows.
    """
    return products([turned], right, [out], add)


def products(turned: list, right: np.ndarray, outs: list, add: bool) -> bool:
    """`product` of each matrix of `turned` with `right`, into its place in `outs`; all or none.

    Neighbours in memory on both sides are taken as one matrix, because `right` is then prepared
    once: four [128, 128] · [128, 512] take two thirds of the time.
    """
    function, pitch = _sgemm(), _pitch(right)
    if function is None or not pitch:
        return False
    start, (k, n), tall = _start(right), right.shape, []
    for left, out in zip(turned, outs, strict=True):
        pitches, rows = (_pitch(left), _pitch(out)), left.shape[1]
        if not all(pitches):
            return False
        places = _start(left), _start(out)
        if not (tall and tall[-1].takes(places, pitches, rows)):
            tall.append(_Tall(places, pitches, rows))
    for one in tall:
        function(
            ROW_MAJOR, TURNED, PLAIN, one.rows, n, k, 1.0, one.places[0], one.pitches[0],
            start, pitch, float(add), one.places[1], one.pitches[1],
        )  # fmt: skip
    return True


class _Tall:
    """Stationary matrices side by side and their results one below the other, as one product.

    Of both sides the place and the row pitch; the rows of the result are columns of the first.
    """

    __slots__ = ("pitches", "places", "rows")

    def __init__(self, places: tuple[int, int], pitches: tuple[int, int], rows: int):
        self.places, self.pitches, self.rows = places, pitches, rows

    def takes(self, places: tuple[int, int], pitches: tuple[int, int], rows: int) -> bool:
        """Grow by a product that begins where this one ends on both sides."""
        if pitches != self.pitches or pitches[0] < self.rows + rows:
            return False
        ends = self.places[0] + 4 * self.rows, self.places[1] + 4 * self.rows * pitches[1]
        if places != ends:
            return False
        self.rows += rows
        return True


def _gemm_ready(x: np.ndarray) -> np.ndarray:
    """`x`, or a copy whose rows or columns are dense, which is what BLAS takes."""
    (rows, columns), item = x.strides, x.itemsize
    row_major = columns == item and rows % item == 0 and rows >= x.shape[1] * item
    column_major = rows == item and columns % item == 0 and columns >= x.shape[0] * item
    return x if row_major or column_major else np.ascontiguousarray(x)


def dot(
    stationary: np.ndarray, moving: np.ndarray, out: np.ndarray | None = None, add: bool = False
) -> np.ndarray:
    """stationaryᵀ · moving in float32: [K, M] and [K, N] give [M, N].

    `out` may have any strides; with `add` the product, rounded by itself, is added to what `out`
    holds.  The order of the sum is that of the BLAS library in use.
    """
    # NumPy adds in a second pass, and multiplies a column by a row without BLAS: nine times slower.
    if out is not None and product(stationary, moving, out, add):
        return out
    with np.errstate(all="ignore"):
        left, right = _gemm_ready(stationary).T, _gemm_ready(moving)
        if not add:
            return np.matmul(left, right, out=out)
        return np.add(out, np.matmul(left, right), out=out)


def dots(stationary: list, moving: np.ndarray, outs: list, add: bool = False) -> None:
    """`dot` of each stationary matrix with one moving one, into each of `outs`, in order."""
    if not products(stationary, moving, outs, add):
        for left, out in zip(stationary, outs, strict=True):
            dot(left, moving, out, add)
