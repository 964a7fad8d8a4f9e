"""The scalar definitions of a pipelined loop: those replayed at each use, and those that are scheduled.

A bind that reads nothing the loop writes is only a name: each statement that uses it computes its value for its own
iteration. A bind that reads what the loop writes has its value at one time only, so it is scheduled like a copy; but it
has no storage, so its users must run in the same stage.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.ir import tile
from tilec.passes.analysis.usage import expressions, reads, writes


def replayable(body: tuple[tile.Stmt, ...]) -> tuple[bool, ...]:
    """Return, for each statement of a loop body, True if it is a bind that reads nothing the body writes."""
    written: set[tile.Buffer] = {buffer for stmt in body for buffer in writes(stmt)}
    return tuple(isinstance(stmt, tile.Bind) and written.isdisjoint(reads(stmt)) for stmt in body)


def scheduled(loop: tile.For) -> tuple[tile.Stmt, ...]:
    """Return the statements that a schedule places."""
    return tuple(s for s, again in zip(loop.body, replayable(loop.body), strict=True) if not again)


def replayed(loop: tile.For) -> tuple[tile.Bind, ...]:
    """Return the binds that are evaluated anew at each use, in program order."""
    again = replayable(loop.body)
    return tuple(s for s, r in zip(loop.body, again, strict=True) if r and isinstance(s, tile.Bind))


def scheduled_binds(body: tuple[tile.Stmt, ...]) -> tuple[tile.Bind, ...]:
    return tuple(s for s, r in zip(body, replayable(body), strict=True) if not r and isinstance(s, tile.Bind))


def variables(body: tuple[tile.Stmt, ...]) -> dict[int, frozenset[tile.Var]]:
    """Return the variables that each statement of a loop body needs, by its place; those that its replayed binds need
    are among them."""
    replays: dict[tile.Var, frozenset[tile.Var]] = {}
    needed = {}
    for place, (stmt, again) in enumerate(zip(body, replayable(body), strict=True)):
        named = {
            e for s in tile.walk((stmt,)) for x in expressions(s) for e in tile.walk_expr(x) if isinstance(e, tile.Var)
        }
        needed[place] = frozenset(named).union(*(replays.get(v, ()) for v in named))
        if again and isinstance(stmt, tile.Bind):
            replays[stmt.var] = needed[place]
    return needed


def users_of_binds(body: tuple[tile.Stmt, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield each scheduled bind with the statements that use its value, as indices of scheduled statements."""
    again, needed = replayable(body), variables(body)
    places = [place for place, is_replayed in enumerate(again) if not is_replayed]
    for number, place in enumerate(places):
        bind = body[place]
        if isinstance(bind, tile.Bind):
            yield number, tuple(user for user, at in enumerate(places) if bind.var in needed[at])
