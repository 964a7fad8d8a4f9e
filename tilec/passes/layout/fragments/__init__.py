"""Tiles in registers: which thread has which element, and how a nest's iterations are spread over threads. Nothing of
shared memory is here."""
