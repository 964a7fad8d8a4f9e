"""Warpgroups to which a kernel gives work of their own: `with T.ws(0):`, and in a kernel with barriers `if tx < 128:`.

What stands there is run by a *team*, neighbouring warpgroups of the block. It becomes an `If` on the thread's warpgroup
(`ir.groups`), in which the team is all the threads there are: tiles are spread over them. The thread's index stays the
one that it has in the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, assert_never

from tilec.frontend.sema.linear_resources import Path
from tilec.frontend.syntax import ast
from tilec.ir.groups import WARPGROUP_THREADS, condition
from tilec.ir.tile import THREAD, Binary, Buffer, Const, Expr, If, Kernel, TileOp, integer, substitute, walk
from tilec.ir.types import BOOL, UINT64
from tilec.ops import registry
from tilec.ops.barriers import Arrive, CpAsyncArrive, allocation, arrivals
from tilec.ops.signature import Argument, Signature, bind
from tilec.ops.sync import BlockBarrier
from tilec.ops.warpgroups import SetRegisters
from tilec.passes.analysis.fold_constants import compute_expr, fold_expr
from tilec.support.diagnostics import Label, Warn, fail, warning
from tilec.support.source import Span

if TYPE_CHECKING:
    from tilec.frontend.sema.assignments import Assignments
    from tilec.frontend.sema.statements import Body

SECTION = Signature("T.ws", (), variadic=True)
SECTIONS = ("T.ws", "T.WarpSpecialize")


BARRIERS = ("T.alloc_barrier", "T.alloc_cluster_barrier")


def barriers(body: Assignments, name: str, node: ast.Call) -> Buffer:
    """`name = T.alloc_barrier(…)`"""
    spelling = registry.spelling("alloc_barrier")
    assert spelling is not None
    counts = arrivals(bind(spelling.signature, *body.arguments(node), node.span))
    if body.loops or body.masks or body.team is not None:
        fail(
            "misplaced-statement",
            "barriers are made once, before the block divides its work",
            node.span,
            help="move it to the beginning of the kernel",
        )
    made = Buffer(body.unique.take(name), (len(counts),), UINT64, "barrier", node.span)
    body.buffers.append(made)
    body.out.append(allocation(made, counts))
    body.by_hand = True
    return made


def section(body: Body, node: ast.With, call: ast.Call) -> None:
    """`with T.ws(0, 1):`"""
    body.check_launched(call.span)
    numbers = bind(SECTION, *body.arguments(call), call.span).variadic
    if body.masks:
        body.together(call.span, "T.ws")
    if not numbers:
        fail("missing-argument", "T.ws needs the number of a warpgroup", call.span, help="write `with T.ws(0):`")
    there = whole(body)
    if not len(there):
        fail(
            "bad-threads",
            "T.ws shares a block out by warpgroups",
            call.span,
            f"{body.threads} threads are not whole warpgroups of {WARPGROUP_THREADS}",
            help=f"write threads={WARPGROUP_THREADS * 2} in T.Kernel",
        )
    asked = sorted(_number(body, argument, there) for argument in numbers)
    run(body, _neighbours(asked, call.span), lambda: body.block(node.body), call.span)


def _number(body: Body, argument: Argument, there: range) -> int:
    value = argument.value
    if not isinstance(value, int) or isinstance(value, bool):
        fail("wrong-argument", "T.ws takes numbers of warpgroups, known at compile time", argument.span)
    if value not in there:
        fail(
            "out-of-range",
            f"there is no warpgroup {value} here",
            argument.span,
            f"those that come here are {_spoken(there)}",
            help=f"a warpgroup is {WARPGROUP_THREADS} threads; T.Kernel(…, threads=n) says how many there are",
        )
    return value


def _neighbours(groups: list[int], span: Span) -> range:
    found = range(groups[0], groups[-1] + 1)
    if list(found) != groups:
        fail(
            "team-apart",
            "warpgroups that work together must be neighbours, each named once",
            span,
            f"these are {', '.join(map(str, groups))}",
            help="give the work to neighbouring warpgroups, or to each by itself",
        )
    return found


def _spoken(groups: range) -> str:
    return f"{groups.start} to {groups.stop - 1}" if len(groups) > 1 else f"{groups.start} alone"


MOST = 8
"""As many warpgroups as a block can have."""


def whole(body: Body) -> range:
    """The warpgroups that run a statement here; none where the block is not made of whole ones."""
    if body.team is not None:
        return body.team
    if not body.has_threads:
        return range(MOST)
    x, y, z = body.thread_extents
    return range(0) if x % WARPGROUP_THREADS or y * z > 1 else range(x // WARPGROUP_THREADS)


def run(body: Body, groups: range, work: Callable[[], None], span: Span) -> None:
    """What `work` finds, by these warpgroups."""
    ending = Path(span, "its role's work ends with it")
    with _team(body, groups), body.ledger.region(ending), body.region("the `with T.ws` block", is_loop=False) as out:
        work()
    body.by_hand = True
    if out:
        body.out.append(If(condition(groups), tuple(out), (), span))


@contextmanager
def _team(body: Body, groups: range) -> Iterator[None]:
    outer, before = body.team, body.ranges[THREAD.name]
    body.team = groups
    body.ranges[THREAD.name] = (threads_of(groups.start).start, threads_of(groups.stop - 1).stop - 1)
    try:
        yield
    finally:
        body.team, body.ranges[THREAD.name] = outer, before


def divided(body: Body, node: ast.If, holds: Expr) -> bool:
    """An `if` on the thread that each warpgroup answers as one, in a kernel that orders its threads by barriers: each
    side is the work of those that answer so. Where a warpgroup's answer is another condition, on the block, that is
    what its `if` asks."""
    if not body.by_hand or body.masks or not len(there := whole(body)):
        return False
    answers = [{_asked_of(thread, holds) for thread in threads_of(group)} for group in there]
    if any(len(answer) > 1 or any(map(body.is_varying, answer)) for answer in answers):
        return False
    for answer in sorted(dict.fromkeys(next(iter(each)) for each in answers), key=_is_no):
        groups = [group for group, each in zip(there, answers, strict=True) if each == {answer}]
        if not isinstance(answer, Const):
            run(body, _neighbours(groups, node.condition.span), partial(body.branch, node, answer), node.span)
        elif statements := node.then if answer.value else node.orelse:
            run(body, _neighbours(groups, node.condition.span), partial(body.block, statements), node.span)
    return True


def _asked_of(thread: int, holds: Expr) -> Expr:
    return fold_expr(substitute(holds, {THREAD: integer(thread)}))


def _is_no(answer: Expr) -> bool:
    return isinstance(answer, Const) and not answer.value


def threads_of(group: int) -> range:
    return range(group * WARPGROUP_THREADS, (group + 1) * WARPGROUP_THREADS)


def met(body: Body, op: TileOp) -> TileOp:
    """T.sync_threads: of the threads that come here, or of them and those of other roles."""
    if not isinstance(op, BlockBarrier) or op.threads is None:
        return op
    is_wider = body.team is not None and op.threads > body.threads and op.id is not None
    return op if is_wider else replace(op, id=None, threads=None if op.threads == body.threads else op.threads)


def without_effect(kernel: Kernel, by_hand: bool, warn: Warn) -> None:
    """Warn of registers that are asked for where the compiler makes the roles."""
    for stmt in () if by_hand else walk(kernel.body):
        if isinstance(stmt, SetRegisters):
            instead = "tilec shares registers out from what each role holds"
            warn(warning("hint-not-used", "T.set_max_nreg has no effect", stmt.span, instead, help="leave it out"))


def by_threads(body: Body, op: TileOp) -> TileOp | None:
    """An operation that each thread does for itself, or one for all of them, with the threads that do it; None for one
    that all do together."""
    match op.done_by:
        case "each thread":
            assert isinstance(op, Arrive | CpAsyncArrive)
            _check_block(body, op)
            held = _mask(body)
            return op if held is None else replace(op, condition=held)
        case "one thread":
            return op.with_leader(leader(body, op.span))
        case "all threads":
            return None
        case _:
            assert_never(op.done_by)


def _check_block(body: Body, op: Arrive | CpAsyncArrive) -> None:
    if not isinstance(op, Arrive):
        return
    block, blocks = op.block, body.cluster.blocks
    if isinstance(block, Const) and not 0 <= block.value < blocks:
        fail(
            "bad-cluster",
            f"{block.value} is no block of the cluster",
            op.span,
            "arrives at its barrier",
            secondary=(Label(body.cluster.span, f"{blocks} blocks from here"),) if body.cluster.span.line else (),
            help=None if body.cluster.span.line else "give the kernel cluster_dims",
        )


def _mask(body: Body) -> Expr | None:
    held: Expr | None = None
    for mask in body.masks:
        held = mask if held is None else Binary("and", held, mask, BOOL)
    return held


def leader(body: Body, span: Span) -> int:
    """The first thread of the block that comes here."""
    held = _mask(body)
    first = 0 if body.team is None else threads_of(body.team.start).start
    if held is None:
        return first
    there = range(first, first + body.threads)
    answers = ((thread, compute_expr(held, {THREAD: thread})) for thread in there)
    leader, is_here = next((found for found in answers if found[1] is not False), (first, None))
    if not is_here:
        fail(
            "thread-dependent",
            "one thread does this, and which ones come here is known only at run time, or none does",
            span,
            help="put it under an `if` on the thread's index alone, as `if tx == 0:`, or under none",
        )
    return leader
