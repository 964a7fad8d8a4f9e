"""Lints of tile IR as written. What needs layouts or schedules is in the folders of later stages."""
