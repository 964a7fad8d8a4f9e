"""Clusters of blocks: their size, the rank of a block in its cluster, blocks that take over the work of others, and
loads with a `cluster_mask`.

Each block of such a mask loads the box that the first of them names, into its own tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeGuard

from tilec.analysis.usage import find_reads, find_writes, list_expressions
from tilec.ir import tile
from tilec.ir.affine import add_exprs, scale_expr
from tilec.ir.rewrite import map_nested_bodies, map_statements
from tilec.ir.types import BOOL, INT32, UINT32
from tilec.ops.copies.copy import Copy
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


# ---- loads with a cluster_mask ---------------------------------------------------------------------------------------


_Name = tile.Var | tile.Buffer


def resolve_cluster_masks(
    statements: tuple[tile.Stmt, ...], block_vars: Sequence[tile.Var], cluster: tile.Cluster
) -> tuple[tile.Stmt, ...]:
    """Return the statements without `cluster_mask`: each block of a mask copies from where the first of them copies.

    Raises `bad-cluster` for a bit outside the cluster, and for an index that the other blocks cannot compute.
    """
    if not any(isinstance(s, Copy) and s.cluster_mask is not None for s in tile.walk_statements(statements)):
        return statements
    positions = frozenset((*block_vars, tile.CLUSTER_RANK))
    written = frozenset(b for s in statements for b in find_writes(s))
    differing = _find_differing_names(statements, positions | {b for b in written if b.scope == "global"})
    values: dict[tile.Var, tile.Expr] = {}

    def can_compute(expr: tile.Expr) -> bool:
        """Return whether every block of the cluster can compute this value of another one by its position."""
        parts = tuple(tile.walk_expr(expr))
        loads = [part for part in parts if isinstance(part, tile.Load)]
        names = {part for part in parts if isinstance(part, tile.Var)} | {load.buffer for load in loads}
        return not names & (differing - positions)

    def unify_copy_start(op: Copy, mask: int) -> Copy:
        """Return the copy without its mask, with a start that blocks in the mask share; refuse a bit outside the
        cluster."""
        if mask >> cluster.blocks:
            raise_error(
                "bad-cluster",
                f"cluster_mask={mask:#b} has a bit outside the cluster",
                op.span,
                secondary=(Label(cluster.span, f"{cluster.blocks} blocks from here"),) if cluster.span.line else (),
                help=None if cluster.span.line else "pass cluster_dims= to T.Kernel",
            )
        first = (mask & -mask).bit_length() - 1
        first_values: dict[tile.Var, tile.Expr] = {tile.CLUSTER_RANK: tile.int32_const(first)}
        for axis, var in enumerate(block_vars):
            size, digit = cluster.extents[axis], first // math.prod(cluster.extents[:axis])
            own = tile.Binary("floordiv", var, tile.int32_const(size), INT32)
            first_values[var] = add_exprs(scale_expr(fold_expr(own), size), tile.int32_const(digit % size))
        is_in = tile.Binary(
            "floormod", tile.Binary("shr", tile.int32_const(mask), tile.CLUSTER_RANK, INT32), tile.int32_const(2), INT32
        )
        chosen = tile.Binary("eq", is_in, tile.int32_const(1), BOOL)
        source = op.source
        start = []
        for index in source.start:
            computed = tile.substitute_variables(index, values)
            if not can_compute(computed):
                raise_error(
                    "bad-cluster",
                    "the other blocks cannot compute which box the first block of the mask asks for",
                    op.span,
                    "an index differs from block to block",
                    help="compute it from the block indices, or from tensors that the kernel does not write",
                )
            shared_index = fold_expr(tile.substitute_variables(computed, first_values))
            everyone = mask + 1 == 1 << cluster.blocks or shared_index == index
            start.append(shared_index if everyone else tile.Select(chosen, shared_index, index, INT32))
        return replace(op, source=replace(source, start=tuple(start)), cluster_mask=None)

    def resolve_statement(stmt: tile.Stmt) -> tile.Stmt:
        """Resolve the copies in a statement, recording the values of binds that are the same at every place."""
        match stmt:
            case tile.Bind():
                value = tile.substitute_variables(stmt.value, values)
                is_constant = not any(isinstance(e, tile.Load) and e.buffer in written for e in tile.walk_expr(value))
                if is_constant and can_compute(value):
                    values[stmt.var] = value
            case Copy(cluster_mask=int() as mask):
                return unify_copy_start(stmt, mask)
            case _:
                pass
        return map_nested_bodies(stmt, lambda body: map_statements(body, resolve_statement))

    return tuple(map(resolve_statement, statements))


def _find_differing_names(statements: tuple[tile.Stmt, ...], known: frozenset[_Name]) -> frozenset[_Name]:
    """Return the variables and buffers that may hold other values in other blocks, if those `known` do."""
    found = set(known)

    def may_differ(expressions: Iterable[tile.Expr]) -> bool:
        """Return whether one of the expressions may have another value in another block."""
        parts = [part for expr in expressions for part in tile.walk_expr(expr)]
        return any((part.buffer if isinstance(part, tile.Load) else part) in found for part in parts)

    def visit_statements(body: tuple[tile.Stmt, ...], guards: tuple[tile.Expr, ...]) -> None:
        """Add what these statements set, if it may differ. `guards` decide whether and how often they are executed."""
        for stmt in body:
            inner = (*guards, *list_expressions(stmt), *_list_exit_conditions(stmt))
            nested = tile.nested_bodies(stmt)
            is_atomic = isinstance(stmt, tile.Store) and stmt.atomic is not None
            reads_differing = isinstance(stmt, tile.TileOp) and any(buffer in found for buffer in find_reads(stmt))
            if is_atomic or reads_differing or may_differ(inner):
                found.update(tile.declared_variables(stmt))
                found.update(() if nested else find_writes(stmt))
            for statements_inside in nested:
                visit_statements(statements_inside, inner)

    size = -1
    while size != len(found):
        size = len(found)
        visit_statements(statements, ())
    return frozenset(found)


def _list_exit_conditions(stmt: tile.Stmt) -> Iterator[tile.Expr]:
    """Yield the conditions under which a loop is left early; none for another statement."""
    if isinstance(stmt, tile.For | tile.While):
        for part in tile.walk_statements(stmt.body):
            inside = tile.walk_statements((*part.then, *part.orelse)) if isinstance(part, tile.If) else ()
            if isinstance(part, tile.If) and any(isinstance(each, tile.Break) for each in inside):
                yield part.condition
