"""Functions that give a value: of scalars, bits, warps, and Python's own. None of them touches a tile."""
