"""Lints of a kernel with scheduled loops."""
