"""Of a kernel with its layouts."""
