"""Measures a machine with small kernels and writes the results into its target file.

`probe` is the frame of such a kernel; `arithmetic`, `tensor`, `shared`, `copies` and `thread_barriers` are the kernels;
`plan` derives the rows of a target file from them, `measure` runs them, `rewrite` edits the file. Needs neither Lark
nor OR-Tools, so that it runs where there is a GPU and little else.
"""
