"""The synchronisation needed before an operation, and its insertion into a role's operations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import field, replace
from typing import Literal

from tilec.ir import warp
from tilec.ir.rewrite import map_nested_bodies
from tilec.passes.lower.waits.scoreboard import QUEUES, BarrierScope, Queue
from tilec.support.records import dataclass
from tilec.support.source import NOWHERE, Span

ROLE_END = -1  # the place after the role's last operation


@dataclass(slots=True)
class SyncNeeds:
    """The synchronisation needed before one operation. `over` is the buffer that needs the barrier, and `after` the
    place of its earlier access."""

    waits: dict[Queue, int] = field(default_factory=dict)
    fence: bool = False
    barrier: BarrierScope = ""
    over: str = ""
    after: Span = NOWHERE


NeedsPart = Literal["all", "barrier", "fence"] | Queue


def drop_part(needs: SyncNeeds, part: NeedsPart) -> SyncNeeds:
    """Return the needs of an operation without one part: its barrier, fence, waits of one queue, or all."""
    match part:
        case "all":
            return SyncNeeds()
        case "barrier":
            return replace(needs, barrier="")
        case "fence":
            return replace(needs, fence=False)
        case _:
            return replace(needs, waits={q: n for q, n in needs.waits.items() if q != part})


def needs_drain(op: warp.Operation) -> bool:
    """Return True for a steady loop, or a guard of an epilogue, with wgmma: none may be in flight behind it. The
    assembler does not see that a guard skips its wait only where nothing is in flight, and would serialise all."""
    match op:
        case warp.Loop(part="steady") | warp.Branch(part="guard", moment=warp.PipelinePosition(part="epilogue")):
            return any(isinstance(inner, warp.Wgmma) for inner in warp.walk_operations((op,)))
        case _:
            return False


def insert_needs(
    body: tuple[warp.Operation, ...],
    placed: dict[int, SyncNeeds],
    drained_loops: set[int],
    barrier: warp.BarSync,
    places: Iterator[int],
    outer: bool = True,
) -> tuple[warp.Operation, ...]:
    """Return a role's operations with the synchronisation placed before each, and at its end, inserted. `places`
    numbers the operations as they come; `drained_loops` wait for all wgmma at the end of each iteration. Barriers of
    the text become `barrier`."""
    new: list[warp.Operation] = []
    for op in body:
        place = next(places)
        new += (replace(n, moment=op.moment) for n in _build_sync(placed.get(place), barrier, op))
        op = map_nested_bodies(op, lambda inside: insert_needs(inside, placed, drained_loops, barrier, places, False))
        match op:
            case warp.Loop() | warp.Forever() | warp.Pipeline() if place in drained_loops:
                op = replace(op, body=(*op.body, warp.WgmmaWait(0, span=op.span, moment=op.moment)))
            case warp.BarSync():
                op = replace(barrier, moment=op.moment, span=op.span)
        if isinstance(op, warp.Pipeline):
            op = replace(op, body=tuple(itertools.chain.from_iterable(map(_add_drain, op.body))))
        new.append(op)
    if outer:
        new += _build_sync(placed.get(ROLE_END), barrier, None)
    return tuple(new)


def _add_drain(piece: warp.Operation) -> tuple[warp.Operation, ...]:
    """Return a piece of a pipeline, with a wait for all wgmma behind it or in its guard if `needs_drain` says so."""
    if not needs_drain(piece):
        return (piece,)
    wait = warp.WgmmaWait(0, span=piece.span)
    if isinstance(piece, warp.Branch):
        return (replace(piece, then=(*piece.then, wait)),)
    return (piece, wait)


def _build_sync(needs: SyncNeeds | None, barrier: warp.BarSync, op: warp.Operation | None) -> Iterator[warp.Operation]:
    """Yield the waits, the proxy fence and the barrier that an operation needs before it; nothing for None."""
    if needs is None:
        return
    span = NOWHERE if op is None else op.span
    waits = {"cp_async": warp.CpAsyncWait, "wgmma": warp.WgmmaWait, "bulk": warp.BulkWait}
    for queue in QUEUES:
        if queue in needs.waits:
            yield waits[queue](needs.waits[queue], span=span)
    if needs.fence:
        yield warp.ProxyFence(span=span)
    if needs.barrier == "role":
        yield replace(barrier, span=span, over=needs.over, after=needs.after)
    elif needs.barrier:
        yield warp.WarpgroupSync(warp.FIRST_PER_WARPGROUP, span=span)
