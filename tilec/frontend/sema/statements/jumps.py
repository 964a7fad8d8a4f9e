"""`break` and `continue`, converted to structured control flow.

After a branch that may leave the iteration, the rest of the body moves into the other branch. So a `continue` ends a
branch, and a `break` stands where an iteration ends anyway. Where both branches may reach the rest, it is not copied
but guarded by a flag, which a jump clears. An unrolled loop has a second flag: `break` clears it, and it guards the
following iterations.

A flag is a variable. In a nest, where each element would need its own, it is a value instead: the conditions under
which a jump is reached, all of them bound outside the branches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field, replace
from functools import partial

from tilec.analysis.usage import list_expressions
from tilec.frontend.sema.context import Context
from tilec.frontend.sema.expressions import evaluate, reading
from tilec.frontend.sema.loops.loop_headers import LOOP_BREAK, PERSISTENT_SIGNATURE
from tilec.frontend.sema.roles.linear_resources import PathNote, describe_role
from tilec.frontend.sema.statements import branches, per_thread
from tilec.frontend.sema.statements.stores import set_variable
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.affine import reads_elements
from tilec.ir.expr import make_constant
from tilec.ir.types import BOOL, INT32
from tilec.ops.language import arithmetic
from tilec.ops.language.signature import Argument
from tilec.ops.language.values import EXPR_TYPES
from tilec.support.diagnostics import raise_error
from tilec.support.records import dataclass
from tilec.support.source import Span

Body = tuple[ast.Stmt, ...]
VALUES_LOOP = "a loop over values"
"""The kind of a loop over values known at compile time."""
_BREAKABLE_LOOPS = ("while", "range", "T.serial", "T.Serial", "T.grid", PERSISTENT_SIGNATURE.name, VALUES_LOOP)


# ---- flags -----------------------------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class Flag:
    """A flag that holds from `moment` on until a jump clears it. Outside nests `variable` is 1 while it holds. In a
    nest `held` is its value when it was last read; any of `clearing_conditions` has cleared it since."""

    name: str
    moment: reading.Moment
    variable: tile.Buffer | None = None
    held: tile.Expr | None = None
    clearing_conditions: list[tile.Expr] = field(default_factory=list)

    def clear(self, context: Context, span: Span) -> None:
        """Clear the flag here: in a nest, record the current branch's condition; elsewhere emit a store of 0."""
        if context.is_parallel:
            self.clearing_conditions.append(context.path[-1])
            return
        if self.variable is None:
            self.variable = self._allocate(context, span)
        set_variable(context, self.variable, Argument(0, span), span)

    def _allocate(self, context: Context, span: Span) -> tile.Buffer:
        """Allocate the flag's variable, emit its setting to 1 at the moment when the flag begins, and return it."""
        scope: tile.Scope = "local" if span in context.findings.per_thread_variables else "fragment"
        variable = context.allocate_buffer(self.name, (1,), INT32, scope, span)
        context.variable_names.add(variable.name)
        context.variable_masks[variable.name] = self.moment.masks
        with reading.insert_at(context, self.moment):
            set_variable(context, variable, Argument(1, span), span)
        return variable

    def holds(self, context: Context, span: Span) -> tile.Expr:
        """Return the condition that no jump has cleared the flag, in a nest bound to a new variable if conditions were
        added.
        """
        if self.variable is not None:
            return tile.Binary("ne", tile.Load(self.variable, (tile.int32_const(0),)), tile.int32_const(0), BOOL)
        for condition in self.clearing_conditions:
            not_cleared = tile.Unary("not", condition, BOOL)
            self.held = not_cleared if self.held is None else _join_conditions(self.held, not_cleared)
        assert self.held is not None, "a flag is read that nothing clears"
        if self.clearing_conditions:
            self.held, self.clearing_conditions = _bind_condition(context, self.name, self.held, span), []
        return self.held


def _join_conditions(a: tile.Expr, b: tile.Expr) -> tile.Expr:
    return tile.Binary("and", a, b, BOOL)


def _elaborate_flagged_branch(context: Context, sides: branches.BranchSides, condition: tile.Expr) -> None:
    """Emit both sides of a branch whose jumps clear flags; in a nest, flattened into guarded statements. Its binds stay
    visible after it.
    """
    if not context.is_parallel:
        branches.elaborate_branch(context, sides, condition)
        return
    holds = _bind_condition(context, "holds", _join_with_path(context, condition), sides.where)
    parts = [(holds, sides.then)]
    if sides.orelse is not None:
        otherwise = _join_with_path(context, tile.Unary("not", holds, BOOL))
        parts.append((_bind_condition(context, "otherwise", otherwise, sides.where), sides.orelse))
    for side, work in parts:
        with (
            context.pushed(context.path, side),
            context.guarded(),
            context.region("the branch", is_loop=False) as out,
        ):
            work()
        context.out += _flatten_branch(context, side, out, sides.span)


def _join_with_path(context: Context, condition: tile.Expr) -> tile.Expr:
    """Return a condition joined by `and` with that of the innermost flattened branch, if there is one."""
    return _join_conditions(context.path[-1], condition) if context.path else condition


def _bind_condition(context: Context, name: str, value: tile.Expr, span: Span) -> tile.Var:
    """Emit a bind of a condition, recorded in `context.spread` as visible after flattened branches; return the
    variable.
    """
    var = context.bind_value(name, value, span)
    context.spread.add(var)
    return var


def _flatten_branch(context: Context, holds: tile.Var, body: list[tile.Stmt], span: Span) -> list[tile.Stmt]:
    """Return a branch's statements without it: binds masked, others under an `if`; raise an error if an atomic result
    escapes. Statements of inner branches keep their own guard, which implies this one. Errors: `_EscapedAtomicResult`.
    """
    flat: list[tile.Stmt] = []
    atomic_results: set[tile.Expr] = set()
    for is_unguarded, part in itertools.groupby(body, partial(_can_stand_unguarded, context)):
        statements = [_mask_bind(context, holds, stmt) for stmt in part]
        used = (
            e for s in tile.walk_statements(tuple(statements)) for x in list_expressions(s) for e in tile.walk_expr(x)
        )
        if not atomic_results.isdisjoint(used):
            raise _EscapedAtomicResult(span)
        atomic_results |= {
            s.previous for s in tile.walk_statements(tuple(statements)) if isinstance(s, tile.Store) and s.previous
        }
        flat += statements if is_unguarded else [tile.If(holds, tuple(statements), (), span)]
    return flat


def _can_stand_unguarded(context: Context, stmt: tile.Stmt) -> bool:
    """Return whether a statement is a bind, or an `if` on the condition of an inner flattened branch."""
    return isinstance(stmt, tile.Bind) or (isinstance(stmt, tile.If) and stmt.condition in context.spread)


def _mask_bind(context: Context, holds: tile.Var, stmt: tile.Stmt) -> tile.Stmt:
    """Return a bind, recorded in `context.spread`, that gives 0 where `holds` is false if it reads memory; others as
    they are.
    """
    if not isinstance(stmt, tile.Bind) or stmt.var in context.spread:
        return stmt
    context.spread.add(stmt.var)
    if not reads_elements(stmt.value):
        return stmt
    zero = make_constant(0, stmt.value.dtype)
    return replace(stmt, value=tile.Select(holds, stmt.value, zero, stmt.value.dtype))


class _EscapedAtomicResult(Exception):
    """A nest uses the result of an atomic operation outside the branch of that operation."""

    def __init__(self, span: Span) -> None:
        self.span = span


# ---- loops -----------------------------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class Iteration:
    """The iteration that is being elaborated, of a loop of this kind. `begin` is the moment before its statements,
    `loop` that before an unrolled loop. `guarded` counts the enclosing branches whose rest is guarded by `goes_on`;
    `guards` counts the jumps that cleared it. `break` clears `stays_in_loop`. `is_left` says that an unrolled loop ends
    with this iteration. With `copies_rest` the rest after a branch is copied instead of guarded."""

    kind: str
    begin: reading.Moment
    loop: reading.Moment | None = None
    guarded: int = 0
    guards: int = 0
    goes_on: Flag = field(init=False)
    stays_in_loop: Flag | None = None
    is_left: bool = False
    copies_rest: bool = False

    def __post_init__(self) -> None:
        """Make the flag `goes_on`, which begins where the iteration does."""
        self.goes_on = Flag("goes_on", self.begin)


class _LoopLeft(Exception):
    """An unrolled loop is left, whatever the values at run time."""


def elaborate_iteration(context: Context, kind: str, body: Body) -> None:
    """Elaborate a loop body once as an iteration; raise an error if an atomic operation's result leaves its branch."""
    current = Iteration(kind, reading.mark_moment(context))
    with context.pushed(context.iterations, current):
        try:
            context.block(body)
        except _EscapedAtomicResult as found:
            title = "an unrolled loop of a nest is left after an atomic operation whose result is used"
            way_out = "keep the value in a fragment, and leave the loop in an `if` of its own"
            raise_error("misplaced-statement", title, found.span, help=way_out)


def elaborate_unrolled_iterations(
    context: Context, kind: str, span: Span, bodies: Iterator[Callable[[], None]]
) -> None:
    """Elaborate the iterations of an unrolled loop in turn, each guarded by a flag once one may `break`."""
    loop, stays = reading.mark_moment(context), None
    for body in bodies:
        current = Iteration(kind, loop, loop, stays_in_loop=stays)

        def elaborate_once(body: Callable[[], None] = body, current: Iteration = current) -> None:
            """Elaborate one iteration, and record whether it leaves the loop whatever the values at run time."""
            current.begin = reading.mark_moment(context)
            current.goes_on = Flag("goes_on", current.begin)
            try:
                with context.pushed(context.iterations, current):
                    body()
            except _LoopLeft:
                current.is_left = True

        if stays is None:
            elaborate_once()
        else:
            sides = branches.BranchSides(span, span, elaborate_once)
            _elaborate_flagged_branch(context, sides, stays.holds(context, span))
        if current.is_left:
            break
        stays = current.stays_in_loop


@contextmanager
def enter_loop(context: Context, kind: str, span: Span) -> Iterator[None]:
    """Enter a loop of this kind for the `with`: stages taken in it must be released in it, and `try_acquire` starts
    anew.
    """
    context.pipelines.try_acquire_results.clear()  # the next iteration asks about another stage
    ending = PathNote(span, "the next iteration begins without a release")
    try:
        with context.pushed(context.loops, kind), context.altered(with_depth=0), context.ledger.loop(ending):
            yield
    finally:
        context.pipelines.try_acquire_results.clear()


# ---- statements that may jump ----------------------------------------------------------------------------------------


def elaborate_jumping_statement(context: Context, stmt: ast.Stmt, rest: Body) -> bool:
    """Elaborate a `break`, `continue`, or `if` that may jump, with the rest of the body; return False for others."""
    match stmt:
        case ast.If() if _may_jump(context, stmt):
            _elaborate_jumping_if(context, stmt, rest)
            return True
        case _ if (jump := _find_jump(context, stmt)) is not None:
            elaborate_jump(context, jump)
            return True
        case _:
            return False


def _elaborate_jumping_if(context: Context, node: ast.If, rest: Body) -> None:
    """Elaborate an `if` that may jump, with the rest of the body in its branches or guarded by a flag after it."""
    condition = arithmetic.as_condition(evaluate.evaluate_operand(context, node.condition))
    if isinstance(condition, bool):
        context.block((*(node.then if condition else node.orelse), *rest))
        return
    assert isinstance(condition, EXPR_TYPES), "a condition is a bool or an expression"
    then_falls, orelse_falls = _can_fall_through(context, node.then), _can_fall_through(context, node.orelse)
    iteration = context.iterations[-1] if context.iterations else None
    if iteration is None or iteration.copies_rest or not (rest and then_falls and orelse_falls):
        _append_rest_to_branches(context, iteration, node, rest, condition)
    elif not context.is_parallel or iteration.guarded:
        _guard_rest(context, iteration, node, rest, condition)
    else:
        _guard_rest_in_nest(context, iteration, node, rest, condition)


def _append_rest_to_branches(
    context: Context, iteration: Iteration | None, node: ast.If, rest: Body, condition: tile.Expr
) -> None:
    """Emit an `if` with the rest of the body appended to each side whose end can be reached."""
    then = (*node.then, *rest) if _can_fall_through(context, node.then) else node.then
    orelse = (*node.orelse, *rest) if _can_fall_through(context, node.orelse) else node.orelse
    is_flagged = iteration is not None and (iteration.guarded or (iteration.loop and may_break(context, (node, *rest))))
    part = _elaborate_flagged_branch if is_flagged else branches.elaborate_branch
    part(context, _make_sides(context, node, then, orelse), condition)


def _guard_rest_in_nest(context: Context, iteration: Iteration, node: ast.If, rest: Body, condition: tile.Expr) -> None:
    """Emit a nest's outermost jumping `if` with its rest guarded by a flag, or copied if an atomic result escapes."""
    begin, outer, stays = reading.mark_moment(context), iteration.goes_on, iteration.stays_in_loop
    if stays is not None:
        stays = replace(stays, clearing_conditions=list(stays.clearing_conditions))
    iteration.goes_on = Flag("goes_on", begin)
    try:
        _guard_rest(context, iteration, node, rest, condition)
    except _EscapedAtomicResult:
        del context.out[begin.place :]
        iteration.copies_rest, iteration.stays_in_loop = True, stays
        try:
            _append_rest_to_branches(context, iteration, node, rest, condition)
        finally:
            iteration.copies_rest = False
    finally:
        iteration.goes_on = outer


def _guard_rest(context: Context, iteration: Iteration, node: ast.If, rest: Body, condition: tile.Expr) -> None:
    """Emit a branch, then the rest of the body under the flag that its jumps clear, or unguarded if none clears it."""
    guards_before = iteration.guards
    iteration.guarded += 1
    try:
        _elaborate_flagged_branch(context, _make_sides(context, node, node.then, node.orelse), condition)
    finally:
        iteration.guarded -= 1
    if iteration.guards == guards_before:  # its jumps stand in branches that are never taken
        context.block(rest)
        return
    goes_on = iteration.goes_on.holds(context, node.span)
    if context.is_parallel:
        _elaborate_flagged_branch(context, _make_sides(context, node, rest), goes_on)
        return
    is_left = iteration.loop is None and iteration.stays_in_loop is not None and not iteration.guarded
    leave = partial(_break_if_flagged, context, iteration, node.span) if is_left else None
    branches.elaborate_guarded_rest(context, replace(_make_sides(context, node, rest), orelse=leave), goes_on)


def _break_if_flagged(context: Context, iteration: Iteration, span: Span) -> None:
    """Emit a `break` under the condition that the flag `stays_in_loop` has been cleared."""
    assert iteration.stays_in_loop is not None
    stays = iteration.stays_in_loop.holds(context, span)
    context.out.append(tile.If(tile.Unary("not", stays, BOOL), (tile.Break(span),), (), span))


def _make_sides(context: Context, node: ast.If, then: Body, orelse: Body = ()) -> branches.BranchSides:
    """Return the sides of an `if` with these statements in place of its own, and none for an empty `orelse`."""
    otherwise = partial(context.block, orelse) if orelse else None
    return branches.BranchSides(node.condition.span, node.span, partial(context.block, then), otherwise)


def _can_fall_through(context: Context, body: Body) -> bool:
    """Return whether control may reach the end of these statements, without a `break` or `continue` on every path."""
    for stmt in body:
        if _find_jump(context, stmt) is not None:
            return False
        sides = (stmt.then, stmt.orelse) if isinstance(stmt, ast.If) else ((),)
        if not any(_can_fall_through(context, side) for side in sides):
            return False
    return True


def _may_jump(context: Context, stmt: ast.Stmt) -> bool:
    """Return whether a statement is a `break` or `continue`, or an `if` with one in it; inner loops do not count."""
    if isinstance(stmt, ast.If):
        return any(_may_jump(context, s) for s in (*stmt.then, *stmt.orelse))
    return _find_jump(context, stmt) is not None


def may_break(context: Context, body: Body) -> bool:
    """Return whether these statements contain a `break` or T.loop_break() of their own loop, also in branches."""
    return any(
        may_break(context, (*s.then, *s.orelse))
        if isinstance(s, ast.If)
        else isinstance(_find_jump(context, s), ast.Break)
        for s in body
    )


def _find_jump(context: Context, stmt: ast.Stmt) -> ast.Break | ast.Continue | None:
    """Return the `break` or `continue` that a statement is, T.loop_break() as a `break`, or None. It counts under any
    imported name.
    """
    match stmt:
        case ast.Break() | ast.Continue():
            return stmt
        case ast.Evaluate(value=ast.Call(args=(), keywords=(), function=function) as call):
            name = function.name if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            is_break = name == "loop_break" and evaluate.find_callee(context, call) == LOOP_BREAK.name
            return ast.Break(span=stmt.span) if is_break else None
        case _:
            return None


# ---- jumps -----------------------------------------------------------------------------------------------------------


def elaborate_jump(context: Context, node: ast.Break | ast.Continue) -> None:
    """Elaborate a `break` or `continue`: end the iteration or clear its flags; refuse one outside a loop or in a
    `with`. Errors: `misplaced-statement`. An unrolled loop that is left in any case raises `_LoopLeft`.
    """
    word = "break" if isinstance(node, ast.Break) else "continue"
    iteration = context.iterations[-1] if context.iterations else None
    if iteration is None and context.loops and context.calls:
        title = f"`{word}` is in a macro, but its loop is outside the macro"
        way_out = f"let the macro return whether to leave, and write `if …: {word}` in the loop"
        raise_error("misplaced-statement", title, node.span, help=way_out)
    if iteration is None:
        raise_error("misplaced-statement", f"`{word}` is outside of any loop", node.span)
    if context.with_depth:
        way_out = "put the statements that it skips under an `if`, or use `.acquire_stage()` and release before it"
        raise_error("misplaced-statement", f"`{word}` would leave a `with` inside the loop", node.span, help=way_out)
    if isinstance(node, ast.Break):
        _check_breakable(context, iteration, node.span)
    if iteration.loop is None:
        _end_iteration(context, iteration, node, word)
    elif isinstance(node, ast.Break):
        if context.out is iteration.begin.out:
            raise _LoopLeft
        _clear_loop_flag(context, iteration, iteration.loop, node.span)
    if iteration.guarded:
        iteration.guards += 1
        iteration.goes_on.clear(context, node.span)


def _check_breakable(context: Context, iteration: Iteration, span: Span) -> None:
    """Refuse a `break` that only some threads run, or of a loop whose iterations do not run one after another."""
    if context.role != iteration.begin.role:
        title = "`break` in a role would leave a loop around the roles"
        note = f"{describe_role(context.role)} would leave it, and other warps go on"
        way_out = "write the loop in each role, or let the role skip the rest of its work by an `if`"
        raise_error("misplaced-statement", title, span, note, help=way_out)
    if iteration.loop is None and tuple(context.masks) == iteration.begin.masks:
        per_thread.require_known_threads(context, span, "`break`")
    elif iteration.loop is None:
        per_thread.require_all_threads(context, span, "`break`")
    if iteration.kind not in _BREAKABLE_LOOPS:
        title = f"{iteration.kind} cannot be left with `break`"
        way_out = "use T.serial, or guard the rest of the body with `if`"
        raise_error("misplaced-statement", title, span, "its iterations do not run one after another", help=way_out)


def _end_iteration(context: Context, iteration: Iteration, node: ast.Break | ast.Continue, word: str) -> None:
    """Report stages left unreleased by a jump, and emit the `break`, or clear the loop's flag under guarded branches.
    It is for loops that are not unrolled.
    """
    if isinstance(node, ast.Break) or iteration.guarded:
        context.ledger.leave(node.span, word)
    if not isinstance(node, ast.Break):
        return
    if not iteration.guarded:
        context.out.append(tile.Break(node.span))
        return
    _clear_loop_flag(context, iteration, iteration.begin, node.span)


def _clear_loop_flag(context: Context, iteration: Iteration, begin: reading.Moment, span: Span) -> None:
    """Clear the flag that the loop goes on, making it first, with its beginning at this moment."""
    if iteration.stays_in_loop is None:
        iteration.stays_in_loop = Flag("stays", begin)
    iteration.stays_in_loop.clear(context, span)
