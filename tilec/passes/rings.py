"""Which shared tiles of a pipelined loop may have several versions, so that filling one overlaps reading another."""

from __future__ import annotations

from tilec.ir.tile import Buffer, For, Kernel, Parallel, Stmt, Store, TileOp, bodies, walk
from tilec.passes.binds import scheduled
from tilec.passes.nests import covers
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


def rings(kernel: Kernel, loop: For) -> tuple[RingPlan, ...]:
    """The tiles that may have several versions, grouped by who fills and who reads them. Producers that the loop puts
    into one group fill one ring, and nobody else does."""
    statements = scheduled(loop)
    touched = tuple(accesses(s) for s in statements)
    outside = touched_outside(kernel, loop)
    asked = (loop.wishes and loop.wishes.groups) or (-1,) * len(statements)
    groups: dict[object, list[tuple[Buffer, int]]] = {}
    for i, stmt in enumerate(statements):
        for tile in filled(stmt):
            if why_not_versioned(tile, i, touched, outside) is None:
                readers = tuple(j for j, a in enumerate(touched) if tile.name in a.reads)
                loaded = isinstance(stmt, TileOp) and is_load(stmt)
                by_tma = isinstance(stmt, TileOp) and ("via", "tma") in stmt.attrs
                group = asked[i] if asked[i] >= 0 else (readers, loaded, by_tma)
                groups.setdefault(group, []).append((tile, i))
    return tuple(
        RingPlan(
            tuple(t for t, _ in members),
            tuple(dict.fromkeys(i for _, i in members)),
            tuple(j for j, a in enumerate(touched) if any(t.name in a.reads for t, _ in members)),
        )
        for members in groups.values()
    )


def filled(stmt: Stmt) -> tuple[Buffer, ...]:
    """The shared tiles that a statement overwrites as a whole, whatever they held."""
    match stmt:
        case TileOp(name="copy", regions=(_, destination)) if is_load(stmt) and destination.is_whole:
            return (destination.buffer,)
        case Parallel(body=body):
            return tuple(s.buffer for s in body if isinstance(s, Store) and covers(s, stmt))
        case _:
            return ()


def is_load(op: TileOp) -> bool:
    """A copy from a tensor to a shared tile."""
    return op.name == "copy" and op.regions[0].buffer.scope == "global" and op.regions[1].buffer.scope == "shared"


def why_not_versioned(buffer: Buffer, index: int, touched: tuple[Accesses, ...], outside: frozenset[str]) -> str | None:
    """Why the tile that statement `index` fills has one version only, or None."""
    tile = buffer.name
    readers = [j for j, a in enumerate(touched) if tile in a.reads]
    if tile in outside:
        return f"{tile} is also used outside the loop"
    if [j for j, a in enumerate(touched) if tile in a.writes] != [index]:
        return f"another statement of the loop writes {tile} too"
    if not readers:
        return f"nothing in the loop reads {tile}"
    if readers[0] <= index:
        return f"{tile} is read before it is filled"  # its value comes from the iteration before
    return None


def why_not_fed(kernel: Kernel, loop: For, copy: TileOp | None = None) -> str | None:
    """Why this copy of the loop, or some copy of it, could not be left to a producer role, or None."""
    statements = scheduled(loop)
    touched = tuple(accesses(s) for s in statements)
    outside = touched_outside(kernel, loop)
    for i, stmt in enumerate(statements):
        if isinstance(stmt, TileOp) and is_load(stmt) and (copy is None or copy is stmt):
            tile = stmt.regions[1]
            part = None if tile.is_whole else f"it fills a part of {tile.buffer.name}"
            reason = part or why_not_versioned(tile.buffer, i, touched, outside)
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
