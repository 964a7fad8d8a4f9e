"""Mask elimination: conditions of elementwise nests in pipelined loops that hold for every element in most iterations.

Examples are the mask of causal attention off the diagonal, and the mask of its last block of keys before that block. A
comparison of sums of variables has its extremes where the nest's variables have theirs. With these put in, the loop's
variable is compared with a threshold. On one side of it the nest runs without the condition, or not at all if nothing
else is left to do; on the other side it runs as written. `lower.split_loops` then makes two loops of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.affine import Affine, Interval, interval
from tilec.ir.rewrite import map_expressions, with_bodies
from tilec.ir.text import show_expr
from tilec.ir.types import BOOL, INT32
from tilec.passes.analysis.fold_constants import fold_expr
from tilec.passes.analysis.rings import is_pipelined
from tilec.passes.analysis.thresholds import REFUTES, below_zero, threshold
from tilec.passes.analysis.unique_names import with_unique_names
from tilec.passes.analysis.usage import reads, writes
from tilec.support.records import dataclass
from tilec.target.table import Target

LEAST_ELEMENTS = 4
"""For fewer elements of a nest in each thread, testing the condition of each costs no more than a branch."""

Ranges = Mapping[tile.Var, Interval]


@dataclass(frozen=True, slots=True)
class Mask:
    """A nest of a loop, and the condition under which its mask holds for all elements: None if in every iteration."""

    loop: tile.For
    nest: tile.Parallel
    holds: tile.Expr | None


def without_masks(kernel: tile.Kernel, target: Target) -> tuple[tile.Kernel, tuple[Mask, ...]]:
    """Return the kernel with its masks tested only in iterations in which they matter, and these masks. A nest is
    duplicated only where loads go by TMA and take no registers: otherwise kernels that just fit would spill."""
    pass_ = _Pass(kernel, target.has("tma"))
    body = pass_.body(kernel.body, pass_.ranges_of_blocks())
    if not pass_.found:
        return kernel, ()
    # Both copies of a duplicated nest need variables of their own.
    return with_unique_names(replace(kernel, body=body)), tuple(pass_.found)


def iterations(mask: Mask) -> str:
    """Describe the iterations in which the mask matters."""
    return "none" if mask.holds is None else _where(mask.loop, mask.holds)


def _where(loop: tile.For, holds: tile.Expr) -> str:
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
                known[stmt.var] = interval(stmt.value, known)
            made.append(self.stmt(stmt, known))
        return tuple(made)

    def stmt(self, stmt: tile.Stmt, ranges: Ranges) -> tile.Stmt:
        match stmt:
            case tile.For():
                inner_ranges = {**ranges, stmt.var: _trip_count(stmt, ranges)}
                if not is_pipelined(stmt):
                    return with_bodies(stmt, lambda body: self.body(body, inner_ranges))
                return replace(stmt, body=tuple(self.nests(stmt, inner_ranges)))
            case _:
                return with_bodies(stmt, lambda body: self.body(body, ranges))

    def nests(self, loop: tile.For, ranges: Ranges) -> Iterator[tile.Stmt]:
        """Yield the rewritten statements of a pipelined loop."""
        names: dict[tile.Var, tile.Expr] = {}  # values of binds, inlined where they are used
        moving = {s.var for s in tile.walk(loop.body) if isinstance(s, tile.Bind)}
        for stmt in loop.body:
            match stmt:
                case tile.Parallel() if self.is_worth_it(stmt):
                    yield from self.nest(loop, stmt, _Proof(loop.var, stmt, ranges, frozenset(moving), names))
                case tile.For() | tile.While() | tile.If():
                    yield self.stmt(stmt, ranges)
                case tile.Bind() if not _loads(stmt.value):
                    names[stmt.var] = tile.substitute(stmt.value, names)
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
            and all(b.scope == "fragment" for b in writes(nest))
            and all(b.scope != "global" for b in reads(nest))
        )

    def nest(self, loop: tile.For, nest: tile.Parallel, proof: _Proof) -> Iterator[tile.Stmt]:
        body = proof.body(nest.body, {})
        holds = proof.holds()
        known = None if holds is None else truth(holds, proof.ranges)
        if holds is None or known is False:
            yield nest
            return
        does_nothing = not any(isinstance(s, tile.Store) for s in tile.walk(body))
        if known and does_nothing and (loop.stage is not None or loop.scheduling_hints is not None):
            yield nest  # a manual schedule counts this statement
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
    """Proves that conditions of a nest hold, or fail, for all its elements, and collects what this requires of the loop
    variable."""

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
        """Return the conjunction of all collected requirements; None if there are none."""
        total: tile.Expr | None = None
        for each in dict.fromkeys(self.taken):
            total = each if total is None else tile.Binary("and", total, each, BOOL)
        return None if total is None else fold_expr(total)

    def body(self, stmts: tuple[tile.Stmt, ...], names: Mapping[tile.Var, tile.Expr]) -> tuple[tile.Stmt, ...]:
        """Return the statements without the proven conditions and without those that do nothing."""
        known = {**self.names, **names}
        made: list[tile.Stmt] = []
        for stmt in stmts:
            match stmt:
                case tile.Bind():
                    known[stmt.var] = tile.substitute(stmt.value, known)
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
        if (needed := self.throughout(tile.substitute(stmt.condition, names), not masks)) is not None:
            self.taken.append(needed)
            return self.body(stmt.orelse if masks else stmt.then, names)
        return (with_bodies(stmt, lambda body: self.body(body, names)),)

    def expr(self, expr: tile.Expr, names: Mapping[tile.Var, tile.Expr]) -> tile.Expr:
        if isinstance(expr, tile.Select):
            masks = isinstance(expr.then, tile.Const) and not isinstance(expr.orelse, tile.Const)
            if (needed := self.throughout(tile.substitute(expr.condition, names), not masks)) is not None:
                self.taken.append(needed)
                return self.expr(expr.orelse if masks else expr.then, names)
        return map_expressions(expr, lambda operand: self.expr(operand, names))

    def throughout(self, condition: tile.Expr, value: bool) -> tile.Expr | None:
        """Return what makes a condition have this value for all elements; None if unknown."""
        match condition:
            case tile.Unary(op="not", a=a):
                return self.throughout(a, not value)
            case tile.Binary(op="and" | "or" as op, a=a, b=b, dtype=dtype) if dtype == BOOL:
                left, right = self.throughout(a, value), self.throughout(b, value)
                if left is not None and right is not None:
                    return tile.Binary("and" if (op == "and") == value else "or", left, right, BOOL)
                return None if (op == "and") == value else left or right
            case tile.Binary(op="lt" | "ge" | "gt" | "le" as op, a=a, b=b) if a.dtype == INT32:
                form = below_zero(op if value else REFUTES[op], a, b)
                return self.greatestbelow_zero(form)
            case _:
                return None

    def greatestbelow_zero(self, form: Affine) -> tile.Expr | None:
        """Return the condition under which a sum is below 0 for all values of the nest's variables."""
        greatest, factor = form.constant, 0
        rest: list[tuple[tile.Expr, int]] = []
        for atom, coefficient in form.terms:
            parts = set(tile.walk_expr(atom))
            if atom == self.var:
                factor = coefficient
            elif parts & self.own.keys():
                low, high = interval(atom, self.own)
                greatest_term = max(coefficient * low, coefficient * high)
                if math.isinf(greatest_term):
                    return None
                greatest += int(greatest_term)
            elif self.var in parts or parts & self.moving or _loads(atom):
                return None
            else:
                rest.append((atom, coefficient))
        return threshold(self.var, factor, Affine(tuple(rest), greatest))


def refuted(condition: tile.Expr) -> tile.Expr:
    """Return the negation of a condition, without `not` where possible."""
    match condition:
        case tile.Binary(op="and" | "or" as op, a=a, b=b):
            return tile.Binary("or" if op == "and" else "and", refuted(a), refuted(b), BOOL)
        case tile.Binary(op=op, a=a, b=b) if op in REFUTES:
            return replace(condition, op=REFUTES[op])
        case tile.Unary(op="not", a=a):
            return a
        case _:
            return tile.Unary("not", condition, BOOL)


def truth(condition: tile.Expr, ranges: Ranges) -> bool | None:
    """Return the value of a condition over these ranges of its variables; None if it depends on them."""
    match condition:
        case tile.Const(value=value):
            return bool(value)
        case tile.Binary(op="and" | "or" as op, a=a, b=b):
            either = {truth(a, ranges), truth(b, ranges)}
            decisive = op == "or"
            return decisive if decisive in either else None if None in either else not decisive
        case tile.Binary(op="lt" | "ge" as op, a=a, b=b):
            low, high = interval(tile.Binary("sub", a, b, INT32), ranges)
            is_less = True if high < 0 else False if low >= 0 else None
            return is_less if is_less is None or op == "lt" else not is_less
        case _:
            return None


def _trip_count(loop: tile.For, ranges: Ranges) -> Interval:
    return interval(loop.start, ranges)[0], interval(loop.stop, ranges)[1] - 1


def _loads(expr: tile.Expr) -> bool:
    return any(isinstance(e, tile.Load) for e in tile.walk_expr(expr))
