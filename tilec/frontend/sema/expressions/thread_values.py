"""Indices and extents of threads and blocks, and values of warp-wide and block-wide functions."""

from __future__ import annotations

import math

from tilec.frontend.sema.context import Context
from tilec.frontend.sema.statements import per_thread
from tilec.ir import tile
from tilec.ir.groups import WARP_THREADS, WARPGROUP_WARPS
from tilec.ir.types import BOOL, INT32
from tilec.ops.functions.warp_functions import WARP_FUNCTIONS
from tilec.ops.language.signature import Argument, Call
from tilec.ops.language.values import Value
from tilec.support.diagnostics import raise_error
from tilec.support.source import Span


def evaluate_warp_function(context: Context, call: Call) -> tile.Expr:
    """Emit a call of a warp- or block-wide function and return its result; refuse a block-wide one that some threads
    skip. A warp-wide one under a condition is refused in T.Parallel; elsewhere it is over the threads that meet the
    condition.
    """
    function = WARP_FUNCTIONS[call.name]
    if context.is_parallel and (function.is_block_wide or context.guards):
        where = "under a condition inside T.Parallel" if context.guards else "inside T.Parallel or T.vectorized"
        note = "all threads that have elements must run it together"
        way_out = "move it outside, or into T.serial"
        raise_error("thread-dependent", f"{call.name} is {where}", call.span, note, help=way_out)
    if context.is_parallel:
        value = function.build(call, None)
        return context.bind_value(f"{tile.ONCE_PREFIX}_{call.name.removeprefix('T.')}", value, call.span)
    if function.is_block_wide:
        per_thread.require_all_threads(context, call.span, call.name)
        if context.role is not None:
            note = "all threads of the block must run it together"
            way_out = "move it out of T.ws, or use the form for a warp"
            raise_error("thread-dependent", f"{call.name} is under T.ws", call.span, note, help=way_out)
    value = function.build(call, per_thread.join_conditions(per_thread.collect_thread_conditions(context)))
    return per_thread.bind_thread_value(context, call.name.removeprefix("T."), value, call.span)


def check_launched(context: Context, span: Span) -> None:
    """Raise `misplaced-statement` if the current statement is not inside `with T.Kernel`."""
    if not context.is_launched:
        title = "this belongs inside `with T.Kernel(…):`"
        raise_error("misplaced-statement", title, span, "T.Kernel sets the numbers of threads and blocks")


def evaluate_thread_value(context: Context, call: Call) -> Value:
    """Return the value of a thread, block or cluster function, as T.get_thread_binding; refuse it outside T.Kernel."""
    check_launched(context, call.span)
    name = call.name.removeprefix("T.")
    match name:
        case "get_thread_binding":
            return compute_thread_index(context, _read_dimension(call, 3))
        case "get_thread_bindings":
            return tuple(compute_thread_index(context, d) for d in range(3))
        case "get_thread_extent":
            return context.thread_extents[_read_dimension(call, 3)]
        case "get_thread_extents":
            return context.thread_extents
        case "get_block_binding":
            return context.blocks[_read_dimension(call, len(context.blocks))][0]
        case "get_block_bindings":
            return tuple(var for var, _ in context.blocks)
        case "get_block_extent":
            return context.blocks[_read_dimension(call, len(context.blocks))][1]
        case "get_block_extents":
            return tuple(extent for _, extent in context.blocks)
        case "block_rank_in_cluster":
            context.ranges[tile.CLUSTER_RANK.name] = (0, context.cluster.blocks - 1)
            return tile.CLUSTER_RANK if context.cluster.blocks > 1 else 0
        case "get_cluster_block_nums":
            return context.cluster.blocks
        case "get_lane_idx":
            return _make_remainder(tile.THREAD, _read_warp_size(call))
        case "get_warp_idx" | "get_warp_idx_sync":
            return _make_quotient(tile.THREAD, _read_warp_size(call))
        case "get_warp_group_idx":
            warps = call["warps_per_group"].value
            if warps is not None and (not isinstance(warps, int) or warps < 1):
                call.refuse("warps_per_group", "a number of warps")
            return _make_quotient(tile.THREAD, _read_warp_size(call) * (warps or WARPGROUP_WARPS))
        case "shuffle_elect":
            extent = call.read_integer("thread_extent")
            if extent < 0 or extent % WARP_THREADS:
                call.refuse("thread_extent", "a number of threads in whole warps, or 0")
            index = _make_remainder(tile.THREAD, extent) if extent else tile.THREAD
            return tile.Binary("eq", index, tile.int32_const(0), BOOL)
        case _:
            return _evaluate_thread_binding(context, call)


def compute_thread_index(context: Context, dim: int) -> Value:
    """Return the thread's index along x, y or z, computed from its linear index, in which x varies fastest."""
    below, extent = math.prod(context.thread_extents[:dim]), context.thread_extents[dim]
    if extent == 1:
        return 0
    is_last = below * extent == math.prod(context.thread_extents)
    whole = _make_quotient(tile.THREAD, below) if below > 1 else tile.THREAD
    return whole if is_last else _make_remainder(whole, extent)


def _read_dimension(call: Call, count: int) -> int:
    """Return a call's argument `dim`; refuse one outside 0 to `count - 1`."""
    dim = call.read_integer("dim")
    if not 0 <= dim < count:
        call.refuse("dim", f"0 to {count - 1}" if count > 1 else "0")
    return dim


def _read_warp_size(call: Call) -> int:
    """Return the argument `warp_size`, or 32 where it is left out; refuse anything but a positive constant integer."""
    size = call["warp_size"].value
    if size is None:
        return WARP_THREADS
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        call.refuse("warp_size", "a number of threads")
    return size


def _evaluate_thread_binding(context: Context, call: Call) -> Value:
    """Return the thread index that `T.thread_binding(n, thread="threadIdx.x")` names; refuse an `n` unlike
    T.Kernel's.
    """
    given = [call["start"], call["stop"], call["thread"]]
    if isinstance(given[1].value, str):  # T.thread_binding(n, "threadIdx.x")
        given = [given[0], Argument(None, call.span), given[1]]
    axes = {f"threadIdx.{axis}": d for d, axis in enumerate("xyz")}
    thread = given[2].value
    if not isinstance(thread, str) or thread not in axes:
        call.refuse("thread", '"threadIdx.x", "threadIdx.y" or "threadIdx.z"')
    dim = axes[thread]
    start, stop = (0, given[0]) if given[1].value is None else (given[0].value, given[1])
    if start != 0 or stop.value != context.thread_extents[dim]:
        title = f"T.thread_binding must cover all threads along {thread[-1]}"
        note = f"T.Kernel has {context.thread_extents[dim]}"
        raise_error("wrong-argument", title, stop.span, note, help=f"write T.get_thread_binding({dim})")
    return compute_thread_index(context, dim)


def _make_quotient(value: tile.Expr, divisor: int) -> tile.Expr:
    return tile.Binary("floordiv", value, tile.int32_const(divisor), INT32)


def _make_remainder(value: tile.Expr, extent: int) -> tile.Expr:
    return tile.Binary("floormod", value, tile.int32_const(extent), INT32)
