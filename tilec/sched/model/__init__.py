"""The CP-SAT program of a problem: variables, constraints, and the objective's levels. What needs no solver stays
out."""
