"""One file for each command of `tilec`: options in, one call of the compiler, results out. What several commands share
is in `cli`."""
