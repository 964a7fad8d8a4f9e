"""Pipelined loops as scheduling problems: roles, parts, buffer versions and costs of their statements. Nothing here
solves one: `sched` does, and `scheduling` asks it."""
