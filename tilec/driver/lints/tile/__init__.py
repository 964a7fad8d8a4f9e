"""Lints of tile IR as written."""
