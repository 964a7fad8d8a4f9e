"""Mask elimination: conditions of elementwise nests in pipelined loops that hold for every element in most iterations.

Examples are the mask of causal attention off the diagonal, and the mask of its last block of keys before that block. A
comparison of sums of variables has its extremes where the nest's variables have theirs. With these put in, the loop's
variable is compared with a threshold. On one side of it the nest runs without the condition, or not at all if nothing
else is left to do; on the other side it runs as written. `lower.split_loops` then makes two loops of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilec.analysis.rings import is_pipelined
from tilec.analysis.thresholds import OPPOSITES, build_difference, solve_threshold
from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.ir.affine import Affine, Interval, reads_elements, value_interval
from tilec.ir.rewrite import map_expressions, map_nested_bodies
from tilec.ir.text import show_expr
from tilec.ir.types import BOOL, INT32
from tilec.rewriting.fold_constants import fold_expr
from tilec.rewriting.make_names_unique import make_names_unique
from tilec.support.records import dataclass
from tilec.target.table import Target

MIN_ELEMENTS_PER_THREAD = 4
"""For fewer elements of a nest in each thread, testing the condition of each costs no more than a branch."""

Ranges = Mapping[tile.Var, Interval]


@dataclass(frozen=True, slots=True)
class Mask:
    """A nest of a loop, and the condition under which its mask holds for all elements: None if in every iteration."""

    loop: tile.For
    nest: tile.Parallel
    holds: tile.Expr | None


def eliminate_masks(kernel: tile.Kernel, target: Target) -> tuple[tile.Kernel, tuple[Mask, ...]]:
    """Return the kernel with nest conditions tested only in iterations where they may fail, and the masks found. A nest
    is duplicated only where loads go by TMA and take no registers: otherwise kernels that just fit would spill."""
    pass_ = _MaskEliminator(kernel, target.has("tma"))
    blocks = zip(kernel.block_vars, kernel.grid, strict=False)
    body = pass_.rewrite_body(kernel.body, {var: (0, e - 1) for var, e in blocks if isinstance(e, int)})
    if not pass_.found:
        return kernel, ()
    # Both copies of a duplicated nest need variables of their own.
    return make_names_unique(replace(kernel, body=body)), tuple(pass_.found)


def describe_masked_iterations(mask: Mask) -> str:
    """Return in words the iterations in which a mask matters, as "in the last 2 of 16 iterations" or "none"."""
    loop, holds = mask.loop, mask.holds
    if holds is None:
        return "none"
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
            return f"in iterations with {show_expr(negate_condition(holds))}"


class _MaskEliminator:
    """Rewrites a kernel, and collects its masks in `found`. `may_double`: a nest may be duplicated."""

    def __init__(self, kernel: tile.Kernel, may_double: bool) -> None:
        self.kernel, self.may_double = kernel, may_double
        self.found: list[Mask] = []

    def rewrite_body(self, stmts: tuple[tile.Stmt, ...], ranges: Ranges) -> tuple[tile.Stmt, ...]:
        """Return the statements with masks eliminated, tracking the ranges of variables that they bind."""
        known, made = dict(ranges), []
        for stmt in stmts:
            if isinstance(stmt, tile.Bind):
                known[stmt.var] = value_interval(stmt.value, known)
            made.append(self.rewrite_statement(stmt, known))
        return tuple(made)

    def rewrite_statement(self, stmt: tile.Stmt, ranges: Ranges) -> tile.Stmt:
        """Return a statement with the masks of the pipelined loops in it eliminated."""
        match stmt:
            case tile.For():
                start, stop = value_interval(stmt.start, ranges), value_interval(stmt.stop, ranges)
                inner_ranges = {**ranges, stmt.var: (start[0], stop[1] - 1)}
                if not is_pipelined(stmt):
                    return map_nested_bodies(stmt, lambda body: self.rewrite_body(body, inner_ranges))
                return replace(stmt, body=tuple(self.rewrite_loop_body(stmt, inner_ranges)))
            case _:
                return map_nested_bodies(stmt, lambda body: self.rewrite_body(body, ranges))

    def rewrite_loop_body(self, loop: tile.For, ranges: Ranges) -> Iterator[tile.Stmt]:
        """Yield the statements of a pipelined loop's body with masks of its nests eliminated."""
        names: dict[tile.Var, tile.Expr] = {}  # values of binds, inlined where they are used
        moving = {s.var for s in tile.walk_statements(loop.body) if isinstance(s, tile.Bind)}
        for stmt in loop.body:
            match stmt:
                case tile.Parallel() if self.is_worth_it(stmt):
                    proof = _ConditionProof(loop.var, stmt, ranges, frozenset(moving), names)
                    yield from self.rewrite_nest(loop, stmt, proof)
                case tile.For() | tile.While() | tile.If():
                    yield self.rewrite_statement(stmt, ranges)
                case tile.Bind() if not reads_elements(stmt.value):
                    names[stmt.var] = tile.substitute_variables(stmt.value, names)
                    yield stmt
                case _:
                    yield stmt

    def is_worth_it(self, nest: tile.Parallel) -> bool:
        """Return whether a nest has only register writes, no tensor reads, and enough elements to pay for a branch."""
        return (
            not nest.is_per_thread
            and math.prod(nest.extents) >= MIN_ELEMENTS_PER_THREAD * self.kernel.threads
            and all(b.scope == "fragment" for b in find_writes(nest))
            and all(b.scope != "global" for b in find_reads(nest))
        )

    def rewrite_nest(self, loop: tile.For, nest: tile.Parallel, proof: _ConditionProof) -> Iterator[tile.Stmt]:
        """Yield the nest without proven conditions, under a branch if these hold only sometimes, or as it is; record
        its mask."""
        body = proof.simplify_body(nest.body, {})
        holds = proof.build_requirement()
        known = None if holds is None else evaluate_condition(holds, proof.ranges)
        if holds is None or known is False:
            yield nest
            return
        does_nothing = not any(isinstance(s, tile.Store) for s in tile.walk_statements(body))
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
            yield tile.If(negate_condition(holds), (nest,), span=nest.span)
        else:
            yield tile.If(holds, (simpler,), (nest,), nest.span)


class _ConditionProof:
    """Proves that conditions of a nest hold, or fail, for all its elements. `taken`: what that requires."""

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

    def build_requirement(self) -> tile.Expr | None:
        """Return the conjunction of all collected requirements, folded; None if there are none."""
        total: tile.Expr | None = None
        for each in dict.fromkeys(self.taken):
            total = each if total is None else tile.Binary("and", total, each, BOOL)
        return None if total is None else fold_expr(total)

    def simplify_body(self, stmts: tuple[tile.Stmt, ...], names: Mapping[tile.Var, tile.Expr]) -> tuple[tile.Stmt, ...]:
        """Return the statements without provable conditions and stores that change nothing, collecting requirements."""
        known = {**self.names, **names}
        made: list[tile.Stmt] = []
        for stmt in stmts:
            match stmt:
                case tile.Bind():
                    simpler = self.simplify_expr(stmt.value, known)
                    known[stmt.var] = tile.substitute_variables(stmt.value, known)
                    made.append(replace(stmt, value=simpler))
                case tile.Store() if stmt.atomic is None:
                    value = self.simplify_expr(stmt.value, known)
                    if value != tile.Load(stmt.buffer, stmt.indices):
                        made.append(replace(stmt, value=value))
                case tile.If():
                    made += self.simplify_branch(stmt, known)
                case _:
                    made.append(stmt)
        return tuple(made)

    def simplify_branch(self, stmt: tile.If, names: Mapping[tile.Var, tile.Expr]) -> tuple[tile.Stmt, ...]:
        """Return the branch that a provable condition always takes, collecting its requirement, or else the simplified
        `if`."""
        masks = not stmt.orelse and all(
            isinstance(s, tile.Store) and isinstance(s.value, tile.Const) for s in stmt.then
        )
        if (needed := self.find_requirement(tile.substitute_variables(stmt.condition, names), not masks)) is not None:
            self.taken.append(needed)
            return self.simplify_body(stmt.orelse if masks else stmt.then, names)
        return (map_nested_bodies(stmt, lambda body: self.simplify_body(body, names)),)

    def simplify_expr(self, expr: tile.Expr, names: Mapping[tile.Var, tile.Expr]) -> tile.Expr:
        """Return the expression with each provable select replaced by its chosen value, collecting the requirements."""
        if isinstance(expr, tile.Select):
            masks = isinstance(expr.then, tile.Const) and not isinstance(expr.orelse, tile.Const)
            needed = self.find_requirement(tile.substitute_variables(expr.condition, names), not masks)
            if needed is not None:
                self.taken.append(needed)
                return self.simplify_expr(expr.orelse if masks else expr.then, names)
        return map_expressions(expr, lambda operand: self.simplify_expr(operand, names))

    def find_requirement(self, condition: tile.Expr, value: bool) -> tile.Expr | None:
        """Return a loop condition that suffices for this value of a condition for all of the nest's elements; None
        if unknown."""
        match condition:
            case tile.Unary(op="not", a=a):
                return self.find_requirement(a, not value)
            case tile.Binary(op="and" | "or" as op, a=a, b=b, dtype=dtype) if dtype == BOOL:
                left, right = self.find_requirement(a, value), self.find_requirement(b, value)
                if left is not None and right is not None:
                    return tile.Binary("and" if (op == "and") == value else "or", left, right, BOOL)
                return None if (op == "and") == value else left or right
            case tile.Binary(op="lt" | "ge" | "gt" | "le" as op, a=a, b=b) if a.dtype == INT32:
                return self.bound_below_zero(build_difference(op if value else OPPOSITES[op], a, b))
            case _:
                return None

    def bound_below_zero(self, form: Affine) -> tile.Expr | None:
        """Return the loop condition under which a sum is negative for all nest variables; None if it cannot tell."""
        greatest, factor = form.constant, 0
        rest: list[tuple[tile.Expr, int]] = []
        for atom, coefficient in form.terms:
            parts = set(tile.walk_expr(atom))
            if atom == self.var:
                factor = coefficient
            elif parts & self.own.keys():
                low, high = value_interval(atom, self.own)
                greatest_term = max(coefficient * low, coefficient * high)
                if math.isinf(greatest_term):
                    return None
                greatest += int(greatest_term)
            elif self.var in parts or parts & self.moving or reads_elements(atom):
                return None
            else:
                rest.append((atom, coefficient))
        return solve_threshold(self.var, factor, Affine(tuple(rest), greatest))


def negate_condition(condition: tile.Expr) -> tile.Expr:
    """Return the negation of a condition, with comparisons reversed instead of `not` where possible."""
    match condition:
        case tile.Binary(op="and" | "or" as op, a=a, b=b):
            return tile.Binary("or" if op == "and" else "and", negate_condition(a), negate_condition(b), BOOL)
        case tile.Binary(op=op, a=a, b=b) if op in OPPOSITES:
            return replace(condition, op=OPPOSITES[op])
        case tile.Unary(op="not", a=a):
            return a
        case _:
            return tile.Unary("not", condition, BOOL)


def evaluate_condition(condition: tile.Expr, ranges: Ranges) -> bool | None:
    """Return the value that a condition has over all these ranges of its variables; None if it varies or is unknown."""
    match condition:
        case tile.Const(value=value):
            return bool(value)
        case tile.Binary(op="and" | "or" as op, a=a, b=b):
            either = {evaluate_condition(a, ranges), evaluate_condition(b, ranges)}
            decisive = op == "or"
            return decisive if decisive in either else None if None in either else not decisive
        case tile.Binary(op="lt" | "ge" as op, a=a, b=b):
            low, high = value_interval(tile.Binary("sub", a, b, INT32), ranges)
            is_less = True if high < 0 else False if low >= 0 else None
            return is_less if is_less is None or op == "lt" else not is_less
        case _:
            return None
