"""Layouts of the parts of a reducer: they follow the nests that add to them.

Where every addition is to the element that some variables of its nest name, the parts have the layout of these
variables, and the threads that divide the other variables have a part each. Any other reducer, and every one with
replication="all", has a part of every element in each thread. A nest that needs another layout than an earlier one gets
parts of its own, which are added to the others at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.layout import Axis, Fragment, local
from tilec.ir.rewrite import map_statements, rewrite, with_bodies
from tilec.ops.reducer import ATOMICS, FinalizeReducer, ReducerInit


def additions(nest: tile.Parallel) -> Iterator[tile.Store]:
    """Yield the stores of a nest that add to parts."""
    return (s for s in tile.walk(nest.body) if isinstance(s, tile.Store) and s.buffer.scope == "reducer")


def everywhere(kernel: tile.Kernel) -> dict[str, Fragment]:
    """Return the layouts of the reducers with parts of all elements in each thread."""
    found: dict[str, Fragment] = {}
    scattered: set[str] = set()
    replicated: set[str] = set()
    for stmt in tile.walk(kernel.body):
        if isinstance(stmt, ReducerInit) and stmt.everywhere:
            replicated.add(stmt.regions[0].buffer.name)
        if isinstance(stmt, tile.Parallel):
            for store in additions(stmt):
                scattered.add(store.buffer.name)
                if _dims(stmt, store) is None:
                    replicated.add(store.buffer.name)
    for buffer in kernel.buffers:
        if buffer.scope == "reducer" and (buffer.name in replicated or buffer.name not in scattered):
            found[buffer.name] = local(kernel.threads, buffer.shape)
    return found


def parts_layout(nest: tile.Parallel, store: tile.Store, whole: Fragment) -> Fragment:
    """Return the layout of the parts that this addition needs in a nest of layout `whole`."""
    dims = _dims(nest, store)
    assert dims is not None, "these parts are everywhere"
    layout = whole.project(tuple(d for d in dims if d is not None))
    place = [i for i, d in enumerate(dims) if d is not None]

    def moved(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(replace(a, dim=place[a.dim]) if a.dim >= 0 else a for a in axes)

    return Fragment(store.buffer.shape, moved(layout.threads), moved(layout.registers))


def _dims(nest: tile.Parallel, store: tile.Store) -> tuple[int | None, ...] | None:
    """Return the variable of the nest for each dimension of the reducer (None: of extent 1); None where an index is no
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


def with_parts_of_its_own(kernel: tile.Kernel, nest: tile.Parallel, parts: tile.Buffer) -> tile.Kernel:
    """Give the nest parts of its own, and add these to the others where those are finalised."""
    taken = sum(b.name.startswith(f"{parts.name}.again") for b in kernel.buffers)
    own = replace(parts, name=f"{parts.name}.again{taken}")
    result = tile.Buffer(f"{own.name}.result", parts.extents, parts.dtype, "fragment", parts.span)
    kind = next(s.kind for s in tile.walk(kernel.body) if isinstance(s, ReducerInit) and s.regions[0].buffer == parts)

    def whole(buffer: tile.Buffer, like: tile.Region) -> tile.Region:
        return replace(like, buffer=buffer)

    def body(stmts: tuple[tile.Stmt, ...]) -> tuple[tile.Stmt, ...]:
        return map_statements(stmts, statement)

    def statement(stmt: tile.Stmt) -> tile.Stmt | tuple[tile.Stmt, ...]:
        match stmt:
            case tile.Parallel() if stmt is nest:
                return renamed(stmt)
            case ReducerInit(regions=(region,)) if region.buffer == parts:
                return stmt, replace(stmt, parts=whole(own, region), value=None)
            case FinalizeReducer(regions=(region, into)) if region.buffer == parts:
                own_finalise = replace(stmt, parts=whole(own, region), destination=whole(result, region))
                return own_finalise, stmt, together(into.buffer, stmt)
            case _:
                return with_bodies(stmt, body)

    def renamed(stmt: tile.Parallel) -> tile.Parallel:
        def inner(s: tile.Stmt) -> tile.Stmt:
            return replace(s, buffer=own) if isinstance(s, tile.Store) and s.buffer == parts else s

        return replace(stmt, body=rewrite(stmt.body, inner))

    def together(into: tile.Buffer, at: tile.TileOp) -> tile.Parallel:
        variables = tuple(tile.Var(f"{own.name}.{d}") for d in range(len(into.shape)))
        indices: tuple[tile.Expr, ...] = tuple(
            tile.integer(0) if e == 1 else v for v, e in zip(variables, into.shape, strict=True)
        )
        value = tile.Binary(ATOMICS[kind], tile.Load(into, indices), tile.Load(result, indices), into.dtype)
        return tile.Parallel(variables, into.shape, (tile.Store(into, indices, value, at.span),), at.span)

    return replace(kernel, body=body(kernel.body), buffers=(*kernel.buffers, own, result))
