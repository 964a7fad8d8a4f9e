"""Choosing among the variants of a kernel without running them: a model of its time, a space of constants, a search."""
