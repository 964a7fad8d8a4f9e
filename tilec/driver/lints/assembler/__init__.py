"""Of what the assembler says."""
