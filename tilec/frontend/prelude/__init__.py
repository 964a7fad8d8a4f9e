"""Functions of the language that are written in it: one `.tl` file for each subject, and `read`, which parses them.
Operations that need code of their own are in `ops`.
"""
