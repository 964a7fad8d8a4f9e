"""How many cycles the emitted PTX takes: the emulator says which warp runs which instruction, a replay says when.

Three parts that know nothing of each other's insides. `record` runs blocks in the emulator and writes down, for every
warp, the instructions in its order, with what decides their time: bank conflicts, sectors, bytes, which barrier and
which phase. Only what decides control and addresses is computed (`control_slice`); numbers are not. `engine` replays
the warps of the resident blocks of a multiprocessor through its schedulers, pipes, ports and barriers, at the prices
of the target file (`costs`). `grid` makes a launch of it: residence, waves, what blocks share in L2, blocks of
different lengths. Nothing here compiles a kernel, and nothing here is fitted to a measurement.
"""
