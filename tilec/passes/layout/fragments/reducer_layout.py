"""Layouts of the parts of a reducer: they follow the nests that add to them.

Where every addition is to the element that some variables of its nest name, the parts have the layout of these
variables, and the threads that divide the other variables have a part each. Any other reducer, and every one with
replication="all", has a part of every element in each thread. A nest that needs another layout than an earlier one gets
parts of its own, which are added to the others at the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.layout import Fragment, replicated_fragment
from tilec.ir.rewrite import map_nested_bodies, map_statements, rewrite_statements
from tilec.ops.reductions.reducer import ATOMICS, FinalizeReducer, ReducerInit
from tilec.passes.layout.fragments.dimensions import embed_layout


def find_additions(nest: tile.Parallel) -> Iterator[tile.Store]:
    """Yield the stores of a nest that add to a reducer."""
    return (s for s in tile.walk_statements(nest.body) if isinstance(s, tile.Store) and s.buffer.scope == "reducer")


def find_replicated_reducers(kernel: tile.Kernel) -> dict[str, Fragment]:
    """Return, by name, the layouts of reducers that need all elements in each thread, or to which no nest adds."""
    found: dict[str, Fragment] = {}
    scattered: set[str] = set()
    replicated: set[str] = set()
    for stmt in tile.walk_statements(kernel.body):
        if isinstance(stmt, ReducerInit) and stmt.everywhere:
            replicated.add(stmt.regions[0].buffer.name)
        if isinstance(stmt, tile.Parallel):
            for store in find_additions(stmt):
                scattered.add(store.buffer.name)
                if _map_dimensions(stmt, store) is None:
                    replicated.add(store.buffer.name)
    for buffer in kernel.buffers:
        if buffer.scope == "reducer" and (buffer.name in replicated or buffer.name not in scattered):
            found[buffer.name] = replicated_fragment(kernel.threads, buffer.shape)
    return found


def build_parts_layout(nest: tile.Parallel, store: tile.Store, whole: Fragment) -> Fragment:
    """Return the reducer layout that an addition needs in a nest of layout `whole`: that of the variables it names."""
    dims = _map_dimensions(nest, store)
    assert dims is not None, "these parts are everywhere"
    layout = whole.project(tuple(d for d in dims if d is not None))
    return embed_layout(layout, store.buffer.shape, tuple(i for i, d in enumerate(dims) if d is not None))


def _map_dimensions(nest: tile.Parallel, store: tile.Store) -> tuple[int | None, ...] | None:
    """Return the nest variable that indexes each dimension of a reducer (None for extent 1); None if one is no
    variable."""
    place = {var: i for i, var in enumerate(nest.vars)}
    found: list[int | None] = []
    for index, size in zip(store.indices, store.buffer.shape, strict=True):
        if isinstance(index, tile.Var) and index in place and nest.extents[place[index]] == size:
            found.append(place[index])
        elif size == 1 and isinstance(index, tile.Const):
            found.append(None)
        else:
            return None
    named = [d for d in found if d is not None]
    return tuple(found) if len(set(named)) == len(named) and not nest.is_per_thread else None


def add_nest_parts(kernel: tile.Kernel, nest: tile.Parallel, parts: tile.Buffer) -> tile.Kernel:
    """Return the kernel in which the nest adds to a reducer of its own, combined with `parts` at the end."""
    taken = sum(b.name.startswith(f"{parts.name}.again") for b in kernel.buffers)
    own = replace(parts, name=f"{parts.name}.again{taken}")
    result = tile.Buffer(f"{own.name}.result", parts.extents, parts.dtype, "fragment", parts.span)
    kind = next(
        s.kind for s in tile.walk_statements(kernel.body) if isinstance(s, ReducerInit) and s.regions[0].buffer == parts
    )

    def rewrite_body(stmts: tuple[tile.Stmt, ...]) -> tuple[tile.Stmt, ...]:
        return map_statements(stmts, rewrite_statement)

    def rewrite_statement(stmt: tile.Stmt) -> tile.Stmt | tuple[tile.Stmt, ...]:
        """Return the nest on its own reducer; initialise and finalise that one beside the reducer `parts`."""
        match stmt:
            case tile.Parallel() if stmt is nest:
                return replace(stmt, body=rewrite_statements(stmt.body, rename_store))
            case ReducerInit(regions=(region,)) if region.buffer == parts:
                return stmt, replace(stmt, parts=replace(region, buffer=own), value=None)
            case FinalizeReducer(regions=(region, into)) if region.buffer == parts:
                own_parts, own_result = replace(region, buffer=own), replace(region, buffer=result)
                own_finalise = replace(stmt, parts=own_parts, destination=own_result)
                return own_finalise, stmt, combine_parts(into.buffer, stmt)
            case _:
                return map_nested_bodies(stmt, rewrite_body)

    def rename_store(stmt: tile.Stmt) -> tile.Stmt:
        return replace(stmt, buffer=own) if isinstance(stmt, tile.Store) and stmt.buffer == parts else stmt

    def combine_parts(into: tile.Buffer, at: tile.TileOp) -> tile.Parallel:
        """Return a nest that combines the own reducer's result into `into`, element by element."""
        variables = tuple(tile.Var(f"{own.name}.{d}") for d in range(len(into.shape)))
        indices: tuple[tile.Expr, ...] = tuple(
            tile.int32_const(0) if e == 1 else v for v, e in zip(variables, into.shape, strict=True)
        )
        value = tile.Binary(ATOMICS[kind], tile.Load(into, indices), tile.Load(result, indices), into.dtype)
        return tile.Parallel(variables, into.shape, (tile.Store(into, indices, value, at.span),), at.span)

    return replace(kernel, body=rewrite_body(kernel.body), buffers=(*kernel.buffers, own, result))
