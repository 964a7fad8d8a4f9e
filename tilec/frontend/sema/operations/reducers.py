"""Replaces reducers by the partial results of threads, where the kernel text has one name for both.

T.reducer_init, T.fill, T.clear, `acc[i] += …` and T.reducer_update act on the parts. Reads after T.finalize_reducer act
on the result. Any other use is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import NoReturn

from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.ir.rewrite import map_nested_bodies, map_statements
from tilec.ops.fill import Fill
from tilec.ops.reductions.reducer import ATOMICS, FinalizeReducer, Reducer, ReducerInit
from tilec.support.diagnostics import Label, raise_error
from tilec.support.records import dataclass
from tilec.support.source import Span

_UPDATE_FORMS = {
    "sum": "acc[i] += value",
    "max": "acc[i] = T.max(acc[i], value)",
    "min": "acc[i] = T.min(acc[i], value)",
}


def replace_reducers_by_parts(
    body: tuple[tile.Stmt, ...], reducers: Mapping[str, Reducer], buffers: list[tile.Buffer]
) -> tuple[tuple[tile.Stmt, ...], tuple[tile.Buffer, ...]]:
    """Rewrite statements to update partial results of reducers; return them and the buffers with the parts added.
    `reducers` are keyed by the name of their result. A reducer's buffer that is left unused is dropped.
    """
    made = _PartsRewriter(reducers)
    body = made.rewrite_body(body)
    parts = {r.result.name: r for r in reducers.values()}
    used = {b.name for stmt in body for b in (*find_reads(stmt), *find_writes(stmt))}
    found: list[tile.Buffer] = []
    for buffer in buffers:
        both = (buffer, parts[buffer.name].parts) if buffer.name in parts else (buffer,)
        found += (b for b in both if buffer.name not in parts or b.name in used)
    return body, tuple(found)


@dataclass(slots=True)
class _PartsRewriter:
    """Rewrites statements. `begun` has the span where each open reduction begins, `ended` those with a result."""

    reducers: Mapping[str, Reducer]
    begun: dict[str, Span] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)

    def rewrite_body(self, body: tuple[tile.Stmt, ...]) -> tuple[tile.Stmt, ...]:
        """Return statements rewritten, nested ones too, to act on the reducers' partial results."""
        return map_statements(body, self.rewrite_statement)

    def rewrite_statement(self, stmt: tile.Stmt) -> tile.Stmt:
        """Rewrite a statement and those inside it to act on partial results; refuse reads of unfinished reducers."""
        match stmt:
            case tile.TileOp():
                return self.rewrite_operation(stmt)
            case tile.Store():
                return self.rewrite_store(stmt)
            case _:
                self.check_operands_finished(stmt)
                return map_nested_bodies(stmt, self.rewrite_body)

    def rewrite_operation(self, op: tile.TileOp) -> tile.TileOp:
        """Rewrite an operation that starts or ends a reduction; refuse other writes to a reducer and early reads."""
        self.check_operands_finished(op)
        if isinstance(op, ReducerInit | FinalizeReducer):
            reducer = self.reducers.get(op.regions[0].buffer.name)
            if reducer is None:
                title = f"T.{op.name} needs a buffer of T.alloc_reducer"
                note = f"{op.regions[0].buffer.name} is a fragment"
                place = Label(op.regions[0].buffer.span, "from here")
                way_out = "allocate it with T.alloc_reducer"
                raise_error("wrong-argument", title, op.regions[0].span, note, secondary=(place,), help=way_out)
            return self.begin_reduction(op, reducer) if isinstance(op, ReducerInit) else self.end_reduction(op, reducer)
        written = next((b for b in find_writes(op) if b.name in self.reducers), None)
        if written is not None and isinstance(op, Fill) and op.tile.is_whole:
            begun = ReducerInit(op.tile, False, "sum", op.value, span=op.span)
            return self.begin_reduction(begun, self.reducers[written.name])
        if written is not None:
            self.refuse_update(self.reducers[written.name], op.span)
        for buffer in find_reads(op):
            self.check_read(buffer, op.span)
        return op

    def begin_reduction(self, op: ReducerInit, reducer: Reducer) -> tile.TileOp:
        """Return the operation that initialises a reducer's partial results, and record that the reduction is open."""
        self.begun[reducer.result.name] = op.span
        self.ended.discard(reducer.result.name)
        parts = replace(op.parts, buffer=reducer.parts)
        return replace(op, parts=parts, kind=reducer.kind, everywhere=reducer.everywhere)

    def end_reduction(self, op: FinalizeReducer, reducer: Reducer) -> tile.TileOp:
        """Return the operation that combines a reducer's partial results, and record its end; refuse a reduction not
        open. The reducer has the result unless the operation has another destination.
        """
        self.check_begun(reducer, op.span, "start it with T.reducer_init")
        del self.begun[reducer.result.name]
        into = op.destination
        if into is op.parts:
            self.ended.add(reducer.result.name)
        elif into.buffer.name in self.reducers:
            self.refuse_update(self.reducers[into.buffer.name], into.span)
        return replace(op, kind=reducer.kind, parts=replace(op.parts, buffer=reducer.parts))

    def rewrite_store(self, store: tile.Store) -> tile.Store:
        """Rewrite `acc[i] = acc[i] + value`, with the reducer's operator, as an atomic store to its parts; refuse
        others. Stores to buffers that are no reducers are only checked.
        """
        by_parts = next((r for r in self.reducers.values() if store.buffer == r.parts), None)
        if by_parts is not None:
            self.check_operands_finished(store)
            self.check_begun(by_parts, store.span, "start it with T.reducer_init")
            return store
        if store.buffer.name not in self.reducers:
            self.check_operands_finished(store)
            return store
        reducer = self.reducers[store.buffer.name]
        added = _remove_operand(store.value, tile.Load(store.buffer, store.indices), ATOMICS[reducer.kind])
        if added is None or any(isinstance(e, tile.Load) and e.buffer == store.buffer for e in tile.walk_expr(added)):
            self.refuse_update(reducer, store.span)
        self.check_begun(reducer, store.span, "start it with T.reducer_init or T.fill")
        made = replace(store, buffer=reducer.parts, value=added, atomic=ATOMICS[reducer.kind])
        self.check_operands_finished(made)
        return made

    # ---- checks ------------------------------------------------------------------------------------------------------

    def check_operands_finished(self, stmt: tile.Stmt) -> None:
        """Raise `reducer-order` if a statement's expressions load from a reducer that has no result yet."""
        for load in tile.walk_loads(stmt):
            self.check_read(load.buffer, stmt.span)

    def check_read(self, buffer: tile.Buffer, span: Span) -> None:
        """Raise `reducer-order` if the buffer is a reducer whose reduction has not been finished."""
        if buffer.name not in self.reducers or buffer.name in self.ended:
            return
        begun = self.begun.get(buffer.name)
        title = f"{buffer.name} is read before it is finished"
        note = "it holds partial results until T.finalize_reducer"
        place = Label(begun, "the reduction starts here") if begun else Label(buffer.span, "from here")
        way_out = f"read it after T.finalize_reducer({buffer.name}), or read the dst of that call"
        raise_error("reducer-order", title, span, note, secondary=(place,), help=way_out)

    def check_begun(self, reducer: Reducer, span: Span, way_out: str) -> None:
        """Raise `reducer-order` if no reduction into this reducer is open."""
        if reducer.result.name not in self.begun:
            name, place = reducer.result.name, Label(reducer.result.span, "the reducer")
            title = f"no reduction into {name} is open here"
            note = "T.finalize_reducer has ended it" if name in self.ended else "it has not been started"
            raise_error("reducer-order", title, span, note, secondary=(place,), help=way_out)

    def refuse_update(self, reducer: Reducer, span: Span) -> NoReturn:
        """Raise `reducer-update`: a reducer is written in another way than by its own operator."""
        name = reducer.result.name
        update = f"T.reducer_update({name}[i], value)"
        also = _UPDATE_FORMS.get(reducer.kind)
        title = f"{name} is set to something other than its {reducer.kind} with a value"
        place = Label(reducer.result.span, f'a reducer with op="{reducer.kind}"')
        way_out = f"write {update}" + (f" or {also.replace('acc', name)}" if also else "")
        raise_error("reducer-update", title, span, "not an update with its operator", secondary=(place,), help=way_out)


def _remove_operand(value: tile.Expr, part: tile.Load, op: str) -> tile.Expr | None:
    """Return a chain of the operator `op` without one operand `part`, or None if `part` is no operand of it."""
    if not isinstance(value, tile.Binary) or value.op != op:
        return None
    for operand, other in ((value.a, value.b), (value.b, value.a)):
        if operand == part:
            return other
        inner = _remove_operand(operand, part, op)
        if inner is not None:
            return replace(value, a=inner, b=other)
    return None
