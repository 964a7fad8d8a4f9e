"""zero-filled-reduction: reductions over elements that lie outside of their tensor.

Where a copy reaches beyond a tensor, the tile is filled with zeros. A maximum is then at least 0, and a sum of
exponentials gets exp(0 - largest) for each of them. The tail of a tile is the part beyond its tensor along one
dimension. It is followed from the copy through elementwise loops: it holds zeros, values made of zeros, or is unknown.

In doubt nothing is reported: launch-time sizes, conditions, and any other write to the tile make the tail unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from tilec.driver.lints.registry import TILE, warns
from tilec.driver.work import Work
from tilec.ir import tile
from tilec.ir.affine import affine
from tilec.ops.copy import Copy
from tilec.ops.reduce import Reduce
from tilec.passes.analysis.trip_count import static_trip_count
from tilec.passes.analysis.usage import writes
from tilec.support.diagnostics import Diagnostic, Label, warning
from tilec.support.records import dataclass
from tilec.support.source import Span

Made = Literal["same", "zero", "other", "unknown"]
"""An expression's value in the tail: as everywhere, zero, made of zeros, or unknown."""

_KEEP_ZERO = frozenset({"sqrt", "sinh", "tanh", "erf", "abs", "sin", "tan", "atan", "floor", "ceil", "trunc", "round"})
_LOSE_ZERO = frozenset({"exp", "exp2", "exp10", "sigmoid", "cos", "cosh", "log", "log2", "log10", "rsqrt"})
_EXPONENTIALS = frozenset({"exp", "exp2", "exp10", "sigmoid"})
"""Functions that map minus infinity to 0."""


@dataclass(frozen=True, slots=True)
class _Tail:
    """The tail of a tile: zeros, which may be its least values, or values made of zeros, perhaps by an exponential.
    `span` is the statement that read beyond the tensor."""

    tensor: tile.Buffer
    span: Span
    is_zero: bool = True
    is_least: bool = False
    by_exponential: bool = False


Place = tuple[tile.Buffer, int]
"""A tile and one of its dimensions."""
Ranges = dict[tile.Var, tuple[int, int]]
"""The first and last value of each variable that takes every value between."""


@warns(TILE)
def zero_filled_reductions(work: Work) -> Iterator[Diagnostic]:
    """Yield a warning for each statement that reads beyond a tensor, at the first reduction that it spoils."""
    kernel = work.source_kernel
    ranges: Ranges = {}
    for var, extent in zip(kernel.block_vars, kernel.grid, strict=False):
        if isinstance(extent, int):
            ranges[var] = (0, extent - 1)
    warned: set[Span] = set()
    for found, at in _Follower().follow(kernel.body, ranges):
        if at not in warned:
            warned.add(at)
            yield found


class _Follower:
    """The known tails while statements are visited in program order."""

    def __init__(self) -> None:
        self.tails: dict[Place, _Tail] = {}

    def follow(self, body: tuple[tile.Stmt, ...], ranges: Ranges) -> Iterator[tuple[Diagnostic, Span]]:
        """Yield a warning for each reduction of a tail, with the span of the read beyond the tensor."""
        for stmt in body:
            match stmt:
                case tile.For():
                    yield from self.follow(stmt.body, ranges | _range(stmt))
                case tile.If() | tile.While():
                    for inner in tile.bodies(stmt):
                        yield from self.follow(inner, {})
                    self._forget(stmt)
                case Reduce():
                    yield from self._reduced(stmt)
                    self._forget(stmt)
                case Copy(regions=(source, destination)):
                    tails = _copied(source, destination, self.tails, ranges)
                    self._forget(stmt)
                    self.tails |= tails
                case tile.Parallel():
                    tails = self._computed(stmt, ranges)
                    self._forget(stmt)
                    self.tails |= tails
                case _:
                    self._forget(stmt)

    def _forget(self, stmt: tile.Stmt) -> None:
        written = writes(stmt)
        self.tails = {place: tail for place, tail in self.tails.items() if place[0] not in written}

    def _reduced(self, op: Reduce) -> Iterator[tuple[Diagnostic, Span]]:
        long = [d for d, extent in enumerate(op.source.extent) if extent != 1]
        dim = long[op.dim] if op.dim < len(long) else op.dim
        tail = self.tails.get((op.source.buffer, dim))
        if tail is None or not op.source.is_whole or (tail.is_zero and _is_neutral(op, tail)):
            return
        name = op.source.buffer.name
        becomes = "" if tail.is_zero else ", and the loops in between make other numbers of these zeros"
        yield (
            warning(
                "zero-filled-reduction",
                f"T.reduce_{op.kind} takes elements that {tail.tensor.name} does not have",
                op.span,
                f"{name} reaches beyond {tail.tensor.name}, where it is filled with zeros{becomes}",
                secondary=(Label(tail.span, f"reads beyond {tail.tensor.name}"),),
                help=_way_out(op, tail),
            ),
            tail.span,
        )

    def _computed(self, nest: tile.Parallel, ranges: Ranges) -> dict[Place, _Tail]:
        """Return the tails that an elementwise loop stores, if it stores each element once and unconditionally."""
        if nest.is_per_thread or not all(_is_plain(stmt) for stmt in nest.body):
            return {}
        found: dict[Place, _Tail] = {}
        before = self.tails
        everywhere = ranges | {v: (0, e - 1) for v, e in zip(nest.vars, nest.extents, strict=True)}
        for var in nest.vars:
            evaluated = _InTail(var, before, everywhere, nest.span)
            for stmt in nest.body:
                if isinstance(stmt, tile.Bind):
                    evaluated.bound[stmt.var] = evaluated.value(stmt.value)
                elif isinstance(stmt, tile.Store):
                    dims = [d for d, index in enumerate(stmt.indices) if index == var]
                    kind = evaluated.value(stmt.value)
                    tail = evaluated.tail
                    is_followed = kind in ("zero", "other") and len(dims) == 1 and stmt.buffer.scope != "global"
                    if tail is not None and is_followed:
                        found[stmt.buffer, dims[0]] = _Tail(
                            tail.tensor, tail.span, kind == "zero", _is_least(stmt.value), evaluated.has_exponential
                        )
        return found


def _is_plain(stmt: tile.Stmt) -> bool:
    """Return whether a statement always runs, and changes nothing but the element that it stores."""
    return isinstance(stmt, tile.Bind) or (isinstance(stmt, tile.Store) and stmt.atomic is None)


class _InTail:
    """Evaluates expressions in the tail of one variable of an elementwise loop."""

    def __init__(self, var: tile.Var, tails: Mapping[Place, _Tail], ranges: Ranges, span: Span) -> None:
        self.var, self.tails, self.ranges, self.span = var, tails, ranges, span
        self.tail: _Tail | None = None
        self.bound: dict[tile.Var, Made] = {}
        self.has_exponential = False

    def value(self, expr: tile.Expr) -> Made:
        match expr:
            case tile.Const(value=value):
                return "zero" if value == 0 else "same"
            case tile.Var():
                return "unknown" if expr == self.var else self.bound.get(expr, "same")
            case tile.Load():
                return self._loaded(expr)
            case tile.Cast(a=a):
                return self.value(a)
            case tile.Unary(op="neg", a=a):
                return self.value(a)
            case tile.Binary(op=op, a=a, b=b):
                return _combined(op, self.value(a), self.value(b))
            case tile.Call(fn=fn, args=(a,)) if fn in _KEEP_ZERO or fn in _LOSE_ZERO:
                kind = self.value(a)
                self.has_exponential |= fn in _EXPONENTIALS and kind in ("zero", "other")
                return "other" if kind == "zero" and fn in _LOSE_ZERO else kind
            case _:
                parts = [self.value(child) for child in tile.children(expr)]
                return "same" if parts and all(part == "same" for part in parts) else "unknown"

    def _loaded(self, load: tile.Load) -> Made:
        named = [d for d, index in enumerate(load.indices) if any(part == self.var for part in tile.walk_expr(index))]
        if not named:
            return "same"
        if len(named) > 1:
            return "unknown"
        (dim,) = named
        if load.buffer.scope == "global":
            tail = _beyond(load.buffer, dim, load.indices[dim], 1, self.ranges, self.span)
        else:
            tail = self.tails.get((load.buffer, dim)) if load.indices[dim] == self.var else None
        if tail is None:
            return "unknown"
        self.tail = tail
        self.has_exponential |= tail.by_exponential
        return "zero" if tail.is_zero else "other"


def _combined(op: str, a: Made, b: Made) -> Made:
    """Return the result of an operator in the tail."""
    if op == "mul" and "zero" in (a, b):
        return "zero"
    if op == "div" and a == "zero" and b != "zero":
        return "zero"
    if "unknown" in (a, b) or op not in ("add", "sub", "mul", "div", "max", "min"):
        return "unknown"
    if a == b:
        return a
    return "other"


def _is_least(value: tile.Expr) -> bool:
    """Return whether a value is obviously never negative."""
    match value:
        case tile.Call(fn="abs") | tile.Cast(a=tile.Call(fn="abs")):
            return True
        case tile.Binary(op="mul", a=a, b=b):
            return a == b
        case tile.Binary(op="max", a=a, b=b):
            return any(isinstance(part, tile.Const) and part.value >= 0 for part in (a, b))
        case _:
            return False


def _is_neutral(op: Reduce, tail: _Tail) -> bool:
    """Return whether zeros do not change the reduction."""
    if op.kind == "max":
        return tail.is_least or op.source.buffer.dtype.kind in ("uint", "bool")
    return op.kind not in ("min", "bitand")


def _way_out(op: Reduce, tail: _Tail) -> str:
    infinity = f'T.infinity("{tail.tensor.dtype.name}")'
    if tail.tensor.dtype.is_float and (op.kind in ("max", "min") and tail.is_zero):
        return f"write T.annotate_safe_value({{{tail.tensor.name}: {'-' * (op.kind == 'max')}{infinity}}})"
    if tail.tensor.dtype.is_float and op.kind == "sum" and tail.by_exponential:
        return f"write T.annotate_safe_value({{{tail.tensor.name}: -{infinity}}}), of which an exponential makes 0"
    if tail.is_zero:
        return f"write T.annotate_safe_value({{{tail.tensor.name}: value}}), with a value that changes nothing"
    return f"choose the elements of {op.source.buffer.name} beyond {tail.tensor.name} by T.if_then_else"


# ---- what reads beyond a tensor --------------------------------------------------------------------------------------


def _copied(
    source: tile.Region, destination: tile.Region, tails: Mapping[Place, _Tail], ranges: Ranges
) -> dict[Place, _Tail]:
    """Return the tails that a copy creates or passes on."""
    source_dims = [d for d, extent in enumerate(source.extent) if extent != 1]
    destination_dims = [d for d, extent in enumerate(destination.extent) if extent != 1]
    if destination.buffer.scope == "global" or len(source_dims) != len(destination_dims):
        return {}
    found: dict[Place, _Tail] = {}
    for a, b in zip(source_dims, destination_dims, strict=True):
        if destination.extent[b] != destination.buffer.extents[b]:
            continue
        if source.buffer.scope == "global":
            tail = _beyond(source.buffer, a, source.start[a], source.extent[a], ranges, source.span)
        else:
            tail = tails.get((source.buffer, a)) if source.is_whole else None
        if tail is not None:
            found[destination.buffer, b] = tail
    return found


def _beyond(tensor: tile.Buffer, dim: int, start: tile.Expr, extent: int, ranges: Ranges, span: Span) -> _Tail | None:
    """Return the tail of a region that certainly reaches beyond its tensor; None otherwise."""
    size = tensor.extents[dim]
    form = affine(start)
    first = last = form.constant
    for atom, factor in form.terms:
        if not isinstance(atom, tile.Var) or atom not in ranges:
            return None
        low, high = sorted(factor * value for value in ranges[atom])
        first, last = first + low, last + high
    if not isinstance(size, int) or (first >= 0 and last + extent <= size):
        return None
    return _Tail(tensor, span)


def _range(loop: tile.For) -> Ranges:
    count = static_trip_count(loop)
    if count is None or count < 1 or not isinstance(loop.start, tile.Const):
        return {}
    first = int(loop.start.value)
    return {loop.var: (first, first + (count - 1) * loop.step)}
