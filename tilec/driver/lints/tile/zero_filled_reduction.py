"""zero-filled-reduction: reductions over elements that lie outside of their tensor.

Where a copy reaches beyond a tensor, the tile is filled with zeros. A maximum is then at least 0, and a sum of
exponentials gets exp(0 - largest) for each of them. The tail of a tile is the part beyond its tensor along one
dimension. It is followed from the copy through elementwise loops: it holds zeros, values made of zeros, or is unknown.

In doubt nothing is reported: launch-time sizes, conditions, and any other write to the tile make the tail unknown. So
does a `T.if_then_else` whose condition keeps the arm that reads the tail inside of the tensor, as `j < N` does. A
condition that lets elements beyond the tensor pass, such as the `j <= i` of a causal mask, changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

from tilec.analysis.trip_count import get_static_trip_count
from tilec.analysis.usage import find_writes
from tilec.driver.lints.registry import TILE, register_warning
from tilec.ir import tile
from tilec.ir.affine import add_exprs, affine_form
from tilec.ir.types import INT32
from tilec.ops.copies.copy import Copy
from tilec.ops.reductions.reduce import Reduce
from tilec.passes.state import KernelState
from tilec.support.diagnostics import Diagnostic, Label, make_warning
from tilec.support.records import dataclass
from tilec.support.source import Span

TailKind = Literal["same", "zero", "other", "unknown"]
"""An expression's value in the tail: as everywhere, zero, made of zeros, or unknown."""

_KEEP_ZERO = frozenset(
    {"sqrt", "sinh", "tanh", "erf", "abs", "sin", "tan", "atan", "floor", "ceil", "trunc", "round", "nearbyint"}
)
_LOSE_ZERO = frozenset(
    {"exp", "exp2", "exp10", "sigmoid", "cos", "cosh", "log", "log2", "log10", "rsqrt", "reciprocal"}
)
_EXPONENTIALS = frozenset({"exp", "exp2", "exp10", "sigmoid"})
"""Functions that map minus infinity to 0."""


@dataclass(frozen=True, slots=True)
class _Tail:
    """The tail of a tile: zeros, which may be its least values, or values made of zeros, perhaps by an exponential.
    `span` is the statement that read beyond the tensor. Element p of the tile's dimension is element
    `start` + p of the tensor's, which has `size` of them; None where that is unknown."""

    tensor: tile.Buffer
    span: Span
    size: int
    start: tile.Expr | None
    is_zero: bool = True
    is_least: bool = False
    by_exponential: bool = False


_NEGATED = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}

TileDimension = tuple[tile.Buffer, int]
"""A tile and one of its dimensions."""
Ranges = dict[tile.Expr, tuple[int, float]]
"""The first and last value of each variable that takes every value between. The last is infinite where the launch
decides it."""


@register_warning(TILE)
def find_zero_filled_reductions(work: KernelState) -> Iterator[Diagnostic]:
    """Yield a warning for each statement that reads beyond a tensor, at the first reduction whose result it spoils."""
    kernel = work.source_kernel
    ranges: Ranges = {}
    for var, extent in zip(kernel.block_vars, kernel.grid, strict=False):
        ranges[var] = (0, extent - 1 if isinstance(extent, int) else math.inf)
    warned: set[Span] = set()
    for found, at in _TailTracker().follow(kernel.body, ranges):
        if at not in warned:
            warned.add(at)
            yield found


class _TailTracker:
    """The known tails while statements are visited in program order."""

    def __init__(self) -> None:
        self.tails: dict[TileDimension, _Tail] = {}

    def follow(self, body: tuple[tile.Stmt, ...], ranges: Ranges) -> Iterator[tuple[Diagnostic, Span]]:
        """Update the tails by statements in order; yield a warning, with the read's span, for each spoilt reduction."""
        for stmt in body:
            match stmt:
                case tile.For():
                    yield from self.follow(stmt.body, ranges | _get_loop_range(stmt))
                case tile.If() | tile.While():
                    for inner in tile.nested_bodies(stmt):
                        yield from self.follow(inner, {})
                    self._forget_written(stmt)
                case Reduce():
                    yield from self._check_reduction(stmt)
                    self._forget_written(stmt)
                case Copy(regions=(source, destination)):
                    tails = _find_copied_tails(source, destination, self.tails, ranges)
                    self._forget_written(stmt)
                    self.tails |= tails
                case tile.Parallel():
                    tails = self._find_computed_tails(stmt, ranges)
                    self._forget_written(stmt)
                    self.tails |= tails
                case _:
                    self._forget_written(stmt)

    def _forget_written(self, stmt: tile.Stmt) -> None:
        """Remove the recorded tails of the buffers that the statement writes."""
        written = find_writes(stmt)
        self.tails = {place: tail for place, tail in self.tails.items() if place[0] not in written}

    def _check_reduction(self, op: Reduce) -> Iterator[tuple[Diagnostic, Span]]:
        """Yield a warning if the reduction includes elements from beyond a tensor that change its result."""
        long = [d for d, extent in enumerate(op.source.extent) if extent != 1]
        dim = long[op.dim] if op.dim < len(long) else op.dim
        tail = self.tails.get((op.source.buffer, dim))
        if tail is None or not op.source.is_whole or (tail.is_zero and _is_neutral(op, tail)):
            return
        name = op.source.buffer.name
        becomes = "" if tail.is_zero else ", and loops in between change these zeros"
        title = f"T.reduce_{op.kind} includes elements outside of {tail.tensor.name}"
        label = f"{name} extends beyond {tail.tensor.name} and is zero there{becomes}"
        reads, advice = (Label(tail.span, f"reads beyond {tail.tensor.name}"),), _suggest_fix(op, tail)
        yield make_warning("zero-filled-reduction", title, op.span, label, secondary=reads, help=advice), tail.span

    def _find_computed_tails(self, nest: tile.Parallel, ranges: Ranges) -> dict[TileDimension, _Tail]:
        """Return the tails that an elementwise loop stores; none unless its statements are unconditional and not
        atomic.
        """
        if nest.is_per_thread or not all(_is_plain(stmt) for stmt in nest.body):
            return {}
        found: dict[TileDimension, _Tail] = {}
        before = self.tails
        everywhere = ranges | {v: (0, e - 1) for v, e in zip(nest.vars, nest.extents, strict=True)}
        for var in nest.vars:
            evaluated = _TailEvaluator(var, before, everywhere, nest.span)
            for stmt in nest.body:
                if isinstance(stmt, tile.Bind):
                    evaluated.bind(stmt)
                elif isinstance(stmt, tile.Store):
                    dims = [d for d, index in enumerate(stmt.indices) if index == var]
                    kind = evaluated.value(stmt.value)
                    tail = evaluated.tail
                    is_followed = kind in ("zero", "other") and len(dims) == 1 and stmt.buffer.scope != "global"
                    if tail is not None and is_followed:
                        found[stmt.buffer, dims[0]] = replace(
                            tail,
                            is_zero=kind == "zero",
                            is_least=_is_never_negative(stmt.value),
                            by_exponential=evaluated.has_exponential,
                        )
        return found


def _is_plain(stmt: tile.Stmt) -> bool:
    """Return whether a statement is a bind or a plain store: it always runs, and changes one element at most."""
    return isinstance(stmt, tile.Bind) or (isinstance(stmt, tile.Store) and stmt.atomic is None)


class _TailEvaluator:
    """Evaluates expressions in the tail of one variable of an elementwise loop."""

    def __init__(self, var: tile.Var, tails: Mapping[TileDimension, _Tail], ranges: Ranges, span: Span) -> None:
        self.var, self.tails, self.ranges, self.span = var, tails, ranges, span
        self.tail: _Tail | None = None
        self.bound: dict[tile.Var, tuple[TailKind, _Tail | None]] = {}
        self.meaning: dict[tile.Var, tile.Expr] = {}
        self.has_exponential = False

    def bind(self, stmt: tile.Bind) -> None:
        """Record a variable's kind of value in the tail, the tail that it reads, and its meaning."""
        self.bound[stmt.var] = self._evaluate_with_tail(stmt.value)
        self.meaning[stmt.var] = stmt.value

    def _evaluate_with_tail(self, expr: tile.Expr) -> tuple[TailKind, _Tail | None]:
        """Return an expression's kind of value in the tail, and the tail that it reads, if any."""
        before, self.tail = self.tail, None
        made = self.value(expr)
        read, self.tail = self.tail, before
        return made, read

    def value(self, expr: tile.Expr) -> TailKind:
        """Return an expression's kind of value in the tail (same, zero, other, unknown); set `self.tail` if it reads
        one.
        """
        match expr:
            case tile.Const(value=value):
                return "zero" if value == 0 else "same"
            case tile.Var() if expr in self.bound:
                made, tail = self.bound[expr]
                self.tail = tail or self.tail
                return made
            case tile.Var():
                return "unknown" if expr == self.var else "same"
            case tile.Load():
                return self._evaluate_load(expr)
            case tile.Cast(a=a):
                return self.value(a)
            case tile.Unary(op="neg", a=a):
                return self.value(a)
            case tile.Binary(op=op, a=a, b=b):
                return _combine_kinds(op, self.value(a), self.value(b))
            case tile.Call(fn=fn, args=(a,)) if fn in _KEEP_ZERO or fn in _LOSE_ZERO:
                made = self.value(a)
                self.has_exponential |= fn in _EXPONENTIALS and made in ("zero", "other")
                return "other" if made == "zero" and fn in _LOSE_ZERO else made
            case tile.Select():
                return self._evaluate_select(expr)
            case _:
                parts = [self.value(child) for child in tile.direct_operands(expr)]
                return "same" if parts and all(part == "same" for part in parts) else "unknown"

    def _evaluate_select(self, select: tile.Select) -> TailKind:
        """Return a choice's kind of value in the tail; unknown if its condition may keep an arm inside the tensor."""
        made: list[TailKind] = []
        for arm, holds in ((select.then, True), (select.orelse, False)):
            value, tail = self._evaluate_with_tail(arm)
            made.append(value)
            if tail is not None and self._may_stay_inside(arm, tail, select.condition, holds):
                made.append("unknown")
            self.tail = tail or self.tail
        if "unknown" in made:
            return "unknown"
        return "other" if "other" in made else "zero" if "zero" in made else "same"

    def _may_stay_inside(self, arm: tile.Expr, tail: _Tail, condition: tile.Expr, holds: bool) -> bool:
        """Return whether a select may take this arm for elements of the tensor only; True if unsure."""
        if tail.start is None:
            return True
        known = [bound for load in self._list_loads(arm) for bound in self._list_inside_sums(load)]
        index = add_exprs(tail.start, self.var)
        edges = [_add_number(index, 1 - tail.size)]  # at most 0 below the upper edge
        if _bound_sum(index, self.ranges)[0] < 0:
            edges.append(_subtract(tile.int32_const(0), index))
        return all(self._implies_bound(edge, condition, holds, known) for edge in edges)

    def _list_loads(self, expr: tile.Expr) -> Iterator[tile.Load]:
        """Yield the loads of an expression, and of the values of the variables that it names."""
        left, seen = [expr], {expr}
        while left:
            for part in tile.walk_expr(left.pop()):
                if isinstance(part, tile.Load):
                    yield part
                elif isinstance(part, tile.Var) and part in self.meaning and (value := self.meaning[part]) not in seen:
                    seen.add(value)
                    left.append(value)

    def _list_inside_sums(self, load: tile.Load) -> Iterator[tile.Expr]:
        """Yield expressions that are at most 0 where the load's other indices are inside the tensor."""
        for dim, index in enumerate(load.indices):
            if self.var in tile.find_variables(index):
                continue
            size = load.buffer.extents[dim]
            if load.buffer.scope == "global":
                if isinstance(size, int):
                    yield _add_number(index, 1 - size)
            elif (tail := self.tails.get((load.buffer, dim))) is not None and tail.start is not None:
                yield _add_number(add_exprs(tail.start, index), 1 - tail.size)

    def _implies_bound(self, edge: tile.Expr, condition: tile.Expr, holds: bool, known: list[tile.Expr]) -> bool:
        """Return whether a condition that is true (`holds`) or false implies `edge` ≤ 0; True if it cannot be told."""
        match condition:
            case tile.Unary(op="not", a=a):
                return self._implies_bound(edge, a, not holds, known)
            case tile.Binary(op="and" | "or" as op, a=a, b=b):
                either = any if (op == "and") == holds else all
                return either([self._implies_bound(edge, part, holds, known) for part in (a, b)])
            case tile.Binary(op=op, a=a, b=b) if op in tile.COMPARISONS and not a.dtype.is_float:
                return self._comparison_implies_bound(edge, _NEGATED[op] if not holds else op, a, b, known)
            case tile.Var() if condition in self.meaning:
                return self._implies_bound(edge, self.meaning[condition], holds, known)
            case _:
                return not isinstance(condition, tile.Const)

    def _comparison_implies_bound(
        self, edge: tile.Expr, op: str, a: tile.Expr, b: tile.Expr, known: list[tile.Expr]
    ) -> bool:
        """Return whether `a op b` implies `edge` ≤ 0; True if that cannot be told."""
        less, more = _subtract(a, b), _subtract(b, a)
        if any(atom not in self.ranges for atom, _ in affine_form(less).terms):
            return True
        given = {
            "lt": [_add_number(less, 1)], "le": [less], "gt": [_add_number(more, 1)], "ge": [more],
            "eq": [less, more], "ne": [],
        }[op]  # fmt: skip
        rests = [_subtract(edge, form) for form in given]
        rests += [_subtract(rest, form) for rest in rests for form in known]
        return any(_bound_sum(rest, self.ranges)[1] <= 0 for rest in rests)

    def _evaluate_load(self, load: tile.Load) -> TailKind:
        """Return a load's kind of value in the tail of its tensor or tile; set `self.tail` to that tail if known."""
        named = [d for d, index in enumerate(load.indices) if self.var in tile.find_variables(index)]
        if not named:
            return "same"
        if len(named) > 1:
            return "unknown"
        (dim,) = named
        if load.buffer.scope == "global":
            tail = _find_tail(load.buffer, dim, load.indices[dim], 1, self.ranges, self.span, self.var)
        else:
            tail = self.tails.get((load.buffer, dim)) if load.indices[dim] == self.var else None
        if tail is None:
            return "unknown"
        self.tail = tail
        self.has_exponential |= tail.by_exponential
        return "zero" if tail.is_zero else "other"


def _combine_kinds(op: str, a: TailKind, b: TailKind) -> TailKind:
    """Return the kind of an operator's result in the tail, from its operands' kinds: 0 times anything is zero."""
    if op == "mul" and "zero" in (a, b):
        return "zero"
    if op == "div" and a == "zero" and b != "zero":
        return "zero"
    if "unknown" in (a, b) or op not in ("add", "sub", "mul", "div", "max", "min"):
        return "unknown"
    if a == b:
        return a
    return "other"


def _is_never_negative(value: tile.Expr) -> bool:
    """Return whether a value's form shows that it is never negative, such as abs, x · x or a maximum with 0."""
    match value:
        case tile.Call(fn="abs") | tile.Cast(a=tile.Call(fn="abs")):
            return True
        case tile.Const(value=constant):
            return constant >= 0
        case tile.Select(then=a, orelse=b):
            return _is_never_negative(a) and _is_never_negative(b)
        case tile.Binary(op="mul", a=a, b=b):
            return a == b
        case tile.Binary(op="max", a=a, b=b):
            return any(isinstance(part, tile.Const) and part.value >= 0 for part in (a, b))
        case _:
            return False


def _is_neutral(op: Reduce, tail: _Tail) -> bool:
    """Return whether zeros in the tail leave the reduction's result as it is."""
    if op.kind == "max":
        return tail.is_least or op.source.buffer.dtype.kind in ("uint", "bool")
    return op.kind not in ("min", "bitand")


def _suggest_fix(op: Reduce, tail: _Tail) -> str:
    """Return the advice for a reduction over a tail: annotate a safe value for the tensor, or mask the elements."""
    infinity = f'T.infinity("{tail.tensor.dtype.name}")'
    if tail.tensor.dtype.is_float and (op.kind in ("max", "min") and tail.is_zero):
        return f"write T.annotate_safe_value({{{tail.tensor.name}: {'-' * (op.kind == 'max')}{infinity}}})"
    if tail.tensor.dtype.is_float and op.kind == "sum" and tail.by_exponential:
        return f"write T.annotate_safe_value({{{tail.tensor.name}: -{infinity}}}), whose exponential is 0"
    if tail.is_zero:
        return f"write T.annotate_safe_value({{{tail.tensor.name}: value}}), with the neutral value of the reduction"
    return f"mask the elements of {op.source.buffer.name} outside of {tail.tensor.name} with T.if_then_else"


# ---- what reads beyond a tensor --------------------------------------------------------------------------------------


def _find_copied_tails(
    source: tile.Region, destination: tile.Region, tails: Mapping[TileDimension, _Tail], ranges: Ranges
) -> dict[TileDimension, _Tail]:
    """Return the tails of a copy's destination in dimensions that it fills: new beyond a tensor, or its source's.

    Of a source, only a whole tile counts.
    """
    source_dims = [d for d, extent in enumerate(source.extent) if extent != 1]
    destination_dims = [d for d, extent in enumerate(destination.extent) if extent != 1]
    if destination.buffer.scope == "global" or len(source_dims) != len(destination_dims):
        return {}
    found: dict[TileDimension, _Tail] = {}
    for a, b in zip(source_dims, destination_dims, strict=True):
        if destination.extent[b] != destination.buffer.extents[b]:
            continue
        if source.buffer.scope == "global":
            tail = _find_tail(source.buffer, a, source.start[a], source.extent[a], ranges, source.span)
        else:
            tail = tails.get((source.buffer, a)) if source.is_whole else None
        if tail is not None:
            found[destination.buffer, b] = tail
    return found


def _find_tail(
    tensor: tile.Buffer, dim: int, start: tile.Expr, extent: int, ranges: Ranges, at: Span, var: tile.Var | None = None
) -> _Tail | None:
    """Return the tail of `extent` elements from `start` on, if their range is known to leave the tensor; else None.

    With `var`, the variable of a loop, `start` is an index that depends on it.
    """
    size = tensor.extents[dim]
    first, last = _bound_sum(start, ranges)
    if not isinstance(size, int) or math.isinf(first) or math.isinf(last) or (first >= 0 and last + extent <= size):
        return None
    if var is None:
        return _Tail(tensor, at, size, start)
    return _Tail(tensor, at, size, _subtract(start, var) if (var, 1) in affine_form(start).terms else None)


# ---- sums of variables -----------------------------------------------------------------------------------------------


def _add_number(expr: tile.Expr, number: int) -> tile.Expr:
    return add_exprs(expr, tile.int32_const(number))


def _subtract(a: tile.Expr, b: tile.Expr) -> tile.Expr:
    return tile.Binary("sub", a, b, INT32)


def _bound_sum(expr: tile.Expr, ranges: Ranges) -> tuple[float, float]:
    """Return the smallest and the largest value of an affine expression; infinite if a variable's range is unknown."""
    form = affine_form(expr)
    if any(atom not in ranges for atom, _ in form.terms):
        return -math.inf, math.inf
    ends = [sorted(factor * value for value in ranges[atom]) for atom, factor in form.terms]
    return form.constant + sum(low for low, _ in ends), form.constant + sum(high for _, high in ends)


def _get_loop_range(loop: tile.For) -> Ranges:
    """Return the first and last value of a loop's variable, by the variable; empty if the bounds are unknown."""
    count = get_static_trip_count(loop)
    if count is None or count < 1 or not isinstance(loop.start, tile.Const):
        return {}
    first = int(loop.start.value)
    return {loop.var: (first, first + (count - 1) * loop.step)}
