"""What holds for tile IR, asked everywhere: who reads and writes what, how often loops run, what conditions come to;
and the rewriting that needs no more than that."""
