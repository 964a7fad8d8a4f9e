"""Which blocks run when, and what they do together: order, persistence, pairs that load or multiply together."""
