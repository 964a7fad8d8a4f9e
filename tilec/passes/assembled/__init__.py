"""The machine code of a kernel as the model counts it: of loops, of a whole block, and in the report.
Nothing is decided here, and machine code itself is read in `tilec.sass`."""
