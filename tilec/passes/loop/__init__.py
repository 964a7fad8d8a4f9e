"""Pipelined loops as scheduling problems: roles, parts, buffer versions and costs of their statements."""
