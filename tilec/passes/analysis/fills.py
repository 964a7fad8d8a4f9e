"""Which shared tiles a statement overwrites as a whole, so that nothing of what they held is left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilec.ir.tile import Break, Buffer, Const, Expr, For, If, Parallel, Stmt, Store, TileOp, Var, walk
from tilec.ops import registry
from tilec.passes.analysis.copy_nests import covers
from tilec.passes.analysis.trip_count import static_trips
from tilec.passes.analysis.usage import reads

Fill = tuple[Buffer, tuple[Expr, ...]]
"""A tile, and which element is written in each trip of the loops around; () for all of them at once."""

Extents = Mapping[Var, int]
"""How often the loops around run, by their variables, which count from 0 by 1."""


def filled(stmt: Stmt) -> tuple[Buffer, ...]:
    """The shared tiles of which the statement writes every element on each of its paths, and reads none."""
    kept = reads(stmt)
    return tuple(dict.fromkeys(tile for tile, _ in _fills((stmt,), {}) if tile not in kept))


def _fills(body: tuple[Stmt, ...], extents: Extents) -> Iterator[Fill]:
    for stmt in body:
        match stmt:
            case TileOp():
                written = registry.get(stmt.name).effects(stmt).writes
                yield from ((r.buffer, ()) for r in written if r.buffer.scope == "shared" and r.is_whole)
            case Store(buffer=tile, indices=indices, atomic=None) if covers(tile, indices, extents):
                yield tile, indices
            case Parallel():
                yield from _fills(stmt.body, {**extents, **dict(zip(stmt.vars, stmt.extents, strict=True))})
            case For() if (trips := static_trips(stmt)) and not any(isinstance(s, Break) for s in walk(stmt.body)):
                counts = isinstance(stmt.start, Const) and stmt.start.value == 0 and stmt.step == 1
                yield from _fills(stmt.body, {**extents, stmt.var: trips} if counts else extents)
            case If():
                then, orelse = tuple(_fills(stmt.then, extents)), tuple(_fills(stmt.orelse, extents))
                if extents:  # the condition may differ from trip to trip: both branches write the same element
                    yield from (fill for fill in then if fill in orelse)
                else:
                    yield from ((tile, ()) for tile in dict(then) if tile in dict(orelse))
            case _:
                pass
