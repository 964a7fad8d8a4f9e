"""Code that runs while a kernel is elaborated: the file, its functions and macros, and the limits on them. No tile IR
is made here.
"""
