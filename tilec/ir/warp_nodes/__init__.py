"""The nodes of warp IR: a program, its roles, their operations and waits. `ir.warp` names them all; nothing here
decides where a wait stands.
"""
