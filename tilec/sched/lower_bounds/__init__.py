"""Proofs that an initiation interval is too small, by paths, pools and windows. Nothing here looks for a schedule."""
