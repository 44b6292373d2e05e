"""The front doors: frameworks whose programs run on a simulated Trainium, unmodified."""

__all__ = ["jax", "tensorflow", "torch"]


def __getattr__(name: str) -> object:
    """Load a framework's door the first time it is asked for."""
    if name in __all__:
        import importlib

        return importlib.import_module(f"opentrn.frameworks.{name}")
    raise AttributeError(f"module 'opentrn.frameworks' has no attribute {name!r}")
