"""Of tile IR, as it was written."""
