"""Programmatic dependent launch, for kernels that have none of their own.

Where the launch asks for it, a kernel begins while the one before it in the stream ends. Before it waits for that one
it may do whatever reaches no tensor: initialise barriers, prefetch tensor maps, reallocate registers. And it lets the
next kernel begin, as far as that one's own wait, when its blocks have begun their last accesses to memory.

Every thread that reaches a tensor waits before it first does: also to write, since the kernel before may still read. A
kernel that began early and never waited would end before the one before it, and let the next one read too soon; so one
that reaches no tensor waits at its end.

A wait pays where there is work before it. Kernels without barriers begin with their loads: they do not wait, and so
must not begin early; they only let the next one begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilec.ir import warp
from tilec.ir.tile import Buffer
from tilec.ir.warp import GridControl, Operation, Program, Role
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.lower.waits.touches import find_touches
from tilec.support.source import NOWHERE, Span


def insert_programmatic_launch(program: Program, assignment: LayoutAssignment) -> Program:
    """Insert a signal to the next kernel and, where this one may begin early, a wait for the one before; neither where
    the kernel has its own.

    A program with grid barriers stays as it is, too: blocks of the next kernel could take the place of blocks that
    must run at the same time."""
    if any(isinstance(op, GridControl | warp.GridSync) for op in program.operations()):
        return program
    tensors = frozenset(p.name for p in program.params if isinstance(p, Buffer))
    number, at = _find_launch_point(program.roles, tensors)
    teller = program.roles[number]
    word = GridControl("launch_dependents", span=_find_span(teller.body, at))
    roles = list(program.roles)
    roles[number] = replace(teller, body=(*teller.body[:at], word, *teller.body[at:]))
    if not program.barrier_bytes or not assignment.begins_early:
        return replace(program, roles=tuple(roles))
    if not any(_reaches_tensor(op, tensors) for role in roles for op in role.body):
        roles[0] = replace(roles[0], body=(*roles[0].body, GridControl("wait")))
    made = replace(program, roles=tuple(roles), begins_early=True)
    return made.map_roles(lambda role: _add_wait(role, tensors))


def _add_wait(role: Role, tensors: frozenset[str]) -> Role:
    """Return the role with a wait before its first top-level operation that reaches a tensor; as it is without one."""
    first = next((at for at, op in enumerate(role.body) if _reaches_tensor(op, tensors)), None)
    if first is None:
        return role
    wait = GridControl("wait", span=_find_span(role.body, first))
    return replace(role, body=(*role.body[:first], wait, *role.body[first:]))


def _find_launch_point(roles: Sequence[Role], tensors: frozenset[str]) -> tuple[int, int]:
    """Return which role lets the next kernel begin, and before which operation: the producer, behind its last tensor
    access. Without a producer it is the first role, before its last one, or at its end without any."""
    for number, role in enumerate(roles):
        if role.name == "producer":
            return number, 1 + max((at for at, op in enumerate(role.body) if _reaches_tensor(op, tensors)), default=-1)
    body = roles[0].body
    return 0, max((at for at, op in enumerate(body) if _reaches_tensor(op, tensors)), default=len(body))


def _reaches_tensor(op: Operation, tensors: frozenset[str]) -> bool:
    """Return True if the operation, or one inside it, reads or writes a tensor."""
    return any(
        isinstance(inner, warp.TmaLoad | warp.TmaStore)
        or any(touch.buffer in tensors for touch in find_touches(inner, frozenset())[0])
        for inner in warp.walk_operations((op,))
    )


def _find_span(body: tuple[Operation, ...], at: int) -> Span:
    return body[min(at, len(body) - 1)].span if body else NOWHERE
