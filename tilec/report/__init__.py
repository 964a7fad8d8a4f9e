"""What a compiled kernel looks like to a person: tables for the terminal, pages of HTML. Nothing is computed here that
the compiler has not decided."""
