"""Kernels drawn at random as text, by number: what stands in them, and with which options they are compiled."""
