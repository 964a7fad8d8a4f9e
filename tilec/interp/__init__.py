"""Runs tile IR on the CPU with the operations' numpy references: the meaning of a kernel, independent of the compiler.
Nothing here knows layouts, schedules or PTX.
"""
