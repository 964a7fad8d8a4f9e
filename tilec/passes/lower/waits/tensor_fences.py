"""Insert the waits and fences of tensor memory, which no other wait replaces (PTX ISA, tcgen05 "Memory Consistency
Model").

A thread's copy between tensor memory and registers is complete when the thread has waited for it. Other threads are
ordered behind it by two fences: one before the barrier of the first, one behind the barrier of the others. For the work
of tensor cores, which signal completion themselves (tcgen05.commit), the second fence is enough."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir import warp
from tilec.ir.rewrite import rewrite_statements

_RENDEZVOUS = (warp.BarSync, warp.WarpgroupSync)
_ARRIVALS = (warp.Arrive, warp.NamedBarrier, *_RENDEZVOUS)


def insert_tensor_fences(program: warp.Program) -> warp.Program:
    """Return the program with fences and waits around accesses to tensor memory; as it is without tensor tiles."""
    if not program.tensor:
        return program
    in_tensor = {tile.buffer.name for tile in program.tensor}
    rings = frozenset(ring.name for ring in program.rings if not in_tensor.isdisjoint(ring.buffers))

    def add_fences(op: warp.Operation) -> tuple[warp.Operation, ...]:
        """Return the operation with the tcgen05 fence before or behind it, and the wait behind a load or store."""
        made: tuple[warp.Operation, ...] = (op,)
        if _is_release(op, program, rings):
            made = (warp.TensorFence("before"), *made)
        if _is_acquisition(op, program, rings):
            made = (*made, warp.TensorFence("after"))
        match op:
            case warp.TensorLoad(destination=fragment):
                made = (*made, warp.TensorWait("load", fragment))
            case warp.TensorStore(source=fragment):
                made = (*made, warp.TensorWait("store", fragment))
        return tuple(one if one is op else replace(one, moment=op.moment, span=op.span) for one in made)

    def fence_role(role: warp.Role) -> warp.Role:
        return replace(role, body=rewrite_statements(role.body, add_fences))

    fenced = program.map_roles(fence_role)
    if not program.signals_blocks:
        return fenced
    # All threads of a cluster meet before its tensor memory is freed.
    ended = tuple(map(_fence_end, fenced.sections[-1]))
    return replace(fenced, later=(*fenced.later[:-1], ended)) if fenced.later else replace(fenced, roles=ended)


def _fence_end(role: warp.Role) -> warp.Role:
    """Return the role with a fence at its end, unless one follows its last access to tensor memory."""
    return role if _is_fenced(role.body) is not False else replace(role, body=(*role.body, warp.TensorFence("before")))


def _is_fenced(body: tuple[warp.Operation, ...]) -> bool | None:
    """Return whether a fence follows the last access of threads to tensor memory; None without either."""
    for op in reversed(body):
        if isinstance(op, warp.TensorFence) and op.what == "before":
            return True
        if isinstance(op, warp.TensorLoad | warp.TensorStore):
            return False
        found = [_is_fenced(inner) for inner in warp.nested_bodies(op)]
        if False in found:
            return False
        if found and None not in found and not isinstance(op, warp.Loop):
            return True
    return None


def _is_release(op: warp.Operation, program: warp.Program, rings: frozenset[str]) -> bool:
    """Return True if the operation, by threads, lets another role access tensor memory."""
    match op:
        case warp.RingFill() | warp.RingRelease():
            return op.cursor.ring in rings and not op.by_tensor_cores
        case _:
            return program.explicit_roles and isinstance(op, _ARRIVALS)


def _is_acquisition(op: warp.Operation, program: warp.Program, rings: frozenset[str]) -> bool:
    """Return True if the operation waits until another role lets this one access tensor memory."""
    match op:
        case warp.RingWait(cursor=cursor) | warp.RingAcquire(cursor=cursor):
            return cursor.ring in rings
        case warp.NamedBarrier(waits=waits):
            return program.explicit_roles and waits
        case _:
            return program.explicit_roles and isinstance(op, (warp.BarrierWait, *_RENDEZVOUS))
