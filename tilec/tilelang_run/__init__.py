"""Runs a TileLang script as it is: tilec serves `import tilelang`, and runs the kernels in the emulator or on a GPU.
Nothing here compiles, and nothing else of tilec imports it."""
