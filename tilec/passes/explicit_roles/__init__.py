"""Kernels that share their work out themselves, among roles with barriers: taken apart, checked, listed."""
