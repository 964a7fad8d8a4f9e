"""From the syntax tree to tile IR: names resolved, constants computed, operations checked, annotations heeded."""
