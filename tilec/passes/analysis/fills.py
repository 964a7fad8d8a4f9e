"""Shared tiles that a statement overwrites completely."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilec.ir import tile
from tilec.ops import registry
from tilec.passes.analysis.copy_nests import covers_tile
from tilec.passes.analysis.trip_count import get_static_trip_count
from tilec.passes.analysis.usage import find_reads

TileFill = tuple[tile.Buffer, tuple[tile.Expr, ...]]
"""A tile, and the indices written in each iteration of the enclosing loops; () for all elements at once."""

LoopExtents = Mapping[tile.Var, int]
"""Trip counts of the enclosing loops, by their variables, which count from 0 by 1."""


def find_filled_tiles(stmt: tile.Stmt) -> tuple[tile.Buffer, ...]:
    """Return the shared tiles of which the statement writes every element on each path, and reads none."""
    kept = find_reads(stmt)
    return tuple(dict.fromkeys(buffer for buffer, _ in _find_fills((stmt,), {}) if buffer not in kept))


def _find_fills(body: tuple[tile.Stmt, ...], extents: LoopExtents) -> Iterator[TileFill]:
    for stmt in body:
        match stmt:
            case tile.TileOp():
                written = registry.get_operation(stmt.name).effects(stmt).writes
                yield from ((r.buffer, ()) for r in written if r.buffer.scope == "shared" and r.is_whole)
            case tile.Store(buffer=buffer, indices=indices, atomic=None) if covers_tile(buffer, indices, extents):
                yield buffer, indices
            case tile.Parallel():
                yield from _find_fills(stmt.body, {**extents, **dict(zip(stmt.vars, stmt.extents, strict=True))})
            case tile.For() if (trip_count := get_static_trip_count(stmt)) and not any(
                isinstance(s, tile.Break) for s in tile.walk_statements(stmt.body)
            ):
                counts = isinstance(stmt.start, tile.Const) and stmt.start.value == 0 and stmt.step == 1
                yield from _find_fills(stmt.body, {**extents, stmt.var: trip_count} if counts else extents)
            case tile.If():
                then, orelse = tuple(_find_fills(stmt.then, extents)), tuple(_find_fills(stmt.orelse, extents))
                if (
                    extents
                ):  # the condition may differ from iteration to iteration: both branches write the same element
                    yield from (fill for fill in then if fill in orelse)
                else:
                    yield from ((buffer, ()) for buffer in dict(then) if buffer in dict(orelse))
            case _:
                pass
