"""Elementwise nests that only move data: a copy of a box, a fill of a whole tile, or a gather by cp.async. A gather
fills a box from elements that are no box, or under a condition, chunk by chunk, with zeros where the condition is
false."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import itemgetter

from tilec.analysis.trip_count import get_static_trip_count
from tilec.analysis.usage import find_reads
from tilec.ir import tile
from tilec.ir.affine import Affine, affine_form, reads_elements, row_divisor
from tilec.ir.types import BOOL, INT32
from tilec.ops import registry
from tilec.ops.copies.copy import Copy
from tilec.rewriting.fold_constants import fold_expr
from tilec.rewriting.substitution import substitute_stmt
from tilec.support.records import dataclass


def covers_tile(buffer: tile.Buffer, indices: tuple[tile.Expr, ...], extents: Mapping[tile.Var, int]) -> bool:
    """Return True if the indices, distinct variables or in dimensions of size 1, run through all of a shared tile.
    False for a buffer of another scope."""
    variables = [i for i in indices if isinstance(i, tile.Var)]
    if buffer.scope != "shared" or len(set(variables)) < len(variables):
        return False
    return all(
        extents.get(index) == size if isinstance(index, tile.Var) else size == 1
        for index, size in zip(indices, buffer.shape, strict=True)
    )


def convert_to_copy(nest: tile.Parallel, parts: bool = False) -> Copy | None:
    """Return a nest `S[i, j] = A[a + i, b + j]` to a whole shared tile, or with `parts` to a box of it, as a copy;
    or None. A copy to a box prefers cp.async. Several variables may form an index, as in `S[4 * i + j] = A[4 * i +
    j]`."""
    if len(nest.body) != 1 or not isinstance(nest.body[0], tile.Store):
        return None
    store = nest.body[0]
    load = store.value
    if not isinstance(load, tile.Load) or load.buffer.scope != "global" or load.buffer.dtype != store.buffer.dtype:
        return None
    if store.buffer.scope != "shared" or store.atomic is not None:
        return None
    extents = {v: e for v, e in zip(nest.vars, nest.extents, strict=True) if e > 1}
    single = {v: tile.int32_const(0) for v in nest.vars if v not in extents}
    written, read = (
        _find_box(buffer, tuple(tile.substitute_variables(i, single) for i in indices), extents)
        for buffer, indices in ((store.buffer, store.indices), (load.buffer, load.indices))
    )
    if written is None or read is None or written[1] != read[1]:
        return None
    if {v for digits in written[1] for v, _ in digits} != extents.keys() or not (parts or written[0].is_whole):
        return None
    whole = Copy(read[0], replace(written[0], span=store.span), span=nest.span)
    return whole if written[0].is_whole else replace(whole, prefer_async=True)


_Digits = tuple[tuple[tile.Var, int], ...]
"""Variables that form an index, and the step of each, the smallest first: the digits of a number."""


def _find_box(
    buffer: tile.Buffer, indices: tuple[tile.Expr, ...], extents: dict[tile.Var, int]
) -> tuple[tile.Region, tuple[_Digits, ...]] | None:
    """Return the box that the indices reach in a nest, and the variables of each moving dimension; None if it is no
    box."""
    start: list[tile.Expr] = []
    extent: list[int] = []
    order: list[_Digits] = []
    for index in indices:
        form = affine_form(index)
        moving = ((a, c) for a, c in form.terms if isinstance(a, tile.Var) and a in extents)
        digits = tuple(sorted(moving, key=itemgetter(1)))
        rest = [atom for atom, _ in form.terms if atom not in extents]
        if any(e in extents for atom in rest for e in tile.walk_expr(atom)):
            return None
        size = 1
        for var, step in digits:
            if step != size:
                return None
            size *= extents[var]
        if digits:
            order.append(digits)
        start.append(fold_expr(tile.substitute_variables(index, {var: tile.int32_const(0) for var, _ in digits})))
        extent.append(size)
    variables = [var for digits in order for var, _ in digits]
    if len(set(variables)) < len(variables):
        return None
    return tile.Region(buffer, tuple(start), tuple(extent)), tuple(order)


TileFill = tuple[tile.Buffer, tuple[tile.Expr, ...]]
"""A tile, and the indices written in each iteration of the enclosing loops; () for all elements at once."""

LoopExtents = Mapping[tile.Var, int]
"""Trip counts of the enclosing loops, by their variables, which count from 0 by 1."""


def find_filled_tiles(stmt: tile.Stmt) -> tuple[tile.Buffer, ...]:
    """Return the shared tiles whose every element the statement writes on each path, and none of which it reads."""
    kept = find_reads(stmt)
    return tuple(dict.fromkeys(buffer for buffer, _ in _find_fills((stmt,), {}) if buffer not in kept))


def _find_fills(body: tuple[tile.Stmt, ...], extents: LoopExtents) -> Iterator[TileFill]:
    """Yield the shared tiles that these statements overwrite in full on each path, with the indices of each write."""
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
                if extents:  # the condition may differ between iterations: both branches write the same element
                    yield from (fill for fill in then if fill in orelse)
                else:
                    yield from ((buffer, ()) for buffer in dict(then) if buffer in dict(orelse))
            case _:
                pass


CP_ASYNC_WIDTHS = (16, 8, 4)
"""Bytes of a cp.async."""


@dataclass(frozen=True, slots=True)
class GatheredCopy:
    """A gathered copy to a box of a tile: the element at `vars`, of these extents, is `load` where `condition` holds,
    else 0. With `in_rows` the last variable moves along the tile's rows."""

    destination: tile.Region
    vars: tuple[tile.Var, ...]
    extents: tuple[int, ...]
    load: tile.Load
    condition: tile.Expr
    in_rows: bool

    def choose_width(self, together: int) -> int | None:
        """Return the widest cp.async chunk in bytes (16, 8 or 4) that is contiguous in both buffers, or None.
        `together` counts the contiguous elements of a row of the tile."""
        size = self.load.buffer.dtype.bytes
        return next((w for w in CP_ASYNC_WIDTHS if w % size == 0 and self._is_possible_run(w // size, together)), None)

    def _is_possible_run(self, run: int, together: int) -> bool:
        """Return whether each run of so many elements is contiguous and aligned in both buffers, under one
        condition."""
        if run == 1:
            return True
        if not self.in_rows:
            return False
        var, (*others, last) = self.vars[-1], self.load.indices
        first, *following = _list_forms_of_run(last, var, run)
        into = affine_form(self.destination.start[-1]).divisor
        row = self.destination.buffer.shape[-1]
        aligned = (self.extents[-1], first.divisor, into, row, together, row_divisor(self.load.buffer))
        if any(length % run for length in aligned):
            return False
        if any(replace(first, constant=first.constant + by) != form for by, form in enumerate(following, 1)):
            return False
        if any(len(set(_list_forms_of_run(index, var, run))) > 1 for index in others):
            return False
        return is_constant_per_run(self.condition, var, run)


def _list_forms_of_run(index: tile.Expr, var: tile.Var, run: int) -> list[Affine]:
    """Return the affine forms of an index at each place of an aligned run of `run` values of the variable. A quotient
    by a multiple of `run`, as `(32 * ko + j) // C`, has one form at all of them."""
    start = tile.Binary("mul", var, tile.int32_const(run), INT32)
    places = (tile.Binary("add", start, tile.int32_const(place), INT32) for place in range(run))
    return [affine_form(tile.substitute_variables(index, {var: place})) for place in places]


def is_constant_per_run(condition: tile.Expr, var: tile.Var, run: int) -> bool:
    """Return True if the condition is known to have one value in each aligned run of `run` values of the variable."""
    if var not in set(tile.walk_expr(condition)):
        return True
    match condition:
        case tile.Binary(op="and" | "or", a=a, b=b):
            return is_constant_per_run(a, var, run) and is_constant_per_run(b, var, run)
        case tile.Unary(op="not", a=a):
            return is_constant_per_run(a, var, run)
        case tile.Binary(op="lt" | "ge" | "le" | "gt" | "eq" | "ne" as op, a=a, b=b) if a.dtype == INT32:
            if all(len(set(_list_forms_of_run(side, var, run))) == 1 for side in (a, b)):
                return True
            if op in ("eq", "ne"):
                return False
            form = affine_form(tile.Binary("sub", a, b, INT32))
            moves = [factor for atom, factor in form.terms if var in set(tile.walk_expr(atom))]
            if ((var, 1) not in form.terms and (var, -1) not in form.terms) or len(moves) != 1:
                return False
            # Up, x + r < 0 changes at x = -r and x + r <= 0 one later; down, r - x <= 0 at x = r and r - x < 0 one
            # later.
            later = (-1 if moves[0] == 1 else 1) if (op in ("le", "gt")) == (moves[0] == 1) else 0
            rest = [factor for atom, factor in form.terms if atom != var]
            return all(part % run == 0 for part in (*rest, form.constant + later))
        case _:
            return False


@dataclass(frozen=True, slots=True)
class CopiedElement:
    """An element that a store copies: the load of it, and the condition under which the copy is not 0."""

    load: tile.Load
    condition: tile.Expr


def split_copied_value(value: tile.Expr) -> CopiedElement | None:
    """Return the element that a stored value is, or that a condition replaces by 0; None for other values."""
    if isinstance(value, tile.Load):
        return CopiedElement(value, _TRUE)
    if isinstance(value, tile.Select) and isinstance(value.then, tile.Load) and _is_zero(value.orelse):
        return CopiedElement(value.then, value.condition)
    return None


def choose_thread_copy_width(nest: tile.Parallel, contiguous: int) -> int | None:
    """Return the bytes of the cp.async by which each thread can copy its elements; None where it cannot.

    The nest is that of a T.ptx_cp_async. `contiguous` counts the elements of the shared tile's rows that are adjacent.
    A copy is of neighbours, aligned in both, which lie all inside or all outside the tensor. What it depends on must be
    known when it is issued: constants, and the thread's own registers.
    """
    *guards, store = tile.walk_statements(nest.body)
    if not isinstance(store, tile.Store) or not all(isinstance(s, tile.If) and not s.orelse for s in guards):
        return None
    copied, into = split_copied_value(store.value), store.buffer
    if copied is None or into.dtype.bits < 8 or into.scope != "shared":
        return None
    load, var = copied.load, nest.vars[-1]
    if load.buffer.scope != "global" or load.buffer.dtype != into.dtype or load.buffer.lanes > 1:
        return None
    conditions = (copied.condition, *(s.condition for s in guards if isinstance(s, tile.If)))
    outer = [tile.substitute_variables(side[-1], {var: tile.int32_const(0)}) for side in (load.indices, store.indices)]
    moves = [affine_form(tile.Binary("sub", side[-1], var, INT32)) for side in (load.indices, store.indices)]
    fixed = (*load.indices[:-1], *store.indices[:-1], *conditions, *(atom for form in moves for atom, _ in form.terms))
    parts = [e for part in (*fixed, *outer) for e in tile.walk_expr(part)]
    if var in parts or any(isinstance(e, tile.Load) and e.buffer.scope != "local" for e in parts):
        return None
    lengths = nest.extents[-1], row_divisor(load.buffer), into.shape[-1], contiguous
    aligned = math.gcd(*lengths, *(affine_form(index).divisor for index in outer))
    size = into.dtype.bytes
    return next((w for w in CP_ASYNC_WIDTHS if w % size == 0 and aligned % (w // size) == 0), None)


def analyse_gather(nest: tile.Parallel) -> GatheredCopy | str:
    """Return the nest as a gather from a tensor to a shared tile, or a text that says why cp.async cannot do it."""
    if any(isinstance(stmt, tile.If) for stmt in nest.body):
        return "it stores under `if`; write T.if_then_else(condition, element, 0), which stores 0 otherwise"
    *binds, store = nest.body
    if not isinstance(store, tile.Store) or store.atomic is not None or store.previous is not None:
        return "it does more than store to one tile"
    values: dict[tile.Var, tile.Expr] = {}
    for bind in binds:
        if not isinstance(bind, tile.Bind):
            return "it does more than store to one tile"
        values[bind.var] = tile.substitute_variables(bind.value, values)
    store = substitute_stmt(store, values) if values else store
    assert isinstance(store, tile.Store)
    if store.buffer.scope != "shared":
        return f"{store.buffer.name} is not a shared tile"
    load, condition = store.value, _TRUE
    if isinstance(guarded := load, tile.Select):
        if _is_zero(guarded.orelse):
            load, condition = guarded.then, guarded.condition
        elif _is_zero(guarded.then):
            load, condition = guarded.orelse, tile.Unary("not", guarded.condition, BOOL)
        else:
            return "it stores something other than 0 where its condition is false"
    if isinstance(load, tile.Cast) and isinstance(load.a, tile.Load):
        return "it converts the elements to another type"
    if not isinstance(load, tile.Load) or load.buffer.scope != "global":
        return "it stores a computed value, not an unchanged tensor element"
    if load.buffer.dtype != store.buffer.dtype or load.buffer.dtype.bits < 8:
        return f"it would have to convert or unpack elements of {load.buffer.dtype}"
    extents = {v: e for v, e in zip(nest.vars, nest.extents, strict=True) if e > 1}
    single_values: dict[tile.Var, tile.Expr] = {v: tile.int32_const(0) for v in nest.vars if v not in extents}
    parts = (*store.indices, *load.indices, condition)
    if any(map(reads_elements, parts)):
        return "its indices or its condition depend on loaded values"
    order: list[tile.Var | None] = []
    for index in store.indices:
        terms = affine_form(tile.substitute_variables(index, single_values)).terms
        moving = [(atom, factor) for atom, factor in terms if any(e in extents for e in tile.walk_expr(atom))]
        if len(moving) > 1 or (moving and (moving[0][1] != 1 or moving[0][0] not in extents)):
            return f"the elements it stores are not a box of {store.buffer.name}"
        var = moving[0][0] if moving else None
        order.append(var if isinstance(var, tile.Var) else None)
    variables = tuple(v for v in order if v is not None)
    if len(set(variables)) < len(variables) or set(variables) != extents.keys():
        return f"the elements it stores are not a box of {store.buffer.name}"
    corner = single_values | {v: tile.int32_const(0) for v in extents}
    start = tuple(fold_expr(tile.substitute_variables(index, corner)) for index in store.indices)
    box = tile.Region(store.buffer, start, tuple(1 if v is None else extents[v] for v in order), store.span)
    found = GatheredCopy(
        box,
        variables,
        tuple(extents[v] for v in variables),
        tile.Load(load.buffer, tuple(fold_expr(tile.substitute_variables(i, single_values)) for i in load.indices)),
        fold_expr(tile.substitute_variables(condition, single_values)),
        order[-1] is not None,
    )
    if not variables or found.choose_width(0) is None:
        return f"no {CP_ASYNC_WIDTHS[-1]} bytes are contiguous in both, under one value of the condition"
    return found


WIDE_CHUNK = 8
"""The least bytes of a chunk for which a gather is made asynchronous unasked: by narrower ones it takes as many
instructions as through registers."""


def mark_gathers(body: tuple[tile.Stmt, ...]) -> tuple[tile.Stmt, ...]:
    """Return a pipelined loop's body in which nests that gather a tile in wide chunks are marked as asynchronous
    copies. They then overlap with computation, as copies of boxes do."""
    return tuple(
        replace(stmt, asynchronous=True)
        if isinstance(stmt, tile.Parallel)
        and stmt.layout is None
        and not stmt.is_per_thread
        and isinstance(found := analyse_gather(stmt), GatheredCopy)
        and (found.choose_width(0) or 0) >= WIDE_CHUNK
        else stmt
        for stmt in body
    )


_TRUE: tile.Expr = tile.Const(True, BOOL)


def _is_zero(expr: tile.Expr) -> bool:
    """Return True if the expression is the constant 0, but not -0.0."""
    return isinstance(expr, tile.Const) and expr.value == 0 and math.copysign(1, expr.value) == 1
