"""Which shared tiles of a pipelined loop may have several versions, so that filling one overlaps reading another."""

from __future__ import annotations

from tilec.ir.tile import Bind, Buffer, For, Kernel, Stmt, TileOp, bodies, walk
from tilec.passes.usage import reads, writes
from tilec.records import dataclass


@dataclass(frozen=True, slots=True)
class RingPlan:
    """Shared tiles that are filled by statements `producers` and read by `consumers`, and so live and die together."""

    buffers: tuple[Buffer, ...]
    producers: tuple[int, ...]
    consumers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Accesses:
    """Names of the buffers that a statement touches."""

    reads: frozenset[str]
    writes: frozenset[str]

    @property
    def all(self) -> frozenset[str]:
        return self.reads | self.writes


def accesses(stmt: Stmt) -> Accesses:
    """Everything a statement, with all that is nested in it, reads and writes."""
    return Accesses(frozenset(b.name for b in reads(stmt)), frozenset(b.name for b in writes(stmt)))


def scheduled(loop: For) -> tuple[Stmt, ...]:
    """The statements that a schedule places; binds are replayed where they are used."""
    return tuple(s for s in loop.body if not isinstance(s, Bind))


def rings(kernel: Kernel, loop: For) -> tuple[RingPlan, ...]:
    """The tiles that may have several versions, grouped by who reads them."""
    statements = scheduled(loop)
    touched = tuple(accesses(s) for s in statements)
    outside = touched_outside(kernel, loop)
    groups: dict[tuple[int, ...], list[tuple[Buffer, int]]] = {}
    for i, stmt in enumerate(statements):
        if isinstance(stmt, TileOp) and is_load(stmt) and why_not_versioned(stmt, i, touched, outside) is None:
            tile = stmt.regions[1].buffer
            readers = tuple(j for j, a in enumerate(touched) if tile.name in a.reads)
            groups.setdefault(readers, []).append((tile, i))
    return tuple(
        RingPlan(tuple(t for t, _ in members), tuple(i for _, i in members), readers)
        for readers, members in groups.items()
    )


def is_load(op: TileOp) -> bool:
    """A copy from a tensor to a shared tile."""
    return op.name == "copy" and op.regions[0].buffer.scope == "global" and op.regions[1].buffer.scope == "shared"


def why_not_versioned(op: TileOp, index: int, touched: tuple[Accesses, ...], outside: frozenset[str]) -> str | None:
    """Why the tile that statement `index` fills has one version only, or None."""
    destination = op.regions[1]
    tile = destination.buffer.name
    readers = [j for j, a in enumerate(touched) if tile in a.reads]
    if not destination.is_whole:
        return f"it fills a part of {tile}"
    if tile in outside:
        return f"{tile} is also used outside the loop"
    if [j for j, a in enumerate(touched) if tile in a.writes] != [index]:
        return f"another statement of the loop writes {tile} too"
    if not readers:
        return f"nothing in the loop reads {tile}"
    if readers[0] < index:
        return f"{tile} is read before it is filled"  # its value comes from the iteration before
    return None


def why_not_fed(kernel: Kernel, loop: For) -> str | None:
    """Why some copy of the loop could not be left to a producer role, or None."""
    statements = scheduled(loop)
    touched = tuple(accesses(s) for s in statements)
    outside = touched_outside(kernel, loop)
    for i, stmt in enumerate(statements):
        if isinstance(stmt, TileOp) and is_load(stmt):
            reason = why_not_versioned(stmt, i, touched, outside)
            if reason is not None:
                return f"in line {stmt.span.line}, {reason}"
    return None


def touched_outside(kernel: Kernel, loop: For) -> frozenset[str]:
    """Buffers that statements outside this loop use."""
    names: set[str] = set()

    def visit(stmts: tuple[Stmt, ...]) -> None:
        for stmt in stmts:
            if stmt is loop:
                continue
            inner = bodies(stmt)
            if any(loop is s for body in inner for s in walk(body)):
                for body in inner:
                    visit(body)
            else:
                names.update(accesses(stmt).all)

    visit(kernel.body)
    return frozenset(names)
