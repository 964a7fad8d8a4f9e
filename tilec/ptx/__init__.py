"""PTX as values: modules, instructions and their table, the text and its parser, and the assembler. Nothing here knows
of tiles or schedules."""
