"""Decisions of the compiler by the predicted time of the whole kernel: legal candidates, and why one was taken. The
rewriting of a kernel for a candidate lives with the other passes."""
