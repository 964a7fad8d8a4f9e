"""Chooses among the variants of a kernel: a space of constants and options, a model of their time, a search with
trials."""
