"""Arrivals of whole warps at the kernel's own barriers: one thread of each warp arrives for all.

A kernel that divides its work among roles counts threads, as TileLang's kernels do. Arrivals at one barrier are done one
after the other, 128 of them for each signal of a warpgroup; a warp's threads may as well wait for one another and arrive
once. The compiler's own rings do the same (`--arrivals`)."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir import warp
from tilec.ir.groups import WARP_THREADS
from tilec.ir.rewrite import rewrite_statements


def arrive_by_warps(program: warp.Program) -> warp.Program:
    """Let one thread of each warp arrive at every barrier at which only whole warps arrive, and count warps there."""
    names = {b.name for b in program.barriers if all(count % WARP_THREADS == 0 for count in b.counts)}
    names -= {op.barrier.name for op in program.operations() if _arrives_otherwise(op)}
    if not names:
        return program

    def elect_thread(op: warp.Operation) -> warp.Operation:
        """Return an arrival at one of the barriers as its warps'; any other operation as it is."""
        return replace(op, by_warps=True) if isinstance(op, warp.Arrive) and op.barrier.name in names else op

    counted = tuple(
        replace(b, counts=tuple(count // WARP_THREADS for count in b.counts)) if b.name in names else b
        for b in program.barriers
    )
    made = program.map_roles(lambda role: replace(role, body=rewrite_statements(role.body, elect_thread)))
    return replace(made, barriers=counted)


def _arrives_otherwise(op: warp.Operation) -> bool:
    """Return whether an operation arrives at a barrier of the kernel's own, but not by all threads of whole warps."""
    match op:
        case warp.Arrive(condition=condition, by_warps=by_warps, block=block):
            return condition is not None or by_warps or block is not None
        case warp.ExpectBytes(arrives=arrives):
            return arrives
        case warp.CopiesArrive() | warp.TensorArrive():
            return True
        case _:
            return False
