"""Accesses of the operations of a warp program, and the waits that they need; `insert_sync` places them. The verifier
of warp programs shares no code with this folder."""
