"""What to write instead of ops the chip does not run, and the codes the vendor's tools give."""

DYNAMIC = "NCC_EMOD025"
OPERATOR = "NCC_EUOC002"

# Word in the op's name, or a kind of problem -> (what to write, the vendor's code).  Codes: the
# Neuron documentation's list of compiler errors; DYNAMIC is that of shapes not known beforehand.
HINTS: dict[str, tuple[str, str]] = {
    "complex": ("carry real and imaginary parts: torch.view_as_real(x)", "NCC_EVRF004"),
    "dynamic": ("compute all elements and choose with torch.where, or do it on the CPU", DYNAMIC),
    "masked_select": ("x * mask, or torch.where(mask, x, 0): the size stays known", DYNAMIC),
    "nonzero": ("torch.where(mask, x, 0), or the mask itself: the size stays known", DYNAMIC),
    "unique": ("do it on the CPU: the number of results depends on the data", DYNAMIC),
    "cond": ("torch.where(condition, a, b) of both branches", DYNAMIC),
    "while_loop": ("a loop of a fixed number of turns, with torch.where for those that end early",
                   DYNAMIC),
    "item": ("keep the number on the device as a tensor without axes", DYNAMIC),
    "sort": ("torch.topk with k ≤ 16, or sort on the CPU", OPERATOR),
    "topk": ("k ≤ 16 of floats; convert integers with x.float() first", "NCC_EVRF013"),
    "scatter": ("a product with a one-hot matrix: F.one_hot(index, n).T.float() @ values",
                OPERATOR),
    "index_put": ("torch.where with a mask made by torch.arange(n) == index", OPERATOR),
    "scaled_mm": ("", ""),  # its refusals say what to do
    "matmul": ("x.float() @ y.float(): integers are multiplied as floats, exact to 2**24",
               "NCC_EVRF035"),
    "mm": ("x.float() @ y.float(): integers are multiplied as floats, exact to 2**24",
           "NCC_EVRF035"),
    "bincount": ("torch.histc(x.float(), n, 0, n - 1): the number of bins is known", DYNAMIC),
    "bucketize": ("(x[..., None] > edges).sum(-1)", OPERATOR),
    "searchsorted": ("(x[..., None] > edges).sum(-1)", OPERATOR),
    "triangular_solve": ("a product with the inverse computed on the CPU", OPERATOR),
    "linalg": ("do it on the CPU, outside the compiled function", OPERATOR),
    "fft": ("a product with the Fourier matrix as two real ones", "NCC_EVRF004"),
}  # fmt: skip


def hint_for(*names: str) -> tuple[str, str]:
    """(fix, code) for the first of an op's name or kinds of problem that something is known about.

    ("", the code of unknown operators) where nothing is."""
    for name in names:
        plain = name.removeprefix("aten::")
        for word, hint in HINTS.items():
            if word in plain:
                return hint
    return "", OPERATOR


__all__ = ["HINTS", "hint_for"]
