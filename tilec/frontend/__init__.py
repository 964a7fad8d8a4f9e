"""Kernel text to tile IR: `syntax` makes the tree, `sema` gives it meaning. Nothing here knows of schedules or code."""
