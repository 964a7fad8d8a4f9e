"""Schedules of pipelined loops: by hints in the kernel, from a trace, or by the solver, with the errors of loops that
have none. The problems that are solved are built in `passes.loop`; the solver is `tilec.sched`."""
