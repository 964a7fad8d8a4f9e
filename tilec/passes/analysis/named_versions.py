"""Tiles whose versions a kernel names itself: `A_shared[k % 2, :, :]`, with a leading dimension for the versions.

Where every statement names one index of that dimension, the same for all threads, the tile becomes versions of a tile
without it, each with a layout of its own, as TMA and tensor cores need. A statement then works on that tile, and has
the index in `versions`. (`analysis.rings` finds the versions that a schedule makes.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.rewrite import map_expressions, rewrite, rewrite_expression, with_bodies
from tilec.ops.block_scaled import ScaleCopy
from tilec.passes.analysis.usage import expressions, reads, writes

Versions = Mapping[tile.Buffer, tile.Buffer]
"""Maps each tile to the tile of one version."""


def versioned(kernel: tile.Kernel) -> dict[tile.Buffer, tile.Buffer]:
    """Return the tiles of which every statement names one version."""
    copies = (s for s in tile.walk(kernel.body) if isinstance(s, ScaleCopy))
    rows = {s.regions[0].buffer for s in copies}  # whose versions are tiles of one dimension
    held = (b for b in kernel.buffers if b.scope in ("shared", "tmem") and len(b.shape) > 2 - (b in rows))
    fit = {b: replace(b, extents=b.shape[1:]) for b in held}
    for stmt in _leaves(kernel.body):
        for buffer in [b for b in fit if _named(stmt, b) is None]:
            fit.pop(buffer)
    return fit


def _leaves(body: tuple[tile.Stmt, ...]) -> Iterator[tile.Stmt]:
    """Yield operations and nests; of enclosing statements, what they read themselves."""
    for stmt in body:
        yield stmt
        if not isinstance(stmt, tile.Parallel):
            for inner in tile.bodies(stmt):
                yield from _leaves(inner)


def _named(stmt: tile.Stmt, buffer: tile.Buffer) -> tuple[tile.Expr, ...] | None:
    """Return the index of the version that the statement touches, if any; None where it may touch several."""
    if isinstance(stmt, tile.TileOp):
        regions = [r for r in stmt.regions if r.buffer == buffer]
        loads = [
            e for x in expressions(stmt) for e in tile.walk_expr(x) if isinstance(e, tile.Load) and e.buffer == buffer
        ]
        if loads or len(regions) > 1 or any(r.extent[0] != 1 for r in regions):
            return None
        return tuple(r.start[0] for r in regions)
    if not isinstance(stmt, tile.Parallel):
        loaded = {e.buffer for x in expressions(stmt) for e in tile.walk_expr(x) if isinstance(e, tile.Load)}
        return None if buffer in loaded else ()
    inner = {s.var for s in tile.walk(stmt.body) if isinstance(s, tile.Bind)} | {tile.THREAD, *stmt.vars}
    found = tuple(dict.fromkeys(_leading(stmt, buffer)))
    own = any(e in inner or isinstance(e, tile.Load) for index in found for e in tile.walk_expr(index))
    return None if len(found) > 1 or own else found


def _leading(nest: tile.Parallel, buffer: tile.Buffer) -> Iterator[tile.Expr]:
    for stmt in tile.walk(nest.body):
        if isinstance(stmt, tile.Store) and stmt.buffer == buffer:
            yield stmt.indices[0]
        for expr in expressions(stmt):
            yield from (e.indices[0] for e in tile.walk_expr(expr) if isinstance(e, tile.Load) and e.buffer == buffer)


# ---- on the tile behind ----------------------------------------------------------------------------------------------


def on_versions(stmt: tile.Stmt, versions: Versions) -> tile.Stmt:
    """Rewrite the statement, and all in it, to the tiles of one version."""
    match stmt:
        case tile.TileOp():
            indices = tuple(r.start[0] if r.buffer in versions else None for r in stmt.regions)
            return replace(
                stmt.with_regions(tuple(_region(r, versions) for r in stmt.regions)), versions=_said(indices)
            )
        case tile.Parallel():
            index = {b.name: named[0] for b in versions if (named := _named(stmt, b))}
            return _naming(replace(stmt, body=_elements(stmt.body, versions)), index) if index else stmt
        case _:
            return with_bodies(stmt, lambda body: tuple(on_versions(s, versions) for s in body))


def carried(op: tile.TileOp, made: tuple[tile.Stmt, ...]) -> tuple[tile.Stmt, ...]:
    """Give the statements made of an operation the versions that it names, of the tiles that they touch."""
    index = {r.buffer: v for r, v in zip(op.regions, op.versions, strict=False) if v is not None}
    return tuple(_with_versions(stmt, index) for stmt in made) if index else made


def _said(versions: tuple[tile.Expr | None, ...]) -> tuple[tile.Expr | None, ...]:
    """Return the versions as operations store them: () where all are None."""
    return versions if any(index is not None for index in versions) else ()


def _with_versions(stmt: tile.Stmt, index: Mapping[tile.Buffer, tile.Expr]) -> tile.Stmt:
    match stmt:
        case tile.TileOp():
            return replace(stmt, versions=_said(tuple(index.get(r.buffer) for r in stmt.regions)))
        case tile.Parallel():
            touched = dict.fromkeys((*reads(stmt), *writes(stmt)))
            return _naming(stmt, {b.name: index[b] for b in touched if b in index})
        case _:
            return with_bodies(stmt, lambda body: tuple(_with_versions(s, index) for s in body))


def _naming(nest: tile.Parallel, index: Mapping[str, tile.Expr]) -> tile.Parallel:
    """Set the versions of a nest, by names of tiles."""
    return replace(nest, versioned=tuple(index), versions=tuple(index.values()))


def _region(region: tile.Region, versions: Versions) -> tile.Region:
    if region.buffer not in versions:
        return region
    return tile.Region(versions[region.buffer], region.start[1:], region.extent[1:], region.span)


def _elements(body: tuple[tile.Stmt, ...], versions: Versions) -> tuple[tile.Stmt, ...]:
    """Rewrite the statements of a nest."""

    def load(part: tile.Expr) -> tile.Expr:
        if not isinstance(part, tile.Load) or part.buffer not in versions:
            return part
        return tile.Load(versions[part.buffer], part.indices[1:])

    def one(stmt: tile.Stmt) -> tile.Stmt:
        stmt = map_expressions(stmt, lambda expr: rewrite_expression(expr, load))
        if not isinstance(stmt, tile.Store) or stmt.buffer not in versions:
            return stmt
        return replace(stmt, buffer=versions[stmt.buffer], indices=stmt.indices[1:])

    return rewrite(body, one)


def named_versions(stmt: tile.Stmt) -> dict[str, tile.Expr]:
    """Return the version of each tile that the statement names, by the tile's name."""
    match stmt:
        case tile.TileOp():
            pairs = zip(stmt.regions, stmt.versions, strict=False)
            return {region.buffer.name: index for region, index in pairs if index is not None}
        case tile.Parallel():
            return dict(zip(stmt.versioned, stmt.versions, strict=True))
        case _:
            return {}
