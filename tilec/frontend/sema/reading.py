"""When a value is read. A kernel's expressions are evaluated in Python's order, but what stands here for a value may be
an element or an expression that no statement has read yet. It is read late only where nothing in between changes it.

* `settled`: a value of an expression whose other parts were evaluated behind it. Where one of them has changed what the
  value reads, the value is read at its own moment: a bind is put in there.
* `held`: a value that gets a name, as an argument of a macro does. An element stays a place too, as a corner of a box
  or for an atomic operation; what it holds is that of its moment.
* `only_reading`: an operand that runs only where it is selected must not change anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from tilec.frontend.sema import fragment_elements, per_thread, vectors
from tilec.frontend.sema.bounds import check_access
from tilec.frontend.sema.context import Context
from tilec.ir import tile
from tilec.ops.signature import Argument, as_expr
from tilec.ops.values import (
    EXPR_TYPES,
    Access,
    Dictionary,
    Entry,
    Held,
    HeldAccess,
    Lanes,
    Listed,
    Range,
    StageTile,
    Value,
)
from tilec.passes.analysis.usage import writes
from tilec.support.diagnostics import Label, fail
from tilec.support.records import dataclass
from tilec.support.source import Span

# ---- moments ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class Moment:
    """A point between two statements: `after` is the last one of the list `out` then, if there was one. The others say
    what stood around it: how many regions, which conditions, and whether a nest did."""

    out: list[tile.Stmt]
    after: tile.Stmt | None
    regions: int
    masks: tuple[tile.Expr, ...]
    is_parallel: bool
    guards: int

    @property
    def place(self) -> int:
        """Where a statement of this moment goes in its list."""
        if self.after is None:
            return 0
        return next(at for at in range(len(self.out), 0, -1) if self.out[at - 1] is self.after)


def now(context: Context) -> Moment:
    """The moment behind the last statement that has been made."""
    after = context.out[-1] if context.out else None
    regions, masks = len(context.regions), tuple(context.masks)
    return Moment(context.out, after, regions, masks, context.is_parallel, context.guards)


@contextmanager
def at(context: Context, moment: Moment) -> Iterator[None]:
    """Inside, statements are made as if the moment were now."""
    outer = context.out, context.masks, context.is_parallel, context.guards
    context.out, context.masks = [], list(moment.masks)
    context.is_parallel, context.guards = moment.is_parallel, moment.guards
    try:
        yield
        made = context.out
    finally:
        context.out, context.masks, context.is_parallel, context.guards = outer
    place = moment.place
    moment.out[place:place] = made
    context.names[:] = [
        replace(n, at=n.at + len(made)) if n.out is moment.out and n.at > place else n for n in context.names
    ]


def since(context: Context, moment: Moment) -> list[tile.Stmt]:
    """The statements that have been made since, those of regions that are still open too."""
    if context.out is moment.out and (context.out[-1] if context.out else None) is moment.after:
        return []
    found = moment.out[moment.place :]
    lists = [out for out, _ in context.regions[moment.regions :]]
    if context.out is not moment.out and not any(out is context.out for out in lists):
        lists.append(context.out)
    return [*found, *(stmt for out in lists for stmt in out)]


def is_changed(context: Context, value: Value, moment: Moment) -> bool:
    """Whether a statement since may have changed what the value reads."""
    made = since(context, moment)
    if not made:
        return False
    read = set(_loaded(context, value))
    return bool(read) and any(_may_change(context, stmt, read) for stmt in made)


_ANYTHING = "anything"
"""Among the names of what is read: nobody knows what else."""


def _loaded(context: Context, value: Value) -> Iterator[str]:
    """The names of the buffers that a value reads when it is used. What is held has its own moment."""
    match value:
        case HeldAccess():
            return
        case Access(buffer=buffer, indices=indices):
            if not value.has_extent or value.is_vector:
                yield _root(context, buffer)
            for index in indices:
                yield from _loaded(context, index.start if isinstance(index, Range) else index)
        case Lanes(parts=parts):
            for part in parts:
                yield from _loaded(context, part)
        case tuple():
            for item in value:
                yield from _loaded(context, item)
        case Dictionary(entries=entries):
            for entry in entries:
                yield from _loaded(context, entry.value)
        case _ if isinstance(value, EXPR_TYPES):
            for part in tile.walk_expr(value):
                if isinstance(part, tile.Load):
                    yield _root(context, part.buffer)
                elif isinstance(part, tile.Ptx):
                    yield _ANYTHING
        case _:
            return


def _root(context: Context, buffer: tile.Buffer) -> str:
    """The name of the memory that a buffer lies in; tensors at addresses may be the same one."""
    if buffer.scope == "global" and context.pointers:
        return "the tensors"
    return context.views.get(buffer.name, buffer).name


def _may_change(context: Context, stmt: tile.Stmt, read: set[str]) -> bool:
    if isinstance(stmt, tile.Bind):
        return False
    written = writes(stmt)
    if _ANYTHING in read and written:
        return True
    if any(_root(context, buffer) in read for buffer in written):
        return True
    # Behind a barrier stands what others have written.
    return any(isinstance(s, tile.TileOp) and not writes(s) for s in tile.walk((stmt,)))


# ---- reading ---------------------------------------------------------------------------------------------------------


def read(context: Context, argument: Argument) -> Argument:
    """An indexed buffer as one of its elements."""
    access, span = argument.value, argument.span
    if not isinstance(access, Access) or (access.has_extent and not access.is_vector):
        return argument
    if isinstance(access, HeldAccess):
        return Argument(access.read(), span)
    if access.is_vector:
        return Argument(vectors.loaded(context, access, span), span)
    if fragment_elements.is_spread(context, access):
        return Argument(fragment_elements.read(context, access, span), span)
    check_access(context, access, span, "read")
    if access.buffer.scope == "barrier":
        fail("not-a-scalar", "a barrier has no value", span, help="write T.barrier_wait(barrier, parity)")
    return Argument(as_expr(argument), span)


def settled(context: Context, argument: Argument, moment: Moment) -> Argument:
    """A value that was evaluated at this moment, unchanged by what has been done since."""
    if not is_changed(context, argument.value, moment):
        return argument
    with at(context, moment):
        return Argument(_read_now(context, argument.value, argument.span), argument.span)


def settled_argument(context: Context, argument: Argument, moment: Moment) -> Argument:
    """The same of what may be given to a parameter that is set: a variable stays a place too."""
    value, now = argument.value, settled(context, argument, moment)
    if now is argument or not isinstance(value, tile.Load) or value.buffer.name not in context.mutable:
        return now
    return Argument(HeldAccess(value.buffer, value.indices, lambda: now.value), argument.span)


def settled_place(context: Context, access: Access, moment: Moment, span: Span) -> Access:
    """The place that the access meant at this moment."""
    if not any(is_changed(context, i.start if isinstance(i, Range) else i, moment) for i in access.indices):
        return access
    with at(context, moment):
        return _placed(context, access, span)


def held(context: Context, value: Value, span: Span) -> Value:
    """A value that gets a name, as it is now. It is read at once only if it is used where it may have changed."""
    if isinstance(value, EXPR_TYPES) and _is_unread(value) and context.dispatch.statements:
        return Held(value, partial(_read_held, context, value, now(context), span, []))
    return kept(context, value, span)


def kept(context: Context, value: Value, span: Span) -> Value:
    """A value that gets a name or becomes a part of one: expressions are read, and elements held."""
    if not context.dispatch.statements or context.selections:
        return value  # at compile time nothing is read; where nothing may be changed it does not matter when
    match value:
        case StageTile() | HeldAccess():
            return value
        case Access():
            return _held_element(context, value, span)
        case _:
            return _each(context, value, span, is_place=True)


def _held_element(context: Context, access: Access, span: Span) -> Access:
    placed = _placed(context, access, span)
    is_element = not access.has_extent or access.is_vector
    if not is_element or access.buffer.scope in ("barrier", "tmem") or access.buffer.name in context.reducers:
        return placed
    return HeldAccess(placed.buffer, placed.indices, partial(_read_held, context, placed, now(context), span, []))


def _read_held(context: Context, value: Value, moment: Moment, span: Span, cell: list[Value]) -> Value:
    """What the value was at its moment. In a loop that has begun since it is read before the loop, whose next iteration
    may find something else."""
    is_looping = any(is_loop for _, is_loop in context.regions[moment.regions :])
    if not cell and not is_looping and not is_changed(context, value, moment):
        return read(context, Argument(value, span)).value
    if not cell:
        with at(context, moment):
            cell.append(_read_now(context, read(context, Argument(value, span)).value, span))
    return cell[0]


def _placed(context: Context, access: Access, span: Span) -> Access:
    """The access, whose indices stay what they are now."""
    indices = tuple(
        replace(i, start=frozen(context, i.start, span)) if isinstance(i, Range) else frozen(context, i, span)
        for i in access.indices
    )
    return replace(access, indices=indices)


def _each(context: Context, value: Value, span: Span, is_place: bool) -> Value:
    """The value with all that is in it read; with `is_place` elements are held."""

    def inside(part: Value) -> Value:
        return kept(context, part, span) if is_place else _read_now(context, part, span)

    match value:
        case Lanes():
            return vectors.kept(context, "now", value, span)
        case tuple():
            items = [inside(item) for item in value]
            if all(a is b for a, b in zip(items, value, strict=True)):
                return value
            return Listed(items) if isinstance(value, Listed) else tuple(items)
        case Dictionary(entries=entries):
            made = tuple(Entry(e.key, inside(e.value), e.span) for e in entries)
            same = all(a.value is b.value for a, b in zip(made, entries, strict=True))
            return value if same else Dictionary(made)
        case _ if isinstance(value, EXPR_TYPES):
            return frozen(context, value, span)
        case _:
            return value


def _read_now(context: Context, value: Value, span: Span) -> Value:
    """The value, of which nothing is left to be read."""
    if isinstance(value, Access) and value.has_extent and not value.is_vector:
        return _placed(context, value, span)
    if isinstance(value, Access) and not isinstance(value, HeldAccess):
        made = _read_now(context, read(context, Argument(value, span)).value, span)
        if isinstance(value, StageTile):
            return made
        placed = _placed(context, value, span)
        return HeldAccess(placed.buffer, placed.indices, lambda: made)
    return _each(context, value, span, is_place=False)


def _is_unread(expr: tile.Expr) -> bool:
    return any(isinstance(e, tile.Load | tile.Ptx) for e in tile.walk_expr(expr))


def frozen(context: Context, expr: tile.Expr, span: Span) -> tile.Expr:
    """What the expression comes to now."""
    if not _is_unread(expr):
        return expr
    if not context.is_parallel and (per_thread.is_varying(context, expr) or context.masks):
        return per_thread.named(context, "now", expr, span)
    var = tile.Var(context.unique.take("now"), expr.dtype)
    if per_thread.is_varying(context, expr):
        context.varying.add(var)
    context.out.append(tile.Bind(var, expr, span))
    return var


# ---- what must not change anything -----------------------------------------------------------------------------------


@contextmanager
def only_reading(context: Context, what: str, span: Span, way_out: str) -> Iterator[None]:
    """Inside, an operand is evaluated that runs only where it is selected: what it would change would be changed in any
    case. Errors: `misplaced-statement`."""
    begin, fresh = now(context), len(context.buffers)
    context.selections += 1
    try:
        with context.guarded():
            yield
    finally:
        context.selections -= 1
    own = {buffer.name for buffer in context.buffers[fresh:]}
    for stmt in since(context, begin):
        if not _only_reads(stmt, own):
            fail(
                "misplaced-statement",
                f"{what} changes something, and runs only where it is selected",
                span,
                secondary=() if stmt.span == span else (Label(stmt.span, "changed here"),),
                help=way_out,
            )


def _only_reads(stmt: tile.Stmt, own: set[str]) -> bool:
    """Whether the statement only gives values names, or stores them where nothing else is."""
    if isinstance(stmt, tile.Bind):
        return True
    is_operation = any(isinstance(s, tile.TileOp | tile.Print | tile.Break) for s in tile.walk((stmt,)))
    return not is_operation and all(buffer.name in own for buffer in writes(stmt))
