"""Functions of PTX, calls and returns, branches through a table, and printf. No arithmetic is here."""
