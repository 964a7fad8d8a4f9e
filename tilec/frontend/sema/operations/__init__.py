"""Calls of operations that need more than their row in `ops`. What an operation means is in `ops`."""
