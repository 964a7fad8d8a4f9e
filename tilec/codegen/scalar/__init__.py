"""Scalar expressions: arithmetic, functions, conversions of small floats. Nothing here knows of tiles."""
