"""Chooses among the variants of a kernel: a space of constants and options, a model of their time, a search by trials.
It builds variants by the driver, and changes no decision of the compiler."""
