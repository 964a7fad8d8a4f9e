"""The operations of a role's text, numbered in its order, each with what it touches: what `lower.insert_sync` walks
over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tilec.ir import warp
from tilec.ir.tile import Var
from tilec.passes.lower.owners import owner
from tilec.passes.lower.placed_waits import Counter
from tilec.passes.lower.scoreboard import Queue, Touch
from tilec.passes.lower.touches import Over, touched_early, touches


@dataclass(frozen=True, slots=True)
class Node:
    """An operation of the text with its number, what it touches and, for structured ones, its numbered bodies. `early`
    are its touches of the memory that other tiles have later, as touches of these."""

    place: int
    op: warp.Operation
    touches: tuple[Touch, ...]
    early: tuple[Touch, ...]
    queue: Queue | None
    cursors: dict[str, str]  # by ring
    bodies: tuple[tuple[Node, ...], ...]


def numbered(
    body: tuple[warp.Operation, ...],
    counter: Counter,
    apart: frozenset[str],
    over: Mapping[str, tuple[Over, ...]],
    fixed: frozenset[Var],
) -> tuple[Node, ...]:
    nodes = []
    for op in body:
        place = counter.next()
        mine, queue = touches(op, apart)
        mine = tuple(replace(t, owner=owner(op, t.buffer, t.write, fixed)) for t in mine)
        cursors = {c.ring: c.name for c in op.cursors}
        early = tuple(
            dict.fromkeys(touched_early(op, touch, later) for touch in mine for later in over.get(touch.buffer, ()))
        )
        inner = tuple(numbered(b, counter, apart, over, fixed) for b in warp.nested(op))
        nodes.append(Node(place, op, mine, early, queue, cursors, inner))
    return tuple(nodes)


def flat(nodes: tuple[Node, ...]) -> Iterator[Node]:
    for node in nodes:
        yield node
        for body in node.bodies:
            yield from flat(body)
