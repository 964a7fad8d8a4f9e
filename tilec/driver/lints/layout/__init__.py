"""Lints of a kernel with its layouts."""
