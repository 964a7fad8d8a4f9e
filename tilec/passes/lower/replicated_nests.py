"""Nests of which several threads have a copy of each element, apart where one copy would overwrite what others read.

Of such threads one stores to memory, and each sets registers of its own. Where a nest does both, the one may store
before another has read there what it sets its registers to. In nests one after the other a barrier is between the two.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.ir import tile
from tilec.ir.layout import Fragment
from tilec.ir.rewrite import map_statements, with_bodies
from tilec.passes.analysis.usage import expressions, reads
from tilec.support.diagnostics import Label, fail
from tilec.support.identity import Same


def separated(nest: tile.Parallel, layout: Fragment) -> tuple[tile.Parallel, ...]:
    """The nest, or nests that do the same, in which no thread stores what another one with a copy of its element reads.
    A name or a condition that would have another value by then is an error of the kernel's."""
    stores = [s for s in tile.walk(nest.body) if isinstance(s, tile.Store)]
    stored = {s.buffer for s in stores if not s.buffer.in_registers}
    is_mixed = any(s.buffer.in_registers for s in stores) and not stored.isdisjoint(reads(nest))
    if not is_mixed or layout.replica() is None:
        return (nest,)
    made, before = [], set[tile.Buffer]()
    for part in _parts(nest):
        body = _only(nest.body, set(map(Same, part)))
        _check_same(body, before, nest)
        made.append(replace(nest, body=body))
        before |= {s.buffer for s in part if isinstance(s, tile.Store)}
    return tuple(made)


def _parts(nest: tile.Parallel) -> list[list[tile.Store | tile.Print]]:
    """Neighbours in the order of the program that all set registers, or all set memory."""
    parts: list[list[tile.Store | tile.Print]] = []
    is_of_registers: bool | None = None
    for stmt in tile.walk(nest.body):
        if isinstance(stmt, tile.Store | tile.Print):
            own = stmt.buffer.in_registers if isinstance(stmt, tile.Store) else is_of_registers
            if not parts or (is_of_registers is not None and own != is_of_registers):
                parts.append([])
            parts[-1].append(stmt)
            is_of_registers = own
    return parts


def _only(body: tuple[tile.Stmt, ...], chosen: set[Same[tile.Stmt]]) -> tuple[tile.Stmt, ...]:
    """The statements without others that store or print, and what is left without a use."""

    def one(stmt: tile.Stmt) -> tile.Stmt | tuple[tile.Stmt, ...]:
        if isinstance(stmt, tile.Store | tile.Print):
            return stmt if Same(stmt) in chosen else ()
        left = with_bodies(stmt, lambda inside: _only(inside, chosen))
        is_used = any(isinstance(s, tile.Store | tile.Print) for s in tile.walk((left,)))
        return left if is_used or not isinstance(left, tile.If) else ()

    return map_statements(body, one)


def _check_same(body: tuple[tile.Stmt, ...], before: set[tile.Buffer], nest: tile.Parallel) -> None:
    """What the statements go by is as it was before the others ran."""
    used = {part for stmt in tile.walk(body) for expr in expressions(stmt) for part in tile.walk_expr(expr)}
    for stmt in tile.walk(body):
        if isinstance(stmt, tile.If) or (isinstance(stmt, tile.Bind) and stmt.var in used):
            for part in (p for expr in expressions(stmt) for p in tile.walk_expr(expr)):
                if isinstance(part, tile.Load) and part.buffer in before:
                    fail(
                        "thread-dependent",
                        f"threads that have copies of an element go by {part.buffer.name}, which one of them sets",
                        stmt.span,
                        f"this would see what the loop has stored in {part.buffer.name}",
                        secondary=(Label(nest.span, "each element is with several threads here"),),
                        help=f"set {part.buffer.name} in a loop of its own",
                    )
