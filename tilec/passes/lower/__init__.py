"""From verified schedules to warp IR: prologue, steady state, epilogue; offsets in shared memory; waits and fences.
Nothing is decided here."""
