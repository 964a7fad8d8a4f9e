"""Conditions of the elementwise nests of pipelined loops that hold for every element of a nest in most of the
iterations, as the mask of causal attention does away from the diagonal, and that of its last block of keys before that.

A comparison of sums of variables has its extremes where the nest's variables have theirs; with these put in, what is
left compares the loop's variable with a threshold. Below it (or from it on) the nest runs without the condition, or not
at all where nothing else is left to do; in the other iterations it runs as it is written. `lower.split_loops` then
makes loops of their own of the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.affine import Affine, Interval, value_interval
from tilec.ir.rewrite import map_expressions, map_nested_bodies
from tilec.ir.text import show_expr
from tilec.ir.types import BOOL, INT32
from tilec.passes.analysis.fold_constants import fold_expr
from tilec.passes.analysis.rings import is_pipelined
from tilec.passes.analysis.thresholds import OPPOSITES, build_difference, solve_threshold
from tilec.passes.analysis.unique_names import make_names_unique
from tilec.passes.analysis.usage import find_reads, find_writes
from tilec.support.records import dataclass
from tilec.target.table import Target

LEAST_ELEMENTS = 4
"""Of a nest in each thread: a test of the condition for each of so few costs no more than a branch does."""

Ranges = Mapping[tile.Var, Interval]


@dataclass(frozen=True, slots=True)
class Mask:
    """A nest of a loop, and where its conditions hold for all its elements: None, if that is in every iteration."""

    loop: tile.For
    nest: tile.Parallel
    holds: tile.Expr | None


def without_masks(kernel: tile.Kernel, target: Target) -> tuple[tile.Kernel, tuple[Mask, ...]]:
    """The kernel, with the conditions of its nests tested only in the iterations in which they matter; and which these
    are. A nest becomes two only where loads take no registers, by TMA: else kernels that just fit spill."""
    pass_ = _Pass(kernel, target.has("tma"))
    body = pass_.body(kernel.body, pass_.ranges_of_blocks())
    if not pass_.found:
        return kernel, ()
    # Where a nest has become two, each has variables of its own.
    return make_names_unique(replace(kernel, body=body)), tuple(pass_.found)


def iterations(mask: Mask) -> str:
    """Those in which the mask matters, in words."""
    return "none" if mask.holds is None else _where(mask.loop, mask.holds)


def _where(loop: tile.For, holds: tile.Expr) -> str:
    """The iterations with the mask, in words."""
    match holds, loop.start, loop.stop:
        case tile.Binary(op="lt", a=a, b=tile.Const(value=first)), tile.Const(value=start), tile.Const(value=stop) if (
            a == loop.var
        ):
            trip_count = (int(stop) - int(start)) // loop.step
            return f"in the last {(int(stop) - int(first)) // loop.step} of {trip_count} iterations"
        case tile.Binary(op="lt", a=a, b=first), _, _ if a == loop.var:
            return f"in iterations from {loop.var.name} = {show_expr(first)} on"
        case tile.Binary(op="ge", a=a, b=first), _, _ if a == loop.var:
            return f"in iterations before {loop.var.name} = {show_expr(first)}"
        case _:
            return f"in iterations with {show_expr(refuted(holds))}"


class _Pass:
    def __init__(self, kernel: tile.Kernel, may_double: bool) -> None:
        self.kernel, self.may_double = kernel, may_double
        self.found: list[Mask] = []

    def ranges_of_blocks(self) -> dict[tile.Var, Interval]:
        pairs = zip(self.kernel.block_vars, self.kernel.grid, strict=False)
        return {var: (0, extent - 1) for var, extent in pairs if isinstance(extent, int)}

    def body(self, stmts: tuple[tile.Stmt, ...], ranges: Ranges) -> tuple[tile.Stmt, ...]:
        known, made = dict(ranges), []
        for stmt in stmts:
            if isinstance(stmt, tile.Bind):
                known[stmt.var] = value_interval(stmt.value, known)
            made.append(self.stmt(stmt, known))
        return tuple(made)

    def stmt(self, stmt: tile.Stmt, ranges: Ranges) -> tile.Stmt:
        match stmt:
            case tile.For():
                within = {**ranges, stmt.var: _trip_count(stmt, ranges)}
                if not is_pipelined(stmt):
                    return map_nested_bodies(stmt, lambda body: self.body(body, within))
                return replace(stmt, body=tuple(self.nests(stmt, within)))
            case _:
                return map_nested_bodies(stmt, lambda body: self.body(body, ranges))

    def nests(self, loop: tile.For, ranges: Ranges) -> Iterator[tile.Stmt]:
        """The statements of a pipelined loop."""
        names: dict[tile.Var, tile.Expr] = {}  # of values that each statement may compute for itself
        moving = {s.var for s in tile.walk_statements(loop.body) if isinstance(s, tile.Bind)}
        for stmt in loop.body:
            match stmt:
                case tile.Parallel() if self.is_worth_it(stmt):
                    yield from self.nest(loop, stmt, _Proof(loop.var, stmt, ranges, frozenset(moving), names))
                case tile.For() | tile.While() | tile.If():
                    yield self.stmt(stmt, ranges)
                case tile.Bind() if not _loads(stmt.value):
                    names[stmt.var] = tile.substitute_variables(stmt.value, names)
                    yield stmt
                case _:
                    yield stmt

    def is_worth_it(self, nest: tile.Parallel) -> bool:
        elements = 1
        for extent in nest.extents:
            elements *= extent
        return (
            not nest.is_per_thread
            and elements >= LEAST_ELEMENTS * self.kernel.threads
            and all(b.scope == "fragment" for b in find_writes(nest))
            and all(b.scope != "global" for b in find_reads(nest))
        )

    def nest(self, loop: tile.For, nest: tile.Parallel, proof: _Proof) -> Iterator[tile.Stmt]:
        body = proof.body(nest.body, {})
        holds = proof.holds()
        known = None if holds is None else truth(holds, proof.ranges)
        if holds is None or known is False:
            yield nest
            return
        does_nothing = not any(isinstance(s, tile.Store) for s in tile.walk_statements(body))
        if known and does_nothing and (loop.stage is not None or loop.scheduling_hints is not None):
            yield nest  # what says by hand when each statement runs counts it
            return
        if not known and not does_nothing and not self.may_double:
            yield nest
            return
        self.found.append(Mask(loop, nest, None if known else holds))
        simpler = replace(nest, body=body)
        if known:
            if not does_nothing:
                yield simpler
        elif does_nothing:
            yield tile.If(refuted(holds), (nest,), span=nest.span)
        else:
            yield tile.If(holds, (simpler,), (nest,), nest.span)


class _Proof:
    """Conditions of a nest that hold, or fail, for all its elements, and what has to be true for that."""

    def __init__(
        self,
        var: tile.Var,
        nest: tile.Parallel,
        ranges: Ranges,
        moving: frozenset[tile.Var],
        names: Mapping[tile.Var, tile.Expr],
    ):
        self.var, self.moving, self.names = var, moving, names
        self.own = {v: (0, extent - 1) for v, extent in zip(nest.vars, nest.extents, strict=True)}
        self.ranges: Ranges = {**ranges, **self.own}
        self.taken: list[tile.Expr] = []

    def holds(self) -> tile.Expr | None:
        """What all that was taken for granted comes to."""
        total: tile.Expr | None = None
        for each in dict.fromkeys(self.taken):
            total = each if total is None else tile.Binary("and", total, each, BOOL)
        return None if total is None else fold_expr(total)

    def body(self, stmts: tuple[tile.Stmt, ...], names: Mapping[tile.Var, tile.Expr]) -> tuple[tile.Stmt, ...]:
        """The statements, without the conditions and without what does nothing."""
        known = {**self.names, **names}
        made: list[tile.Stmt] = []
        for stmt in stmts:
            match stmt:
                case tile.Bind():
                    known[stmt.var] = tile.substitute_variables(stmt.value, known)
                    made.append(stmt)
                case tile.Store() if stmt.atomic is None:
                    value = self.expr(stmt.value, known)
                    if value != tile.Load(stmt.buffer, stmt.indices):
                        made.append(replace(stmt, value=value))
                case tile.If():
                    made += self.branch(stmt, known)
                case _:
                    made.append(stmt)
        return tuple(made)

    def branch(self, stmt: tile.If, names: Mapping[tile.Var, tile.Expr]) -> tuple[tile.Stmt, ...]:
        masks = not stmt.orelse and all(
            isinstance(s, tile.Store) and isinstance(s.value, tile.Const) for s in stmt.then
        )
        if (needed := self.throughout(tile.substitute_variables(stmt.condition, names), not masks)) is not None:
            self.taken.append(needed)
            return self.body(stmt.orelse if masks else stmt.then, names)
        return (map_nested_bodies(stmt, lambda body: self.body(body, names)),)

    def expr(self, expr: tile.Expr, names: Mapping[tile.Var, tile.Expr]) -> tile.Expr:
        if isinstance(expr, tile.Select):
            masks = isinstance(expr.then, tile.Const) and not isinstance(expr.orelse, tile.Const)
            if (needed := self.throughout(tile.substitute_variables(expr.condition, names), not masks)) is not None:
                self.taken.append(needed)
                return self.expr(expr.orelse if masks else expr.then, names)
        return map_expressions(expr, lambda operand: self.expr(operand, names))

    def throughout(self, condition: tile.Expr, value: bool) -> tile.Expr | None:
        """What makes a condition have this value for all elements, the same for all of them; None if unknown."""
        match condition:
            case tile.Unary(op="not", a=a):
                return self.throughout(a, not value)
            case tile.Binary(op="and" | "or" as op, a=a, b=b, dtype=dtype) if dtype == BOOL:
                left, right = self.throughout(a, value), self.throughout(b, value)
                if left is not None and right is not None:
                    return tile.Binary("and" if (op == "and") == value else "or", left, right, BOOL)
                return None if (op == "and") == value else left or right
            case tile.Binary(op="lt" | "ge" | "gt" | "le" as op, a=a, b=b) if a.dtype == INT32:
                form = build_difference(op if value else OPPOSITES[op], a, b)
                return self.greatestbelow_zero(form)
            case _:
                return None

    def greatestbelow_zero(self, form: Affine) -> tile.Expr | None:
        """Whether a sum is below 0 wherever the nest's variables are."""
        greatest, factor = form.constant, 0
        rest: list[tuple[tile.Expr, int]] = []
        for atom, coefficient in form.terms:
            parts = set(tile.walk_expr(atom))
            if atom == self.var:
                factor = coefficient
            elif parts & self.own.keys():
                low, high = value_interval(atom, self.own)
                most = max(coefficient * low, coefficient * high)
                if math.isinf(most):
                    return None
                greatest += int(most)
            elif self.var in parts or parts & self.moving or _loads(atom):
                return None
            else:
                rest.append((atom, coefficient))
        return solve_threshold(self.var, factor, Affine(tuple(rest), greatest))


def refuted(condition: tile.Expr) -> tile.Expr:
    """The opposite of a condition, without `not` where that can be."""
    match condition:
        case tile.Binary(op="and" | "or" as op, a=a, b=b):
            return tile.Binary("or" if op == "and" else "and", refuted(a), refuted(b), BOOL)
        case tile.Binary(op=op, a=a, b=b) if op in OPPOSITES:
            return replace(condition, op=OPPOSITES[op])
        case tile.Unary(op="not", a=a):
            return a
        case _:
            return tile.Unary("not", condition, BOOL)


def truth(condition: tile.Expr, ranges: Ranges) -> bool | None:
    """What a condition comes to wherever its variables are; None if that depends."""
    match condition:
        case tile.Const(value=value):
            return bool(value)
        case tile.Binary(op="and" | "or" as op, a=a, b=b):
            either = {truth(a, ranges), truth(b, ranges)}
            decisive = op == "or"
            return decisive if decisive in either else None if None in either else not decisive
        case tile.Binary(op="lt" | "ge" as op, a=a, b=b):
            low, high = value_interval(tile.Binary("sub", a, b, INT32), ranges)
            is_less = True if high < 0 else False if low >= 0 else None
            return is_less if is_less is None or op == "lt" else not is_less
        case _:
            return None


def _trip_count(loop: tile.For, ranges: Ranges) -> Interval:
    """The values of the loop's variable."""
    return value_interval(loop.start, ranges)[0], value_interval(loop.stop, ranges)[1] - 1


def _loads(expr: tile.Expr) -> bool:
    return any(isinstance(e, tile.Load) for e in tile.walk_expr(expr))
