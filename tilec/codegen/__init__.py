"""Warp IR to PTX. What waits for what is decided before; how an instruction is spelled is in `ptx`."""
