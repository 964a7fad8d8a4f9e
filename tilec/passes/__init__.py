"""Tile IR to warp IR: one transformation a file. Folders from the ground up, each importing its own and those before
it. A pass takes parts of a kernel's state (`state`), and only `driver.engine` calls it:

layout           where tiles lie, and what moves them
memory           what loads and stores tiles, and who shares them
loop             from a loop to a scheduling problem
grid             which blocks run when, and what they do together
explicit_roles   kernels that share their work out themselves
cost             how many cycles a kernel takes
scheduling       schedules of a kernel's loops, solved or read
choices          what the compiler decides by that
lower            from verified schedules to warp IR
"""
