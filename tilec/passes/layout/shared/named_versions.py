"""Tiles whose versions a kernel names itself: `A_shared[k % 2, :, :]`, with a leading dimension for the versions.

Where every statement names one index of that dimension, the same for all threads, the tile becomes versions of a tile
without it, each with a layout of its own, as TMA and tensor cores need. A statement then works on that tile, and has
the index in `versions`. (`analysis.rings` finds the versions that a schedule makes.)"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilec.analysis.usage import find_reads, find_writes, list_expressions
from tilec.ir import tile
from tilec.ir.rewrite import map_expressions, map_nested_bodies, rewrite_expression, rewrite_statements
from tilec.ops.products.block_scaled import ScaleCopy

VersionTiles = Mapping[tile.Buffer, tile.Buffer]
"""Maps each tile to the tile of one version."""


def find_versioned_tiles(kernel: tile.Kernel) -> dict[tile.Buffer, tile.Buffer]:
    """Return the tiles of which every statement names one version."""
    copies = (s for s in tile.walk_statements(kernel.body) if isinstance(s, ScaleCopy))
    rows = {s.regions[0].buffer for s in copies}  # whose versions are tiles of one dimension
    held = (b for b in kernel.buffers if b.scope in ("shared", "tmem") and len(b.shape) > 2 - (b in rows))
    fit = {b: replace(b, extents=b.shape[1:]) for b in held}
    for stmt in _walk_leaves(kernel.body):
        for buffer in [b for b in fit if _find_version_index(stmt, b) is None]:
            fit.pop(buffer)
    return fit


def _walk_leaves(body: tuple[tile.Stmt, ...]) -> Iterator[tile.Stmt]:
    """Yield operations and nests; of enclosing statements, what they read themselves."""
    for stmt in body:
        yield stmt
        if not isinstance(stmt, tile.Parallel):
            for inner in tile.nested_bodies(stmt):
                yield from _walk_leaves(inner)


def _find_version_index(stmt: tile.Stmt, buffer: tile.Buffer) -> tuple[tile.Expr, ...] | None:
    """Return the index of the version that the statement touches, if any; None where it may touch several."""
    if isinstance(stmt, tile.TileOp):
        regions = [r for r in stmt.regions if r.buffer == buffer]
        loads = [
            e
            for x in list_expressions(stmt)
            for e in tile.walk_expr(x)
            if isinstance(e, tile.Load) and e.buffer == buffer
        ]
        if loads or len(regions) > 1 or any(r.extent[0] != 1 for r in regions):
            return None
        return tuple(r.start[0] for r in regions)
    if not isinstance(stmt, tile.Parallel):
        loaded = {e.buffer for x in list_expressions(stmt) for e in tile.walk_expr(x) if isinstance(e, tile.Load)}
        return None if buffer in loaded else ()
    inner = {s.var for s in tile.walk_statements(stmt.body) if isinstance(s, tile.Bind)} | {tile.THREAD, *stmt.vars}
    found = tuple(dict.fromkeys(_find_leading_indices(stmt, buffer)))
    own = any(e in inner or isinstance(e, tile.Load) for index in found for e in tile.walk_expr(index))
    return None if len(found) > 1 or own else found


def _find_leading_indices(nest: tile.Parallel, buffer: tile.Buffer) -> Iterator[tile.Expr]:
    for stmt in tile.walk_statements(nest.body):
        if isinstance(stmt, tile.Store) and stmt.buffer == buffer:
            yield stmt.indices[0]
        for expr in list_expressions(stmt):
            yield from (e.indices[0] for e in tile.walk_expr(expr) if isinstance(e, tile.Load) and e.buffer == buffer)


# ---- on the tile behind ----------------------------------------------------------------------------------------------


def rewrite_to_versions(stmt: tile.Stmt, versions: VersionTiles) -> tile.Stmt:
    """Rewrite the statement, and all in it, to the tiles of one version."""
    match stmt:
        case tile.TileOp():
            indices = tuple(r.start[0] if r.buffer in versions else None for r in stmt.regions)
            return replace(
                stmt.with_regions(tuple(_rewrite_region(r, versions) for r in stmt.regions)),
                versions=_normalise_versions(indices),
            )
        case tile.Parallel():
            index = {b.name: named[0] for b in versions if (named := _find_version_index(stmt, b))}
            return (
                _name_nest_versions(replace(stmt, body=_rewrite_elements(stmt.body, versions)), index)
                if index
                else stmt
            )
        case _:
            return map_nested_bodies(stmt, lambda body: tuple(rewrite_to_versions(s, versions) for s in body))


def carry_versions(op: tile.TileOp, made: tuple[tile.Stmt, ...]) -> tuple[tile.Stmt, ...]:
    """Give the statements made of an operation the versions that it names, of the tiles that they touch."""
    index = {r.buffer: v for r, v in zip(op.regions, op.versions, strict=False) if v is not None}
    return tuple(_add_versions(stmt, index) for stmt in made) if index else made


def _normalise_versions(versions: tuple[tile.Expr | None, ...]) -> tuple[tile.Expr | None, ...]:
    """Return the versions as operations store them: () where all are None."""
    return versions if any(index is not None for index in versions) else ()


def _add_versions(stmt: tile.Stmt, index: Mapping[tile.Buffer, tile.Expr]) -> tile.Stmt:
    match stmt:
        case tile.TileOp():
            return replace(stmt, versions=_normalise_versions(tuple(index.get(r.buffer) for r in stmt.regions)))
        case tile.Parallel():
            touched = dict.fromkeys((*find_reads(stmt), *find_writes(stmt)))
            return _name_nest_versions(stmt, {b.name: index[b] for b in touched if b in index})
        case _:
            return map_nested_bodies(stmt, lambda body: tuple(_add_versions(s, index) for s in body))


def _name_nest_versions(nest: tile.Parallel, index: Mapping[str, tile.Expr]) -> tile.Parallel:
    """Set the versions of a nest, by names of tiles."""
    return replace(nest, versioned=tuple(index), versions=tuple(index.values()))


def _rewrite_region(region: tile.Region, versions: VersionTiles) -> tile.Region:
    if region.buffer not in versions:
        return region
    return tile.Region(versions[region.buffer], region.start[1:], region.extent[1:], region.span)


def _rewrite_elements(body: tuple[tile.Stmt, ...], versions: VersionTiles) -> tuple[tile.Stmt, ...]:
    """Rewrite the statements of a nest."""

    def rewrite_load(part: tile.Expr) -> tile.Expr:
        if not isinstance(part, tile.Load) or part.buffer not in versions:
            return part
        return tile.Load(versions[part.buffer], part.indices[1:])

    def rewrite_statement(stmt: tile.Stmt) -> tile.Stmt:
        stmt = map_expressions(stmt, lambda expr: rewrite_expression(expr, rewrite_load))
        if not isinstance(stmt, tile.Store) or stmt.buffer not in versions:
            return stmt
        return replace(stmt, buffer=versions[stmt.buffer], indices=stmt.indices[1:])

    return rewrite_statements(body, rewrite_statement)


def get_named_versions(stmt: tile.Stmt) -> dict[str, tile.Expr]:
    """Return the version of each tile that the statement names, by the tile's name."""
    match stmt:
        case tile.TileOp():
            pairs = zip(stmt.regions, stmt.versions, strict=False)
            return {region.buffer.name: index for region, index in pairs if index is not None}
        case tile.Parallel():
            return dict(zip(stmt.versioned, stmt.versions, strict=True))
        case _:
            return {}
