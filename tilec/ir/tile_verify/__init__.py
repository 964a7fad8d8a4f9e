"""Verifiers of tile IR and of the layouts of its tiles. They share no code with the passes that make them."""
