"""The scalar definitions of a pipelined loop: those replayed at each use, and those that are scheduled.

A bind that reads nothing the loop writes is only a name: each statement that uses it computes its value for its own
iteration. A bind that reads what the loop writes has its value at one time only, so it is scheduled like a copy; but it
has no storage, so its users must run in the same stage.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.analysis.usage import find_reads, find_writes, list_expressions
from tilec.ir import tile


def mark_replayable_binds(body: tuple[tile.Stmt, ...]) -> tuple[bool, ...]:
    """Return, for each statement of a loop body, True if it is a bind that reads nothing the body writes."""
    written: set[tile.Buffer] = {buffer for stmt in body for buffer in find_writes(stmt)}
    return tuple(isinstance(stmt, tile.Bind) and written.isdisjoint(find_reads(stmt)) for stmt in body)


def find_scheduled_statements(loop: tile.For) -> tuple[tile.Stmt, ...]:
    """Return the statements of the loop's body that a schedule places: all but the replayed binds."""
    return tuple(s for s, again in zip(loop.body, mark_replayable_binds(loop.body), strict=True) if not again)


def find_replayed_binds(loop: tile.For) -> tuple[tile.Bind, ...]:
    """Return the binds of the loop's body that read nothing it writes, so each use evaluates them anew."""
    again = mark_replayable_binds(loop.body)
    return tuple(s for s, r in zip(loop.body, again, strict=True) if r and isinstance(s, tile.Bind))


def find_scheduled_binds(body: tuple[tile.Stmt, ...]) -> tuple[tile.Bind, ...]:
    """Return the binds of a loop body that read what the body writes, so that a schedule places them."""
    return tuple(
        s for s, r in zip(body, mark_replayable_binds(body), strict=True) if not r and isinstance(s, tile.Bind)
    )


def find_needed_variables(body: tuple[tile.Stmt, ...]) -> dict[int, frozenset[tile.Var]]:
    """Return, by index, the variables that each statement of a body uses, itself or through replayed binds."""
    replays: dict[tile.Var, frozenset[tile.Var]] = {}
    needed = {}
    for place, (stmt, again) in enumerate(zip(body, mark_replayable_binds(body), strict=True)):
        exprs = (x for s in tile.walk_statements((stmt,)) for x in list_expressions(s))
        named = frozenset[tile.Var]().union(*map(tile.find_variables, exprs))
        needed[place] = named.union(*(replays.get(v, ()) for v in named))
        if again and isinstance(stmt, tile.Bind):
            replays[stmt.var] = needed[place]
    return needed


def find_bind_users(body: tuple[tile.Stmt, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield each scheduled bind and the statements that use its value, as indices of scheduled statements."""
    again, needed = mark_replayable_binds(body), find_needed_variables(body)
    places = [place for place, is_replayed in enumerate(again) if not is_replayed]
    for number, place in enumerate(places):
        bind = body[place]
        if isinstance(bind, tile.Bind):
            yield number, tuple(user for user, at in enumerate(places) if bind.var in needed[at])
