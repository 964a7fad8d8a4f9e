"""What every other folder may use: records, source text, diagnostics, files, processes. Nothing here knows of
kernels."""
