"""From verified schedules to warp IR: prologue, steady state, epilogue; waits and fences; places in shared memory."""
