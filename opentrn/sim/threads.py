"""One BLAS thread for each simulated core.

Matrix products of one tile are too small to share: with two spinning threads on a busy machine a
128 × 512 product was measured 80 times slower.  Parallelism belongs across cores and processes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController


@cache
def _controller() -> ThreadpoolController:
    """The BLAS libraries loaded in this process (looked up once: it takes milliseconds)."""
    return ThreadpoolController()


@cache
def _libraries() -> list:
    """The BLAS libraries among them."""
    return _controller().select(user_api="blas").lib_controllers


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread inside the block (asking whether it is so is quicker)."""
    if all(library.get_num_threads() == 1 for library in _libraries()):
        yield
        return
    with _controller().limit(limits=1, user_api="blas"):
        yield
