"""Pipelined loops, found or requested, and those of their tiles that have stages, in shared memory or in registers.
Nothing is scheduled here."""
