"""The time at which a value is read.

Kernel expressions are evaluated in Python's order, but a value may be an element or an expression that no statement has
read yet. It is read late only if nothing in between changes it.

* `read_if_changed_since`: for an operand after which other operands were evaluated. If one of them changes what the
  value reads, a bind is inserted at the moment of the value.
* `snapshot_lazily`: for a value that gets a name, such as an argument of a macro. An element keeps its place too, as
  the corner of a box or for an atomic operation, and its value is that of its moment.
* `refuse_side_effects`: for an operand that runs only if it is selected.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from tilec.analysis.usage import find_writes
from tilec.frontend.sema.context import Context, Mask
from tilec.frontend.sema.expressions import fragment_elements, vectors
from tilec.frontend.sema.expressions.bounds import check_access
from tilec.frontend.sema.statements import per_thread
from tilec.ir import tile
from tilec.ops.language.signature import Argument, as_expr
from tilec.ops.language.values import (
    EXPR_TYPES,
    Access,
    Dictionary,
    DictionaryEntry,
    IndexRange,
    Lanes,
    ListValue,
    SnapshotAccess,
    SnapshotExpr,
    StageTile,
    Value,
)
from tilec.support.diagnostics import Label, raise_error
from tilec.support.records import dataclass
from tilec.support.source import Span

# ---- moments ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class Moment:
    """A point between two statements: behind `after`, the last statement of the list `out`, or at its start.

    The other fields describe the context: open regions, masks, whether it was in a nest, guards, and the role."""

    out: list[tile.Stmt]
    after: tile.Stmt | None
    regions: int
    masks: tuple[Mask, ...]
    is_parallel: bool
    guards: int
    role: range | None

    @property
    def place(self) -> int:
        """Return the index in `out` at which to insert statements of this moment: behind `after`, or 0."""
        if self.after is None:
            return 0
        return next(at for at in range(len(self.out), 0, -1) if self.out[at - 1] is self.after)


def mark_moment(context: Context) -> Moment:
    """Return the current moment: the position behind the last emitted statement, with masks, regions and guards."""
    after = context.out[-1] if context.out else None
    regions, masks = len(context.regions), tuple(context.masks)
    return Moment(context.out, after, regions, masks, context.is_parallel, context.guards, context.role)


@contextmanager
def insert_at(context: Context, moment: Moment) -> Iterator[None]:
    """Move the statements emitted in the `with` to an earlier moment, and shift the indices of later elided names."""
    made: list[tile.Stmt] = []
    masks = list(moment.masks)
    with context.altered(out=made, masks=masks, is_parallel=moment.is_parallel, guards=moment.guards):
        yield
    place = moment.place
    moment.out[place:place] = made
    context.names[:] = [
        replace(n, at=n.at + len(made)) if n.out is moment.out and n.at > place else n for n in context.names
    ]


def list_statements_since(context: Context, moment: Moment) -> list[tile.Stmt]:
    """Return the statements emitted since a moment, including those in regions still open."""
    if context.out is moment.out and (context.out[-1] if context.out else None) is moment.after:
        return []
    found = moment.out[moment.place :]
    lists = [out for out, _ in context.regions[moment.regions :]]
    if context.out is not moment.out and not any(out is context.out for out in lists):
        lists.append(context.out)
    return [*found, *(stmt for out in lists for stmt in out)]


def is_changed_since(context: Context, value: Value, moment: Moment) -> bool:
    """Return whether a statement emitted since a moment may write a buffer that using the value reads."""
    made = list_statements_since(context, moment)
    if not made:
        return False
    read = set(_find_read_buffers(context, value))
    return bool(read) and any(_may_change(context, stmt, read) for stmt in made)


_UNKNOWN_READS = "anything"
"""Stands for unknown buffers among the names of those that a value reads."""


def _find_read_buffers(context: Context, value: Value) -> Iterator[str]:
    """Yield the names of the buffers that using a value reads, at any depth; "anything" for inline PTX. Snapshots are
    read at their own moments.
    """
    match value:
        case SnapshotAccess():
            return
        case Access(buffer=buffer, indices=indices):
            if value.is_one_value:
                yield _find_root_name(context, buffer)
            for index in indices:
                yield from _find_read_buffers(context, index.start if isinstance(index, IndexRange) else index)
        case Lanes(parts=parts):
            for part in parts:
                yield from _find_read_buffers(context, part)
        case tuple():
            for item in value:
                yield from _find_read_buffers(context, item)
        case Dictionary(entries=entries):
            for entry in entries:
                yield from _find_read_buffers(context, entry.value)
        case _ if isinstance(value, EXPR_TYPES):
            for part in tile.walk_expr(value):
                if isinstance(part, tile.Load):
                    yield _find_root_name(context, part.buffer)
                elif isinstance(part, tile.Ptx):
                    yield _UNKNOWN_READS
        case _:
            return


def _find_root_name(context: Context, buffer: tile.Buffer) -> str:
    """Return the name of the buffer under a view; one name for all tensors if the kernel has addresses of tensors."""
    if buffer.scope == "global" and (context.pointers or context.tables):
        return "the tensors"
    return context.views.get(buffer.name, buffer).name


def _may_change(context: Context, stmt: tile.Stmt, read: set[str]) -> bool:
    """Return whether a statement writes a buffer named in `read`, or has an operation that writes nothing, as a
    barrier. Binds change nothing.
    """
    if isinstance(stmt, tile.Bind):
        return False
    written = find_writes(stmt)
    if any(_UNKNOWN_READS in read or _find_root_name(context, buffer) in read for buffer in written):
        return True
    # After a barrier, writes of other threads are visible.
    return any(isinstance(s, tile.TileOp) and not find_writes(s) for s in tile.walk_statements((stmt,)))


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_element(context: Context, argument: Argument) -> Argument:
    """Turn an indexed buffer into a load, a vector's lanes or a broadcast; other values stay; refuse barriers and bad
    accesses. Errors: those of `check_access`, and a barrier's element.
    """
    access, span = argument.value, argument.span
    if not isinstance(access, Access) or not access.is_one_value:
        return argument
    if isinstance(access, SnapshotAccess):
        return Argument(access.read(), span)
    if access.has_extent:
        return Argument(vectors.load_vector(context, access, span), span)
    if fragment_elements.is_distributed_element(context, access):
        return Argument(fragment_elements.broadcast_element(context, access, span), span)
    check_access(context, access, span, "read")
    if access.buffer.scope == "barrier":
        raise_error("not-a-scalar", "a barrier has no value", span, help="write T.barrier_wait(barrier, parity)")
    return Argument(as_expr(argument), span)


def read_if_changed_since(context: Context, argument: Argument, moment: Moment) -> Argument:
    """Return a value as it is, or, if a statement since its moment may have changed it, as a bind inserted there."""
    if not is_changed_since(context, argument.value, moment):
        return argument
    with insert_at(context, moment):
        return Argument(_read_fully(context, argument.value, argument.span), argument.span)


def settle_argument(context: Context, argument: Argument, moment: Moment) -> Argument:
    """Return an argument as of a moment, by a bind inserted there if it changed since; a variable stays assignable."""
    value, now = argument.value, read_if_changed_since(context, argument, moment)
    if now is argument or not isinstance(value, tile.Load) or value.buffer.name not in context.variable_names:
        return now
    return Argument(SnapshotAccess(value.buffer, value.indices, lambda: now.value), argument.span)


def settle_place(context: Context, access: Access, moment: Moment, span: Span) -> Access:
    """Return an access with its indices as of a moment, by binds inserted there if they may have changed since."""
    if not any(is_changed_since(context, i.start if isinstance(i, IndexRange) else i, moment) for i in access.indices):
        return access
    with insert_at(context, moment):
        return _freeze_indices(context, access, span)


def snapshot_lazily(context: Context, value: Value, span: Span) -> Value:
    """Return a value for a name; an expression is bound, at this moment, only if a later use finds that it may have
    changed. Other values are bound now, by `snapshot_value`.
    """
    if isinstance(value, EXPR_TYPES) and _has_loads(value) and context.dispatch.statements:
        return SnapshotExpr(value, partial(_read_snapshot, context, value, mark_moment(context), span, []))
    return snapshot_value(context, value, span)


def snapshot_value(context: Context, value: Value, span: Span) -> Value:
    """Emit binds for the expressions in a value that gets a name, and return it; buffer elements stay assignable. At
    compile time, and within an operand that is only selected, it is returned as it is.
    """
    if not context.dispatch.statements or context.selection_depth:
        return value  # nothing is read at compile time, and nothing changes within a selected operand
    match value:
        case StageTile() | SnapshotAccess():
            return value
        case Access():
            return _snapshot_element(context, value, span)
        case IndexRange(start=start):
            return replace(value, start=freeze_expression(context, start, span))
        case _:
            return _snapshot_parts(context, value, span, is_place=True)


def _snapshot_element(context: Context, access: Access, span: Span) -> Access:
    """Return an access with its indices bound now, which gives the element's value of this moment when it is read.
    Boxes, barriers, tensor memory and reducers only have their indices bound.
    """
    placed = _freeze_indices(context, access, span)
    if not access.is_one_value or access.buffer.scope in ("barrier", "tmem") or access.buffer.name in context.reducers:
        return placed
    read = partial(_read_snapshot, context, placed, mark_moment(context), span, [])
    return SnapshotAccess(placed.buffer, placed.indices, read)


def _read_snapshot(context: Context, value: Value, moment: Moment, span: Span, cell: list[Value]) -> Value:
    """Return a value as of its moment: a load if unchanged and in no newer loop, else a bind inserted there, kept in
    `cell`.
    """
    is_looping = any(is_loop for _, is_loop in context.regions[moment.regions :])
    if not cell and not is_looping and not is_changed_since(context, value, moment):
        return read_element(context, Argument(value, span)).value
    if not cell:
        with insert_at(context, moment):
            cell.append(_read_fully(context, read_element(context, Argument(value, span)).value, span))
    return cell[0]


def _freeze_indices(context: Context, access: Access, span: Span) -> Access:
    """Emit binds for the indices of an access that contain loads, and return the access to the bound variables."""

    def freeze_index(index: tile.Expr | IndexRange) -> tile.Expr | IndexRange:
        """Return an index, or a range with its start, emitted as a bind if it contains loads."""
        if isinstance(index, IndexRange):
            return replace(index, start=freeze_expression(context, index.start, span))
        return freeze_expression(context, index, span)

    return replace(access, indices=tuple(map(freeze_index, access.indices)))


def _snapshot_parts(context: Context, value: Value, span: Span, is_place: bool) -> Value:
    """Emit binds for the expressions in a value's parts, and return it; with `is_place`, its elements stay
    assignable.
    """

    def snapshot_part(part: Value) -> Value:
        """Return one part with its expressions bound; with `is_place` its elements stay assignable."""
        return snapshot_value(context, part, span) if is_place else _read_fully(context, part, span)

    match value:
        case Lanes():
            return vectors.snapshot_vector(context, "now", value, span)
        case tuple():
            items = [snapshot_part(item) for item in value]
            if all(a is b for a, b in zip(items, value, strict=True)):
                return value
            return ListValue(items) if isinstance(value, ListValue) else tuple(items)
        case Dictionary(entries=entries):
            made = tuple(DictionaryEntry(e.key, snapshot_part(e.value), e.span) for e in entries)
            same = all(a.value is b.value for a, b in zip(made, entries, strict=True))
            return value if same else Dictionary(made)
        case _ if isinstance(value, EXPR_TYPES):
            return freeze_expression(context, value, span)
        case _:
            return value


def _read_fully(context: Context, value: Value, span: Span) -> Value:
    """Emit binds for all loads in a value, at any depth, and return it in terms of them; of a box, only for its
    indices.
    """
    if isinstance(value, Access) and not value.is_one_value:
        return _freeze_indices(context, value, span)
    if isinstance(value, Access) and not isinstance(value, SnapshotAccess):
        made = _read_fully(context, read_element(context, Argument(value, span)).value, span)
        if isinstance(value, StageTile):
            return made
        placed = _freeze_indices(context, value, span)
        return SnapshotAccess(placed.buffer, placed.indices, lambda: made)
    return _snapshot_parts(context, value, span, is_place=False)


def _has_loads(expr: tile.Expr) -> bool:
    """Return whether an expression contains a load or inline PTX."""
    return any(isinstance(e, tile.Load | tile.Ptx) for e in tile.walk_expr(expr))


def freeze_expression(context: Context, expr: tile.Expr, span: Span) -> tile.Expr:
    """Emit a bind of an expression that contains loads and return its variable; return other expressions as they are.
    Where threads differ, each thread keeps the value in an array of its own.
    """
    if not _has_loads(expr):
        return expr
    if not context.is_parallel and (per_thread.is_varying(context, expr) or context.is_divergent):
        return per_thread.bind_thread_value(context, "now", expr, span)
    return per_thread.emit_bind(context, "now", expr, span)


# ---- operands without side effects -----------------------------------------------------------------------------------


@contextmanager
def refuse_side_effects(context: Context, what: str, span: Span, way_out: str) -> Iterator[None]:
    """Raise `misplaced-statement` if the operand evaluated in the `with` emits statements that have side effects. It
    counts only if it is selected, but its statements run in any case.
    """
    begin, fresh = mark_moment(context), len(context.buffers)
    with context.altered(selection_depth=context.selection_depth + 1), context.guarded():
        yield
    own = {buffer.name for buffer in context.buffers[fresh:]}
    for stmt in list_statements_since(context, begin):
        if not _has_no_effects(stmt, own):
            title = f"{what} has side effects, but runs only if selected"
            places = () if stmt.span == span else (Label(stmt.span, "changed here"),)
            raise_error("misplaced-statement", title, span, secondary=places, help=way_out)


def _has_no_effects(stmt: tile.Stmt, own: set[str]) -> bool:
    """Return whether a statement only binds values or stores to buffers named in `own`: no operation, print or
    break.
    """
    if isinstance(stmt, tile.Bind):
        return True
    is_operation = any(isinstance(s, tile.TileOp | tile.Print | tile.Break) for s in tile.walk_statements((stmt,)))
    return not is_operation and all(buffer.name in own for buffer in find_writes(stmt))
