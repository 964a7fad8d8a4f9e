"""Clusters of blocks: their size, the rank of a block in its cluster, and blocks that take over the work of others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

from tilec.analysis.usage import list_expressions
from tilec.ir import tile
from tilec.ir.affine import add_exprs, scale_expr
from tilec.ir.rewrite import map_nested_bodies, map_statements
from tilec.ir.types import INT32, UINT32
from tilec.ops.language.signature import Argument, Call
from tilec.ops.synchronisation.cluster_launch import is_try_cancel
from tilec.ops.synchronisation.rendezvous import Rendezvous
from tilec.rewriting.fold_constants import fold_expr
from tilec.rewriting.make_names_unique import UniqueNames
from tilec.support.diagnostics import Label, raise_error
from tilec.support.source import Span
from tilec.target.table import Target

MAX_CLUSTER_BLOCKS = 8
"""Blocks of a cluster that every GPU with clusters runs; 16 need a launch attribute (CUDA programming guide, block
clusters)."""


def read_cluster(call: Call, grid: Sequence[tile.Extent], default: tuple[int, int, int]) -> tile.Cluster:
    """Return a launch's `cluster_dims=` (None: the default) as a cluster, `NO_CLUSTER` for one block. Refuse bad
    sizes, more than 8 blocks, and a constant grid extent that is no multiple."""
    argument = call["cluster_dims"]
    if argument.value is None:
        argument = Argument(default, call.span)
    dims = argument.value if isinstance(argument.value, tuple) else (argument.value,)
    known = [dim for dim in dims if isinstance(dim, int) and not isinstance(dim, bool)]
    if len(known) < len(dims) or not 1 <= len(dims) <= 3 or min(known) < 1:
        call.refuse("cluster_dims", "a positive integer, or up to three, known at compile time")
    x, y, z = (*known, 1, 1)[:3]
    cluster = tile.Cluster((x, y, z), argument.span)
    if cluster.blocks == 1:
        return tile.NO_CLUSTER
    if cluster.blocks > MAX_CLUSTER_BLOCKS:
        raise_error(
            "bad-cluster",
            f"a cluster has at most {MAX_CLUSTER_BLOCKS} blocks",
            argument.span,
            f"this is {cluster.blocks}",
        )
    for axis, extent, size in zip("xyz", (*grid, 1, 1), cluster.extents, strict=False):
        if isinstance(extent, int) and extent % size:
            raise_error(
                "bad-cluster",
                f"the grid along {axis} is not a multiple of the cluster",
                argument.span,
                f"the cluster has {size} blocks along {axis}, the grid {extent}",
                help="choose a divisor of the grid, or round the grid up to a multiple and skip the extra blocks",
            )
    return cluster


def build_block_rank(block_vars: Sequence[tile.Var], cluster: tile.Cluster) -> tile.Expr:
    """Return an expression for the block's rank in its cluster: its index modulo the cluster's extent on each axis."""
    total: tile.Expr = tile.int32_const(0)
    for axis, var in enumerate(block_vars):
        digit = tile.Binary("floormod", var, tile.int32_const(cluster.extents[axis]), INT32)
        total = add_exprs(total, scale_expr(fold_expr(digit), math.prod(cluster.extents[:axis])))
    return fold_expr(total)


def uses_rank(statements: tuple[tile.Stmt, ...]) -> bool:
    """Return whether some expression in these statements names the block's rank in its cluster."""
    return any(
        part == tile.CLUSTER_RANK
        for stmt in tile.walk_statements(statements)
        for expr in list_expressions(stmt)
        for part in tile.walk_expr(expr)
    )


def bind_block_rank(statements: tuple[tile.Stmt, ...], value: tile.Expr, span: Span) -> tuple[tile.Stmt, ...]:
    """Return the statements behind a bind that sets the block's rank in its cluster to `value`."""
    return (tile.Bind(tile.CLUSTER_RANK, value, span), *statements)


def add_grid_counter(
    statements: tuple[tile.Stmt, ...], unique: UniqueNames, buffers: list[tile.Buffer]
) -> tuple[tile.Stmt, ...]:
    """Return the statements with one counter tensor for all T.sync_grid, appended to `buffers`; unchanged without
    any."""
    if not any(is_grid_sync(s) for s in tile.walk_statements(statements)):
        return statements
    counter = tile.Buffer(unique.take("grid_barrier"), (1,), UINT32, "global")
    buffers.append(counter)

    def add_counter(stmt: tile.Stmt) -> tile.Stmt:
        """Return a statement with the counter's name in each T.sync_grid, at any depth."""
        if is_grid_sync(stmt):
            return replace(stmt, counter=counter.name)
        return map_nested_bodies(stmt, lambda body: map_statements(body, add_counter))

    return tuple(map(add_counter, statements))


def is_grid_sync(op: tile.Stmt) -> TypeGuard[Rendezvous]:
    """Return whether the statement is a T.sync_grid."""
    return isinstance(op, Rendezvous) and op.what == "sync_grid"


def check_pdl_sync(kernel: tile.Kernel) -> None:
    """Refuse T.pdl_sync in a pipelined loop: loads of later iterations would start before it."""
    for loop in tile.walk_statements(kernel.body):
        for stmt in tile.walk_statements(loop.body) if isinstance(loop, tile.For) and loop.kind == "pipelined" else ():
            if isinstance(stmt, Rendezvous) and stmt.what == "pdl_sync":
                raise_error(
                    "misplaced-statement",
                    "T.pdl_sync is not possible in a pipelined loop",
                    stmt.span,
                    "loads of later iterations would start before it",
                    secondary=(Label(loop.span, "the loop"),),
                    help="put it before the loop",
                )


def check_cluster_support(kernel: tile.Kernel, target: Target) -> None:
    """Refuse clusters and operations on clusters or dependent launches that the target lacks, and misplaced
    T.pdl_sync."""
    check_pdl_sync(kernel)
    if kernel.cluster.blocks > 1 and not target.has("cluster"):
        raise_error(
            "needs-sm-90",
            f"{target.name} has no clusters of blocks",
            kernel.cluster.span,
            "requested here",
            help="compile for sm_90a, or remove cluster_dims",
        )
    for stmt in tile.walk_statements(kernel.body):
        if isinstance(stmt, Rendezvous) and stmt.kind.feature is not None and not target.has(stmt.kind.feature):
            raise_error(
                "needs-sm-90",
                f"{target.name} has no {stmt.kind.spelled}",
                stmt.span,
                secondary=(Label(kernel.span, "in this kernel"),),
                help="compile for sm_90a",
            )


# ---- cluster launch control: the work of blocks that have not begun (T.clc_try_cancel) -------------------------------


def has_block_requests(kernel: tile.Kernel) -> bool:
    """Return True if the kernel has a T.clc_try_cancel: blocks request the work of blocks that have not begun."""
    return any(map(is_try_cancel, tile.walk_statements(kernel.body)))


def check_block_request(op: tile.TileOp, kernel: tile.Kernel, target: Target) -> None:
    """Refuse a T.clc_try_cancel that the target or the kernel does not allow. Errors: `unsupported-operand`."""
    reason = _why_not_supported(kernel, target)
    if reason is not None:
        title, help_ = reason
        raise_error("unsupported-operand", "this T.clc_try_cancel is not possible", op.span, title, help=help_)


def _why_not_supported(kernel: tile.Kernel, target: Target) -> tuple[str, str] | None:
    """Return why T.clc_try_cancel cannot work on this target or in this kernel, and a remedy; None if it can."""
    if not target.has("cluster.launch_control"):
        return f"{target.name} has no cluster launch control", "let each block do its own work, or use T.Persistent"
    if kernel.cluster.blocks > 1:
        return f"it would cancel a whole cluster of {kernel.cluster.blocks} blocks", "remove cluster_dims"
    if kernel.raster is not None:
        help_ = "remove T.use_swizzle, and reorder the indices that T.clc_get_first_ctaid_x gives"
        return "it gives block indices in hardware order, and T.use_swizzle changes that order", help_
    if any(isinstance(s, Rendezvous) for s in tile.walk_statements(kernel.body)):
        return "T.sync_grid waits for all blocks, and cancelled blocks never run", "remove T.sync_grid"
    return None
