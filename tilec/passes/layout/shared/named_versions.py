"""Tiles whose versions a kernel names itself: `A_shared[k % 2, :, :]`, with a leading dimension for the versions.

Where every statement names one index of that dimension, the same for all threads, the tile becomes versions of a tile
without it, each with a layout of its own, as TMA and tensor cores need. A statement then works on that tile, and has
the index in `versions`. (`analysis.rings` finds the versions that a schedule makes.)"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.ir.rewrite import map_expressions, map_nested_bodies, rewrite_expression, rewrite_statements
from tilec.ops.products.block_scaled import ScaleCopy
from tilec.passes.layout.element_accesses import find_element_accesses, find_loads

VersionTiles = Mapping[tile.Buffer, tile.Buffer]
"""Maps each tile to the tile of one version."""


def find_versioned_tiles(kernel: tile.Kernel) -> dict[tile.Buffer, tile.Buffer]:
    """Return tiles of 3 dimensions or more whose leading index names one version everywhere, each with its
    one-version tile. They are shared or in tensor memory; a tile from which scales are copied has two dimensions or
    more."""
    copies = (s for s in tile.walk_statements(kernel.body) if isinstance(s, ScaleCopy))
    rows = {s.regions[0].buffer for s in copies}  # whose versions are tiles of one dimension
    held = (b for b in kernel.buffers if b.scope in ("shared", "tmem") and len(b.shape) > 2 - (b in rows))
    fit = {b: replace(b, extents=b.shape[1:]) for b in held}
    for stmt in _walk_leaves(kernel.body):
        for buffer in [b for b in fit if _find_version_index(stmt, b) is None]:
            fit.pop(buffer)
    return fit


def _walk_leaves(body: tuple[tile.Stmt, ...]) -> Iterator[tile.Stmt]:
    """Yield every statement at any depth, but nothing inside an elementwise nest."""
    for stmt in body:
        yield stmt
        if not isinstance(stmt, tile.Parallel):
            for inner in tile.nested_bodies(stmt):
                yield from _walk_leaves(inner)


def _find_version_index(stmt: tile.Stmt, buffer: tile.Buffer) -> tuple[tile.Expr, ...] | None:
    """Return (leading index,) of the version that a statement touches, () if none; None if it may touch several."""
    if isinstance(stmt, tile.TileOp):
        regions = [r for r in stmt.regions if r.buffer == buffer]
        is_loaded = any(e.buffer == buffer for e in find_loads((stmt,)))
        is_single = len(regions) < 2 and all(r.extent[0] == 1 for r in regions)
        return tuple(r.start[0] for r in regions) if is_single and not is_loaded else None
    if not isinstance(stmt, tile.Parallel):
        return None if any(load.buffer == buffer for load in tile.walk_loads(stmt)) else ()
    inner = {s.var for s in tile.walk_statements(stmt.body) if isinstance(s, tile.Bind)} | {tile.THREAD, *stmt.vars}
    accesses = (access for _, access in find_element_accesses(stmt.body) if access.buffer == buffer)
    found = tuple(dict.fromkeys(access.indices[0] for access in accesses))
    own = any(e in inner or isinstance(e, tile.Load) for index in found for e in tile.walk_expr(index))
    return None if len(found) > 1 or own else found


def rewrite_to_versions(stmt: tile.Stmt, versions: VersionTiles) -> tile.Stmt:
    """Return the statement with versioned tiles replaced by tiles of one version, and the indices in `versions`."""
    match stmt:
        case tile.TileOp():
            indices = tuple(r.start[0] if r.buffer in versions else None for r in stmt.regions)
            regions = (
                tile.Region(versions[r.buffer], r.start[1:], r.extent[1:], r.span) if r.buffer in versions else r
                for r in stmt.regions
            )
            return replace(stmt.with_regions(tuple(regions)), versions=_normalise_versions(indices))
        case tile.Parallel():
            index = {b.name: named[0] for b in versions if (named := _find_version_index(stmt, b))}
            if not index:
                return stmt
            return _name_nest_versions(replace(stmt, body=_rewrite_elements(stmt.body, versions)), index)
        case _:
            return map_nested_bodies(stmt, lambda body: tuple(rewrite_to_versions(s, versions) for s in body))


def carry_versions(op: tile.TileOp, made: tuple[tile.Stmt, ...]) -> tuple[tile.Stmt, ...]:
    """Return the statements made from an operation, with its version indices for the tiles that they touch."""
    index = {r.buffer: v for r, v in zip(op.regions, op.versions, strict=False) if v is not None}
    return tuple(_add_versions(stmt, index) for stmt in made) if index else made


def _normalise_versions(versions: tuple[tile.Expr | None, ...]) -> tuple[tile.Expr | None, ...]:
    """Return the version indices, or () where all are None."""
    return versions if any(index is not None for index in versions) else ()


def _add_versions(stmt: tile.Stmt, index: Mapping[tile.Buffer, tile.Expr]) -> tile.Stmt:
    """Return the statement, and all nested in it, with the version indices of the tiles that it touches."""
    match stmt:
        case tile.TileOp():
            return replace(stmt, versions=_normalise_versions(tuple(index.get(r.buffer) for r in stmt.regions)))
        case tile.Parallel():
            touched = dict.fromkeys((*find_reads(stmt), *find_writes(stmt)))
            return _name_nest_versions(stmt, {b.name: index[b] for b in touched if b in index})
        case _:
            return map_nested_bodies(stmt, lambda body: tuple(_add_versions(s, index) for s in body))


def _name_nest_versions(nest: tile.Parallel, index: Mapping[str, tile.Expr]) -> tile.Parallel:
    """Return the nest with these version indices, by the names of tiles."""
    return replace(nest, versioned=tuple(index), versions=tuple(index.values()))


def _rewrite_elements(body: tuple[tile.Stmt, ...], versions: VersionTiles) -> tuple[tile.Stmt, ...]:
    """Return a nest's statements with stores and loads of versioned tiles on the tiles of one version."""

    def drop_version_index(part: tile.Expr) -> tile.Expr:
        """Return a load of a versioned tile as one of its one-version tile, without the index of the version."""
        if not isinstance(part, tile.Load) or part.buffer not in versions:
            return part
        return tile.Load(versions[part.buffer], part.indices[1:])

    def rewrite_statement(stmt: tile.Stmt) -> tile.Stmt:
        """Return the statement with its loads, and a store's tile, on the tiles of one version."""
        stmt = map_expressions(stmt, lambda expr: rewrite_expression(expr, drop_version_index))
        if not isinstance(stmt, tile.Store) or stmt.buffer not in versions:
            return stmt
        return replace(stmt, buffer=versions[stmt.buffer], indices=stmt.indices[1:])

    return rewrite_statements(body, rewrite_statement)


def get_named_versions(stmt: tile.Stmt) -> dict[str, tile.Expr]:
    """Return the version index that a statement names for each tile, by the tile's name."""
    match stmt:
        case tile.TileOp():
            pairs = zip(stmt.regions, stmt.versions, strict=False)
            return {region.buffer.name: index for region, index in pairs if index is not None}
        case tile.Parallel():
            return dict(zip(stmt.versioned, stmt.versions, strict=True))
        case _:
            return {}
