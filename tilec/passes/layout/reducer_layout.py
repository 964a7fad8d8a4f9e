"""How the parts of a reducer lie: as the nests that add to them run.

Where every addition is to the element that some variables of its nest name, the parts lie as these variables do, and
the threads that share out the others have a part each. Anything else, and every reducer with replication="all", gets a
part of every element in each thread. A nest that would have the parts lie in another way than an earlier one gets parts
of its own, which are put together with the others at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilec.ir.layout import Axis, Fragment, local
from tilec.ir.tile import (
    Binary,
    BinaryOp,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Parallel,
    Region,
    Stmt,
    Store,
    TileOp,
    Var,
    While,
    integer,
    walk,
)
from tilec.ops.reducer import ATOMICS, FinalizeReducer, ReducerInit


def additions(nest: Parallel) -> Iterator[Store]:
    """The stores of a nest that add to parts."""
    return (s for s in walk(nest.body) if isinstance(s, Store) and s.buffer.scope == "reducer")


def everywhere(kernel: Kernel) -> dict[str, Fragment]:
    """The layouts of the reducers of which each thread has parts of all elements."""
    found: dict[str, Fragment] = {}
    apart: set[str] = set()
    asked: set[str] = set()
    for stmt in walk(kernel.body):
        if isinstance(stmt, ReducerInit) and stmt.everywhere:
            asked.add(stmt.regions[0].buffer.name)
        if isinstance(stmt, Parallel):
            for store in additions(stmt):
                apart.add(store.buffer.name)
                if _dims(stmt, store) is None:
                    asked.add(store.buffer.name)
    for buffer in kernel.buffers:
        if buffer.scope == "reducer" and (buffer.name in asked or buffer.name not in apart):
            found[buffer.name] = local(kernel.threads, buffer.shape)
    return found


def parts_layout(nest: Parallel, store: Store, whole: Fragment) -> Fragment:
    """How the parts lie that this addition wants in a nest of the layout `whole`."""
    dims = _dims(nest, store)
    assert dims is not None, "these parts are everywhere"
    layout = whole.project(tuple(d for d in dims if d is not None))
    place = [i for i, d in enumerate(dims) if d is not None]

    def moved(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(replace(a, dim=place[a.dim]) if a.dim >= 0 else a for a in axes)

    return Fragment(store.buffer.shape, moved(layout.threads), moved(layout.registers))


def _dims(nest: Parallel, store: Store) -> tuple[int | None, ...] | None:
    """Which variable of the nest goes through each dimension of the reducer; None in it: of extent 1. None: not so."""
    place = {var: i for i, var in enumerate(nest.vars)}
    found: list[int | None] = []
    for index, size in zip(store.indices, store.buffer.shape, strict=True):
        if isinstance(index, Var) and index in place and nest.extents[place[index]] == size:
            found.append(place[index])
        elif size == 1 and isinstance(index, Const):
            found.append(None)
        else:
            return None
    named = [d for d in found if d is not None]
    return tuple(found) if len(set(named)) == len(named) and not nest.is_per_thread else None


def with_parts_of_its_own(kernel: Kernel, nest: Parallel, parts: Buffer) -> Kernel:
    """The kernel in which the nest adds to parts of its own, put together with the others where these are."""
    taken = sum(b.name.startswith(f"{parts.name}.again") for b in kernel.buffers)
    own = replace(parts, name=f"{parts.name}.again{taken}")
    result = Buffer(f"{own.name}.result", parts.extents, parts.dtype, "fragment", parts.span)
    kind = next(s.kind for s in walk(kernel.body) if isinstance(s, ReducerInit) and s.regions[0].buffer == parts)

    def whole(buffer: Buffer, like: Region) -> Region:
        return replace(like, buffer=buffer)

    def body(stmts: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(new for stmt in stmts for new in statement(stmt))

    def statement(stmt: Stmt) -> tuple[Stmt, ...]:
        match stmt:
            case Parallel() if stmt is nest:
                return (renamed(stmt),)
            case ReducerInit(regions=(region,)) if region.buffer == parts:
                return stmt, replace(stmt, parts=whole(own, region), value=None)
            case FinalizeReducer(regions=(region, into)) if region.buffer == parts:
                mine = replace(stmt, parts=whole(own, region), destination=whole(result, region))
                return mine, stmt, together(into.buffer, stmt)
            case For(body=inner) | While(body=inner):
                return (replace(stmt, body=body(inner)),)
            case If(then=then, orelse=orelse):
                return (replace(stmt, then=body(then), orelse=body(orelse)),)
            case _:
                return (stmt,)

    def renamed(stmt: Parallel) -> Parallel:
        def inner(s: Stmt) -> Stmt:
            match s:
                case Store(buffer=buffer) if buffer == parts:
                    return replace(s, buffer=own)
                case If(then=then, orelse=orelse):
                    return replace(s, then=tuple(map(inner, then)), orelse=tuple(map(inner, orelse)))
                case _:
                    return s

        return replace(stmt, body=tuple(map(inner, stmt.body)))

    def together(into: Buffer, at: TileOp) -> Parallel:
        variables = tuple(Var(f"{own.name}.{d}") for d in range(len(into.shape)))
        indices: tuple[Expr, ...] = tuple(
            integer(0) if e == 1 else v for v, e in zip(variables, into.shape, strict=True)
        )
        operator: BinaryOp = ATOMICS[kind]  # type: ignore[assignment]
        value = Binary(operator, Load(into, indices), Load(result, indices), into.dtype)
        return Parallel(variables, into.shape, (Store(into, indices, value, at.span),), at.span)

    return replace(kernel, body=body(kernel.body), buffers=(*kernel.buffers, own, result))
