"""Runs of a built kernel in the emulator: arguments from files, comparison of results, and faults in terms of the
kernel. The emulator itself is `tilec.emu`, which knows no kernel."""
