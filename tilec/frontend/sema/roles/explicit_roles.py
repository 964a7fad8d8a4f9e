"""Explicit roles: warps with work of their own, by `with T.ws(0):`, and in a kernel with barriers `if tx < 32:`.

Such a block is run by a *role*, neighbouring warps of the block. It becomes an `If` on the thread's warp
(`ir.groups`), in which tiles are spread over the threads of the role alone. The index of a thread stays its index in
the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import assert_never

from tilec.frontend.sema.context import Context
from tilec.frontend.sema.expressions import evaluate, thread_values
from tilec.frontend.sema.roles.linear_resources import PathNote
from tilec.frontend.sema.statements import per_thread
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.groups import WARP_THREADS, WARPGROUP_THREADS, WARPGROUP_WARPS, warps_condition
from tilec.ir.types import UINT64
from tilec.ops import registry
from tilec.ops.language.signature import Argument, Signature
from tilec.ops.synchronisation.barriers import Arrive, CpAsyncArrive, build_allocation, read_arrival_counts
from tilec.ops.synchronisation.sync import BlockBarrier
from tilec.ops.synchronisation.warpgroups import SetRegisters
from tilec.rewriting.fold_constants import compute_expr
from tilec.support.diagnostics import Label, Warn, make_warning, raise_error
from tilec.support.source import Span

ROLE_SECTION_SIGNATURE = Signature("T.ws", (), variadic=True)
ROLE_SECTIONS = ("T.ws", "T.WarpSpecialize")
BARRIER_ALLOCATIONS = ("T.alloc_barrier", "T.alloc_cluster_barrier")


def allocate_barriers(context: Context, name: str, node: ast.Call) -> tile.Buffer:
    """Emit and return the barriers of `name = T.alloc_barrier(…)`, and set explicit roles; refuse it in roles, loops,
    branches. From then on the kernel has explicit roles.
    """
    spelling = registry.find_spelling("alloc_barrier")
    assert spelling is not None
    counts = read_arrival_counts(evaluate.bind_call(context, spelling.signature, node))
    if context.loops or context.masks or context.role is not None:
        title = "barriers are allocated once, before roles, loops and branches"
        raise_error("misplaced-statement", title, node.span, help="move it to the beginning of the kernel")
    buffer = context.allocate_buffer(name, (len(counts),), UINT64, "barrier", node.span)
    context.out.append(build_allocation(buffer, counts))
    context.has_explicit_roles = True
    return buffer


def elaborate_role_section(context: Context, node: ast.With, call: ast.Call) -> None:
    """Elaborate `with T.ws(0, 1):` as the role of these warpgroups; refuse absent or not consecutive ones."""
    thread_values.check_launched(context, call.span)
    numbers = evaluate.bind_call(context, ROLE_SECTION_SIGNATURE, call).variadic
    if context.masks:
        per_thread.require_all_threads(context, call.span, "T.ws")
    if not numbers:
        raise_error("missing-argument", "T.ws needs the number of a warpgroup", call.span, help="write `with T.ws(0):`")
    warpgroups = _find_active_warpgroups(context)
    if not len(warpgroups):
        title = "T.ws needs a block of whole warpgroups"
        note = f"{context.threads} threads are not whole warpgroups of {WARPGROUP_THREADS}"
        raise_error("bad-threads", title, call.span, note, help=f"write threads={WARPGROUP_THREADS * 2} in T.Kernel")
    groups = sorted(_read_warpgroup(argument, warpgroups) for argument in numbers)
    chosen = _check_neighbours(groups, call.span)
    warps = range(chosen.start * WARPGROUP_WARPS, chosen.stop * WARPGROUP_WARPS)
    elaborate_role(context, warps, lambda: context.block(node.body), call.span)


def _read_warpgroup(argument: Argument, available: range) -> int:
    """Return the warpgroup number in an argument; refuse one that is not an integer among `available`."""
    value = argument.value
    if not isinstance(value, int) or isinstance(value, bool):
        raise_error("wrong-argument", "T.ws takes numbers of warpgroups, known at compile time", argument.span)
    if value not in available:
        note = f"the warpgroups here are {_describe_warpgroups(available)}"
        way_out = f"a warpgroup is {WARPGROUP_THREADS} threads; T.Kernel(…, threads=n) sets their number"
        raise_error("out-of-range", f"there is no warpgroup {value} here", argument.span, note, help=way_out)
    return value


def _check_neighbours(groups: list[int], span: Span) -> range:
    """Return sorted warpgroup numbers as a range; raise `noncontiguous-warpgroups` for gaps or repetitions."""
    contiguous = range(groups[0], groups[-1] + 1)
    if list(contiguous) != groups:
        title = "the warpgroups of a role must be consecutive, each named once"
        way_out = "name consecutive warpgroups, or write a `with T.ws(…):` for each"
        raise_error("noncontiguous-warpgroups", title, span, f"these are {', '.join(map(str, groups))}", help=way_out)
    return contiguous


def _describe_warpgroups(groups: range) -> str:
    return f"{groups.start} to {groups.stop - 1}" if len(groups) > 1 else f"{groups.start} alone"


MAX_WARPGROUPS = 8
"""The most warpgroups that a block can have."""


def _find_active_warpgroups(context: Context) -> range:
    """Return the warpgroups that run the current statement: none of partial ones, all possible ones before T.Kernel is
    read.
    """
    warps = find_active_warps(context)
    first, last = -(-warps.start // WARPGROUP_WARPS), warps.stop // WARPGROUP_WARPS
    is_partial = context.role is None and warps.stop % WARPGROUP_WARPS
    return range(0) if is_partial else range(first, last)


def find_active_warps(context: Context) -> range:
    """Return the warps that run the current statement: none of partial ones, all possible ones before T.Kernel is read.
    A block has partial warps unless its threads are whole ones along x.
    """
    if context.role is not None:
        return context.role
    if not context.has_threads:
        return range(MAX_WARPGROUPS * WARPGROUP_WARPS)
    x, y, z = context.thread_extents
    return range(0) if x % WARP_THREADS or y * z > 1 else range(x // WARP_THREADS)


def elaborate_role(context: Context, warps: range, work: Callable[[], None], span: Span) -> None:
    """Emit an `if` on these warps around the statements that `work` elaborates as their role, if there are any.
    Stages acquired in it must be released in it.
    """
    ending = PathNote(span, "the role ends without a release")
    with (
        _enter_role(context, warps),
        context.ledger.region(ending),
        context.region("the `with T.ws` block", is_loop=False) as out,
    ):
        work()
    context.has_explicit_roles = True
    if out:
        context.out.append(tile.If(warps_condition(warps), tuple(out), (), span))


@contextmanager
def _enter_role(context: Context, warps: range) -> Iterator[None]:
    """Set the role of these warps, and the range of the thread index, for the `with`."""
    threads = WARP_THREADS * warps.start, WARP_THREADS * warps.stop - 1
    outer_range, context.ranges[tile.THREAD.name] = context.ranges[tile.THREAD.name], threads
    try:
        with context.altered(role=warps):
            yield
    finally:
        context.ranges[tile.THREAD.name] = outer_range


def resolve_block_barrier(context: Context, op: tile.TileOp) -> tile.TileOp:
    """Return a T.sync_threads without its id, and without its count if all threads here arrive; others unchanged. A
    named barrier that counts more threads than its role has is kept. Where only some warps of a block without roles
    come here, all of its threads wait for them.
    """
    if not isinstance(op, BlockBarrier) or op.threads is None:
        return op
    is_wider = context.role is not None and op.threads > context.threads and op.id is not None
    if is_wider:
        return op
    is_complete = op.threads in (context.threads, per_thread.count_threads_of_reaching_warps(context))
    return replace(op, id=None, threads=None if is_complete else op.threads)


def warn_of_ignored_registers(kernel: tile.Kernel, is_explicit: bool, warn: Warn) -> None:
    """Warn of each T.set_max_nreg in a kernel without explicit roles, where it has no effect."""
    for stmt in () if is_explicit else tile.walk_statements(kernel.body):
        if isinstance(stmt, SetRegisters):
            instead = "tilec sets the registers of each role from its live values"
            warn(make_warning("hint-not-used", "T.set_max_nreg has no effect", stmt.span, instead, help="remove it"))


def assign_executing_threads(context: Context, op: tile.TileOp) -> tile.TileOp | None:
    """Return an operation of single threads with its condition or leader, checked; None if all threads do it
    together.
    """
    match op.done_by:
        case "each thread":
            assert isinstance(op, Arrive | CpAsyncArrive)
            _check_cluster_block(context, op)
            mask = per_thread.join_conditions(each.condition for each in context.masks)
            return op if mask is None else replace(op, condition=mask)
        case "one thread":
            return op.with_leader(find_leader(context, op.span))
        case "all threads":
            return None
        case _:
            assert_never(op.done_by)


def _check_cluster_block(context: Context, op: Arrive | CpAsyncArrive) -> None:
    """Raise `bad-cluster` if an arrival names a constant block that the cluster does not have."""
    if not isinstance(op, Arrive):
        return
    block, blocks = op.block, context.cluster.blocks
    if isinstance(block, tile.Const) and not 0 <= block.value < blocks:
        cluster, title = context.cluster.span, f"the cluster has no block {block.value}"
        places = (Label(cluster, f"{blocks} blocks from here"),) if cluster.line else ()
        way_out = None if cluster.line else "pass cluster_dims= to T.Kernel"
        raise_error("bad-cluster", title, op.span, "arrives at its barrier", secondary=places, help=way_out)


def find_leader(context: Context, span: Span) -> int:
    """Return the first thread of the block that runs the current statement; refuse one not known at compile time."""
    mask = per_thread.join_conditions(each.condition for each in context.masks)
    first = 0 if context.role is None else WARP_THREADS * context.role.start
    if mask is None:
        return first
    threads = range(first, first + context.threads)
    conditions = ((thread, compute_expr(mask, {tile.THREAD: thread})) for thread in threads)
    leader, is_here = next((entry for entry in conditions if entry[1] is not False), (first, None))
    if not is_here:
        title = "one thread runs this, but the threads that reach it are not known at compile time, or there are none"
        way_out = "put it under an `if` on the thread index only, such as `if tx == 0:`, or under no condition"
        raise_error("thread-dependent", title, span, help=way_out)
    return leader
