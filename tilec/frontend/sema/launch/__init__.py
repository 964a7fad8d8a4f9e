"""The function of a kernel: its parameters, launch, options and hints. Its body is in `statements`."""
