"""Loads with a `cluster_mask`: each block of the mask loads the box that the first of them names, into its own tile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tilec.analysis.usage import find_reads, find_writes, list_expressions
from tilec.ir import tile
from tilec.ir.affine import add_exprs, scale_expr
from tilec.ir.rewrite import map_nested_bodies, map_statements
from tilec.ir.types import BOOL, INT32
from tilec.ops.copies.copy import Copy
from tilec.rewriting.fold_constants import fold_expr
from tilec.support.diagnostics import Label, raise_error

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
