"""Machine tables: reads and validates target files, and prices instruction kinds. Knows nothing of kernels."""
