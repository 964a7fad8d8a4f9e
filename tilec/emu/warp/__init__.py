"""Instructions of one warp together: shuffles, votes, ldmatrix, and products by mma.sync and wmma. Those of a
warpgroup are in `wgmma`.
"""
