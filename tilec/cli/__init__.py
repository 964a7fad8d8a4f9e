"""The command line: arguments, the terminal, exit codes. Nothing below knows the terminal."""
