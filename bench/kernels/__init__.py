"""The kernels that `bench.predict` times, in NKI 0.6, each from a published description."""
