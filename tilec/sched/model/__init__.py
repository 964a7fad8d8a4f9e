"""The CP-SAT program of a problem: variables, constraints and objectives. What needs no solver stays out."""
