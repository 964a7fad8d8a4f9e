"""Measures a machine with small kernels and writes what they say into its target file.

`probe` is the frame of such a kernel, `arithmetic`, `tensor`, `shared`, `copies` and `thread_barriers` are the kernels,
`plan` says which row of a target file follows from which of them, `measure` runs them, `rewrite` edits the file. Needs
neither Lark nor OR-Tools, so that it runs where there is a GPU and little else.
"""
