"""The modulo scheduler: integers in (`problem`), a proven schedule out (`solve`), and the reasons for it (`trace`).

It knows nothing of kernels or machines, and imports nothing else of the compiler but the dataclass decorator.
"""
