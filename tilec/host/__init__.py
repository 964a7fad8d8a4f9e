"""What a program that launches kernels needs: the Python API, the driver's runtime, headers for C, fat binaries."""
