"""`tilec lsp`: a language server for kernel files, with a process of its own that checks and schedules. The commands of
the terminal are in `cli`."""
