"""Presents compiled kernels to people: tables for the terminal, HTML pages. Computes nothing that the compiler has not
decided."""
