"""Simulates how many cycles the emitted PTX takes: the emulator says which warp runs which instruction, a replay when.

Three independent parts. `record` runs blocks in the emulator and records, for every warp, its instructions in order,
with what decides their time: bank conflicts, sectors, bytes, barriers and phases. Only what decides control and
addresses is computed (`control_slice`). `engine` replays the warps of a multiprocessor's resident blocks through its
schedulers, pipes, ports and barriers, at the prices of the target file (`costs`). `grid` extends that to a launch:
residency, waves, sharing in L2, blocks of different lengths. Nothing here compiles a kernel or is fitted to a
measurement.
"""
