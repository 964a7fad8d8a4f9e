"""tilec: an ahead-of-time compiler from TileLang-syntax kernels to cubins."""

__version__ = "0.1.0"
