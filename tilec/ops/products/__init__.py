"""Products of tiles, dense, sparse and with block scales. Which instruction does them is decided by the target and by
passes.
"""
