"""Support for programs that launch kernels: the Python API, the driver's runtime, headers for C, fat binaries. Nothing
here compiles: `driver` does."""
