"""Lints of a kernel with its layouts. They need no schedule: what does is in `schedule`."""
