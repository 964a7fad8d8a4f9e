"""Instructions on each thread's own registers: arithmetic, logic, conversions, moves. None looks at another thread."""
