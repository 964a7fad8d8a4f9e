"""Loops that wait for what other threads write: those that would never end, since these threads are held up.

All threads stay in a `while` that differs by thread until the last one leaves it. So a loop that polls what the kernel
writes elsewhere is refused, unless that is done before it, each of its own threads writes the same place in it, or one
thread does both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tilec.analysis.usage import find_writes
from tilec.ir import tile
from tilec.ir.types import BOOL
from tilec.support.diagnostics import Label, raise_error
from tilec.support.source import Span

Visit = tuple[tile.Stmt, frozenset[tile.Expr], int]
"""A statement, the conditions around it, and the place of the outermost loop around it, or -1."""
_Name = tile.Buffer | tile.Var
Place = tuple[tile.Buffer, tuple[tile.Expr, ...]]
"""A tensor or tile, and the indices of an element."""


def refuse_waits_for_idle_threads(body: tuple[tile.Stmt, ...], loops: Mapping[Span, frozenset[tile.Expr]]) -> None:
    """Raise `thread-dependent` for a `while` of single threads that reads what others write later in the kernel.
    `loops` has the conditions on the thread that runs each of these loops, by its place in the text; one that is never
    met stands for several threads, of which one may wait for another. `body` is the kernel's.
    """
    walk = tuple(walk_with_conditions(body, frozenset(), -1)) if loops else ()
    for place, (stmt, _, repeated_from) in enumerate(walk):
        if not isinstance(stmt, tile.While) or stmt.span not in loops:
            continue
        first = place if repeated_from < 0 else repeated_from
        inside = tuple(tile.walk_statements(stmt.body))
        behind = place + 1 + len(inside)
        polled = {buffer for buffer, _ in find_polled(inside) - _find_advanced(walk[place:behind])}
        looked_at = polled | _find_tried(inside)
        for other, conditions, _ in (*walk[first:place], *walk[behind:]):
            awaited = looked_at & set(_list_written(other)) if not loops[stmt.span] <= conditions else ()
            if awaited:
                name = min(buffer.name for buffer in awaited)
                title = f"this `while` reads {name}, and other threads of the block may write it only behind the loop"
                place_of_write = Label(other.span, "written here")
                way_out = "let the threads that read it write it, or let all threads of the block run the loop alike"
                note = "all threads stay in the loop until the last one leaves it"
                raise_error("thread-dependent", title, stmt.span, note, secondary=(place_of_write,), help=way_out)


def walk_with_conditions(
    body: tuple[tile.Stmt, ...], conditions: frozenset[tile.Expr], repeated_from: int, count: int = 0
) -> Iterator[Visit]:
    """Visit each statement in the order of the text; `count` of them were visited before."""
    for stmt in body:
        yield stmt, conditions, repeated_from
        count += 1
        is_loop = isinstance(stmt, tile.For | tile.While)
        outermost = count - 1 if is_loop and repeated_from < 0 else repeated_from
        parts = (
            ((stmt.then, {stmt.condition}), (stmt.orelse, {tile.Unary("not", stmt.condition, BOOL)}))
            if (isinstance(stmt, tile.If))
            else tuple((inner, set[tile.Expr]()) for inner in tile.nested_bodies(stmt))
        )
        for inner, added in parts:
            for entry in walk_with_conditions(inner, conditions | added, outermost, count):
                yield entry
                count += 1


def find_polled(inside: tuple[tile.Stmt, ...]) -> set[Place]:
    """Return the places in tensors and shared tiles that a loop of these statements reads atomically, or that do not
    change in it. A loop that reads at another place in each iteration searches, and ends by itself.
    """
    changed = {s.buffer for s in inside if isinstance(s, tile.Store)}
    bound = {s.var for s in inside if isinstance(s, tile.Bind)}
    found = {(s.buffer, s.indices) for s in inside if isinstance(s, tile.Store) and s.atomic == "load"}
    for load in (load for stmt in inside for load in tile.walk_loads(stmt)):
        parts = [part for index in load.indices for part in tile.walk_expr(index)]
        moves = any(part in bound or (isinstance(part, tile.Load) and part.buffer in changed) for part in parts)
        if load.buffer.scope in ("shared", "global") and not moves:
            found.add((load.buffer, load.indices))
    return found


def is_elsewhere(one: Place, other: Place) -> bool:
    """Return whether two places in one buffer are known to differ."""
    pairs = zip(one[1], other[1], strict=False)
    return any(isinstance(a, tile.Const) and isinstance(b, tile.Const) and a != b for a, b in pairs)


def _find_advanced(visits: Sequence[Visit]) -> set[Place]:
    """Return the places that each thread in a loop writes itself, so that it needs nobody else to go on. The first of
    the visits is the loop."""
    (_, outside, _), *inside = visits
    statements = tuple(stmt for stmt, _, _ in inside)
    staying = {*_list_voted(statements)}
    assigned: list[tuple[_Name, tile.Expr]] = [
        *(
            (stmt.buffer, stmt.value)
            for stmt in statements
            if isinstance(stmt, tile.Store)
            if stmt.buffer.scope == "local"
        ),
        *((stmt.var, stmt.value) for stmt in statements if isinstance(stmt, tile.Bind)),
    ]
    own: set[_Name] = {tile.THREAD}  # what differs by thread, beside who stays in the loop
    for name, value in assigned * 2:
        read = {*_list_names(value)}
        if read & own and name not in staying and not read & staying:
            own.add(name)
    return {
        (stmt.buffer, stmt.indices)
        for stmt, conditions, _ in inside
        if isinstance(stmt, tile.Store) and stmt.atomic != "load"
        if not any(own & {*_list_names(condition)} for condition in conditions - outside)
    }


def _find_tried(inside: tuple[tile.Stmt, ...]) -> set[tile.Buffer]:
    """Return the tensors and shared tiles whose old values, given by atomic updates in a loop of these statements,
    decide whether a thread stays: it may try to take a lock.
    """
    needed = {*_list_voted(inside)}
    known = 0
    while known != len(needed):
        known = len(needed)
        for s in inside:
            if isinstance(s, tile.Store) and s.buffer in needed:
                needed |= {part for expr in (s.value, *s.indices) for part in _list_names(expr)}
            elif isinstance(s, tile.Bind) and s.var in needed:
                needed |= set(_list_names(s.value))
    return {s.buffer for s in inside if isinstance(s, tile.Store) and s.previous in needed}


def _list_voted(inside: tuple[tile.Stmt, ...]) -> Iterator[_Name]:
    """Yield the variables by which threads say whether they stay in a loop of these statements, or in one in it."""
    for call in (call for s in inside if isinstance(s, tile.Bind) for call in tile.walk_expr(s.value)):
        if isinstance(call, tile.Call) and call.fn in ("vote_any", "block_or"):
            yield from _list_names(call)


def _list_names(expr: tile.Expr) -> Iterator[_Name]:
    """Yield the buffers and variables that an expression reads."""
    for part in tile.walk_expr(expr):
        if isinstance(part, tile.Var):
            yield part
        elif isinstance(part, tile.Load):
            yield part.buffer


def _list_written(stmt: tile.Stmt) -> Iterator[tile.Buffer]:
    """Yield the buffers that a statement itself writes, without those nested in it."""
    if isinstance(stmt, tile.Store) and stmt.atomic != "load":
        yield stmt.buffer
    elif isinstance(stmt, tile.TileOp):
        yield from find_writes(stmt)
