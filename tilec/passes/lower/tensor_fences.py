"""The waits and fences of tensor memory, which no other wait stands for (PTX ISA, tcgen05 "Memory Consistency Model").

What a thread moves between tensor memory and its registers is complete when it has waited for that. Others come after
what threads have done to tensor memory by two fences: one in front of the barrier at which the first hand it on, one
behind that at which the others wait. For what the tensor cores have done, whose completion they say themselves
(tcgen05.commit), the second one is enough.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.ir import warp
from tilec.ir.rewrite import rewrite

_RENDEZVOUS = (warp.BarSync, warp.WarpgroupSync)
_ARRIVALS = (warp.Arrive, warp.NamedBarrier, *_RENDEZVOUS)


def with_tensor_fences(program: warp.Program) -> warp.Program:
    """The program with all of them: where the tensor cores' rings are handed on; where roles are the kernel's own at
    every barrier of theirs, since they do not say which tiles a barrier is for."""
    if not program.tensor:
        return program
    in_tensor = {tile.buffer.name for tile in program.tensor}
    rings = frozenset(ring.name for ring in program.rings if not in_tensor.isdisjoint(ring.buffers))

    def around(op: warp.Operation) -> tuple[warp.Operation, ...]:
        made: tuple[warp.Operation, ...] = (op,)
        if _hands_on(op, program, rings):
            made = (warp.TensorFence("before"), *made)
        if _takes_over(op, program, rings):
            made = (*made, warp.TensorFence("after"))
        match op:
            case warp.TensorLoad(destination=fragment):
                made = (*made, warp.TensorWait("load", fragment))
            case warp.TensorStore(source=fragment):
                made = (*made, warp.TensorWait("store", fragment))
            case _:
                pass
        return tuple(one if one is op else replace(one, moment=op.moment, span=op.span) for one in made)

    def fenced(role: warp.Role) -> warp.Role:
        return replace(role, body=rewrite(role.body, around))

    common = None if program.common is None else fenced(program.common)
    return replace(program, roles=tuple(map(fenced, program.roles)), common=common)


def _hands_on(op: warp.Operation, program: warp.Program, rings: frozenset[str]) -> bool:
    match op:
        case warp.RingFill() | warp.RingRelease():
            return op.cursor.ring in rings and not op.by_tensor_cores
        case _:
            return program.explicit_roles and isinstance(op, _ARRIVALS)


def _takes_over(op: warp.Operation, program: warp.Program, rings: frozenset[str]) -> bool:
    match op:
        case warp.RingWait(cursor=cursor) | warp.RingAcquire(cursor=cursor):
            return cursor.ring in rings
        case warp.NamedBarrier(waits=waits):
            return program.explicit_roles and waits
        case _:
            return program.explicit_roles and isinstance(op, (warp.BarrierWait, *_RENDEZVOUS))
