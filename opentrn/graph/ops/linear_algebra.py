"""Ops that factor matrices and solve with them, batch by batch."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from opentrn.graph.ops.define import Op, Traffic, Type, Wrong, count, same_dtype, stream

KINDS = ("float", "complex")


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _square(x: Type) -> int:
    if len(x.shape) < 2 or x.shape[-1] != x.shape[-2] or x.dtype.kind not in KINDS:
        raise Wrong(f"{x} is not a batch of square matrices of floats or complex numbers")
    return x.shape[-1]


class Cholesky(Op):
    """L with L·Lᴴ = a (or U with Uᴴ·U = a), for Hermitian positive definite matrices.

    Only the triangle that is asked for is read and written, the other is 0.  A matrix that is not
    positive definite gives NaN."""

    operands = ("a",)
    law = "a is […, N, N] of floats or complex numbers"
    lower: bool

    def result(self, a: Type) -> Type:
        _square(a)
        return a

    def evaluate(self, out: Type, a: np.ndarray) -> np.ndarray:
        matrices = _wide(a).reshape(-1, *a.shape[-2:])
        if not self.lower:
            matrices = matrices.conj().swapaxes(-1, -2)
        result = np.full_like(matrices, np.nan)
        for i, matrix in enumerate(matrices):
            filled = np.tril(matrix) + np.tril(matrix, -1).conj().T
            try:
                result[i] = np.linalg.cholesky(filled)
            except np.linalg.LinAlgError:
                result[i] = np.tril(result[i])
        if not self.lower:
            result = result.conj().swapaxes(-1, -2)
        return result.reshape(a.shape)

    def flops(self, out: Type, a: Type) -> int:
        size = a.shape[-1]
        return count(a.shape[:-2]) * (size ** 3 // 3 + size ** 2)

    def traffic(self, out: Type, a: Type) -> Traffic:
        return stream(out, a)


class TriangularSolve(Op):
    """x with op(a)·x = b (or x·op(a) = b), a triangular; op is a, its transpose or adjoint.

    Only the triangle named by `lower` is read; with `unit_diagonal` its diagonal counts as 1."""

    operands = ("a", "b")
    law = "a is […, N, N], b […, N, M] (left) or […, M, N], of one float or complex dtype"
    choices: ClassVar = {"transpose_a": ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")}
    left_side: bool
    lower: bool
    unit_diagonal: bool
    transpose_a: str

    def result(self, a: Type, b: Type) -> Type:
        size = _square(a)
        same_dtype(a, b)
        inner = b.shape[-2 if self.left_side else -1] if len(b.shape) == len(a.shape) else -1
        if a.shape[:-2] != b.shape[:-2] or inner != size:
            raise Wrong(f"{list(a.shape)} and {list(b.shape)} do not fit")
        return b

    def evaluate(self, out: Type, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if not b.size:
            return b
        matrix = np.tril(_wide(a)) if self.lower else np.triu(_wide(a))
        if self.unit_diagonal:
            eye = np.eye(a.shape[-1], dtype=bool)
            matrix = np.where(eye, 1, matrix)
        lower = self.lower
        if self.transpose_a != "NO_TRANSPOSE":
            matrix, lower = matrix.swapaxes(-1, -2), not lower
            matrix = matrix.conj() if self.transpose_a == "ADJOINT" else matrix
        right = _wide(b)
        if not self.left_side:
            matrix, lower = matrix.swapaxes(-1, -2), not lower
            right = right.swapaxes(-1, -2)
        x = _substituted(matrix, right, lower)
        return x if self.left_side else x.swapaxes(-1, -2)

    def flops(self, out: Type, a: Type, b: Type) -> int:
        return b.size * a.shape[-1]

    def traffic(self, out: Type, a: Type, b: Type) -> Traffic:
        return stream(out, a, b)


def _substituted(matrix: np.ndarray, right: np.ndarray, lower: bool) -> np.ndarray:
    """matrix·x = right by forward or backward substitution."""
    x = np.zeros_like(right)
    size = matrix.shape[-1]
    for i in range(size) if lower else range(size - 1, -1, -1):
        known = np.einsum("...k,...km->...m", matrix[..., i, :], x)
        x[..., i, :] = (right[..., i, :] - known) / matrix[..., i, i, None]
    return x
