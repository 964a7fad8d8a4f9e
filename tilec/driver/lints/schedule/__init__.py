"""Lints of a kernel with scheduled loops. They look at no instruction: what does is in `warp` and `assembler`."""
