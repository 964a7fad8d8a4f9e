"""What the compiler decides by the predicted time of the whole kernel: candidates, which are legal, why one was taken.
How a kernel is rewritten for one lives with the other passes."""
