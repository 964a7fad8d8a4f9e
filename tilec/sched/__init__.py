"""The modulo scheduler: integers in (`problem`), a proven schedule out (`solve`, `schedule`), and the reasons (`trace`).

It knows nothing of kernels or machines, and imports nothing else of the compiler but the dataclass decorator.
"""
