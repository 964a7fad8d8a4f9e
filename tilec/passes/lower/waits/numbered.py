"""Number the operations of a role in program order, each with its touches: the input of `lower.insert_sync`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilec.ir import tile, warp
from tilec.passes.lower.waits.scoreboard import Queue, Touch
from tilec.passes.lower.waits.tensor_areas import LoopFrame, build_area, build_loop_frame, find_owners
from tilec.passes.lower.waits.touches import ReusingTile, build_early_touch, find_touches
from tilec.support.records import dataclass

MAX_AREAS = 16
"""The most accesses of a role to one tensor whose areas are compared. With more, the tensor is one area."""


@dataclass(frozen=True, slots=True)
class Node:
    """A numbered operation with its touches and, if structured, its numbered bodies. `early` are touches of memory that
    other tiles reuse later, as touches of these; `frame` is that of an outermost loop."""

    place: int
    op: warp.Operation
    touches: tuple[Touch, ...]
    early: tuple[Touch, ...]
    queue: Queue | None
    cursors: dict[str, str]  # by ring
    bodies: tuple[tuple[Node, ...], ...]
    frame: LoopFrame | None = None


def number_operations(
    body: tuple[warp.Operation, ...],
    per_warpgroup: frozenset[str],
    over: Mapping[str, tuple[ReusingTile, ...]],
    fixed: frozenset[tile.Var],
) -> tuple[Node, ...]:
    """Return the operations of a role as nodes numbered from 0, with touches, cursors and nested nodes. `over` has the
    tiles that reuse the memory of each tile, `fixed` the variables that are constant in a block."""
    places = itertools.count()

    def number_operation(op: warp.Operation) -> Node:
        """Return an operation as the node with the next number, with its touches and nested nodes."""
        place = next(places)
        found, queue = find_touches(op, per_warpgroup)
        known = find_owners(op, fixed)
        touches = tuple(replace(t, owner=known.get((t.buffer, t.write))) for t in found)
        early = dict.fromkeys(build_early_touch(op, t, later) for t in touches for later in over.get(t.buffer, ()))
        inner = tuple(tuple(map(number_operation, b)) for b in warp.nested_bodies(op))
        return Node(place, op, touches, tuple(early), queue, {c.ring: c.name for c in op.cursors}, inner)

    nodes = tuple(map(number_operation, body))
    contended = _find_contended_tensors(nodes)
    return _add_areas(nodes, contended, None, fixed) if contended else nodes


def _find_contended_tensors(nodes: tuple[Node, ...]) -> frozenset[str]:
    """Return the tensors of which one thread may write an element that another one accesses, if few accesses do."""
    reached: dict[str, list[Touch]] = {}
    for node in walk_nodes(nodes):
        for touch in node.touches:
            reached.setdefault(touch.buffer, []).append(touch)
    names = frozenset(buffer.name for node in walk_nodes(nodes) for buffer in _find_tensors(node.op))
    return frozenset(
        name
        for name in names & reached.keys()
        if len(reached[name]) <= MAX_AREAS
        and any(t.write for t in reached[name])
        and (len({t.owner for t in reached[name]}) > 1 or any(t.owner is None for t in reached[name]))
    )


def _find_tensors(op: warp.Operation) -> Iterator[tile.Buffer]:
    """Yield the tensors that threads read by cp.async in an operation, or write in its nest, and the shared tiles to
    which each thread stores for itself, mostly a few elements at a time."""
    match op:
        case warp.CpAsync(source=source):
            yield source.buffer
        case warp.Elementwise(nest=nest):
            scopes = ("global", "shared") if nest.is_per_thread else ("global",)
            for stmt in tile.walk_statements(nest.body):
                if isinstance(stmt, tile.Store) and stmt.buffer.scope in scopes:
                    yield stmt.buffer


def _add_areas(
    nodes: tuple[Node, ...],
    contended: frozenset[str],
    frame: LoopFrame | None,
    fixed: frozenset[tile.Var],
    depth: int = 0,
) -> tuple[Node, ...]:
    """Return the nodes with areas for touches of contended tensors inside at most one loop, and with loop frames."""
    found = []
    for node in nodes:
        touches = node.touches
        if depth < 2 and any(t.buffer in contended for t in touches):
            touches = tuple(
                replace(t, area=build_area(node.op, t.buffer, t.write, frame, fixed)) if t.buffer in contended else t
                for t in touches
            )
        is_loop = isinstance(node.op, warp.Loop | warp.Forever)
        own = build_loop_frame(node.op) if isinstance(node.op, warp.Loop) and not depth else None
        deeper = 2 if is_loop and own is None else depth + is_loop
        bodies = tuple(_add_areas(b, contended, own or frame, fixed, deeper) for b in node.bodies)
        found.append(replace(node, touches=touches, bodies=bodies, frame=own))
    return tuple(found)


def walk_nodes(nodes: tuple[Node, ...]) -> Iterator[Node]:
    """Yield the nodes and all inside them, in program order."""
    for node in nodes:
        yield node
        for body in node.bodies:
            yield from walk_nodes(body)


def find_wgmma_registers(nodes: tuple[Node, ...], fragments: frozenset[str]) -> dict[int, frozenset[str]]:
    """Return, by place of each wgmma product, the names of its accumulator and its operand in registers."""
    found = ((n.place, n.op) for n in walk_nodes(nodes))
    return {at: frozenset({op.a.buffer.name, op.c.name} & fragments) for at, op in found if isinstance(op, warp.Wgmma)}
