"""Services for every other folder: records, source text, diagnostics, files, processes. Nothing here knows of
kernels."""
