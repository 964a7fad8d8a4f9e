"""Multicast: blocks of a cluster that load the same tile each load a slice of it, for all of them.

Blocks that differ along one axis of the cluster load the same tile if the copy's indices do not depend on that axis's
block index, and equally often if nothing around the copy depends on it either. Then the producer's load by TMA becomes
a share: the tile is split into as many slices as there are such blocks, and each slice goes to the same place in all of
them. Dependences on block indices are followed through the text."""

from __future__ import annotations

import math
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.affine import Affine, affine_form
from tilec.ir.multicast import count_multicast_blocks, sliced_dimension
from tilec.ir.rewrite import map_nested_bodies, map_statements
from tilec.ops.copies.copy import Copy
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.memory.prefetch_tiles import is_prefetched


def mark_multicast(assignment: LayoutAssignment, *, enabled: bool = True) -> LayoutAssignment:
    """Return the kernel with TMA copies marked by the axes along which a cluster's blocks share them, if enabled."""
    if not enabled or assignment.form != "warp_specialised" or assignment.kernel.cluster.blocks == 1:
        return assignment
    finder = MulticastFinder(assignment)
    every = "".join(axis for axis, size in zip("xyz", assignment.kernel.cluster.extents, strict=True) if size > 1)
    return replace(assignment, kernel=replace(assignment.kernel, body=finder.mark_body(assignment.kernel.body, every)))


def get_multicast_axes(stmt: tile.Stmt) -> str:
    """Return the axes along which blocks of a cluster load the copy's tile together; "" for other statements."""
    return stmt.multicast if isinstance(stmt, Copy) else ""


class MulticastFinder:
    """Finds shared loads. `values`: of binds; `alike`: the axes along which a variable is the same in all blocks."""

    def __init__(self, assignment: LayoutAssignment) -> None:
        self.assignment = assignment
        self.cluster = assignment.kernel.cluster.extents
        self.values: dict[tile.Var, tile.Expr] = {}
        self.alike: dict[tile.Var, str] = {p: "xyz" for p in assignment.kernel.params if isinstance(p, tile.Var)}
        self.axis_of = dict(zip(assignment.kernel.block_vars, "xyz", strict=False))

    def mark_body(self, stmts: tuple[tile.Stmt, ...], axes: str) -> tuple[tile.Stmt, ...]:
        """Return the statements, which all blocks along `axes` run equally often, with their shared copies marked."""
        return map_statements(stmts, lambda stmt: self.mark_statement(stmt, axes))

    def mark_statement(self, stmt: tile.Stmt, axes: str) -> tile.Stmt:
        """Return a statement, which all blocks along `axes` run equally often, with its shared copies marked."""
        match stmt:
            case tile.For():
                axes = self.find_common_axes(axes, stmt.start, stmt.stop)
                self.alike[stmt.var] = axes
                if any(isinstance(inner, tile.Break) for inner in tile.walk_statements(stmt.body)):
                    axes = ""
                return map_nested_bodies(stmt, lambda body: self.mark_body(body, axes))
            case tile.While():
                return map_nested_bodies(stmt, lambda body: self.mark_body(body, ""))
            case tile.If():
                axes = self.find_common_axes(axes, stmt.condition)
                return map_nested_bodies(stmt, lambda body: self.mark_body(body, axes))
            case tile.Bind():
                self.values[stmt.var] = tile.substitute_variables(stmt.value, self.values)
                return stmt
            case Copy() if stmt.via == "tma" and not is_prefetched(stmt):
                found = self.find_sliceable_axes(stmt, self.find_common_axes(axes, *stmt.regions[0].start))
                return replace(stmt, multicast=found) if found else stmt
            case _:
                return stmt

    def find_common_axes(self, axes: str, *exprs: tile.Expr) -> str:
        """Return those of these axes along which all expressions are the same in all blocks of a cluster."""
        given = [tile.substitute_variables(expr, self.values) for expr in exprs]
        return "".join(axis for axis in axes if not any(self.is_different(expr, axis) for expr in given))

    def is_different(self, expr: tile.Expr, axis: str) -> bool:
        """Return whether the expression may differ between blocks of a cluster along the axis."""
        match expr:
            case tile.Const():
                return False
            case tile.Var():
                return axis not in self.alike.get(expr, "xyz".replace(self.axis_of.get(expr, "xyz"), ""))
            case tile.Load():
                return True
            case tile.Binary(op="floordiv", a=a, b=tile.Const(value=by)) if self.is_of_clusters(affine_form(a), axis):
                return bool(int(by) % self.get_cluster_extent(axis))
            case tile.Binary(op="lt" | "le" | "gt" | "ge", a=a, b=b):
                left, right = (a, b) if expr.op in ("lt", "le") else (b, a)
                if self.is_same_in_cluster(left, right, int(expr.op in ("le", "ge")), axis):
                    return False
        return any(self.is_different(child, axis) for child in tile.direct_operands(expr))

    def get_cluster_extent(self, axis: str) -> int:
        return self.cluster["xyz".index(axis)]

    def is_of_clusters(self, form: Affine, axis: str) -> bool:
        """Return whether a sum is the block's place in its cluster plus a multiple of the size common to its blocks."""
        size = self.get_cluster_extent(axis)
        own = [coefficient for atom, coefficient in form.terms if self.is_place(atom, axis)]
        rest = [(atom, coefficient) for atom, coefficient in form.terms if not self.is_place(atom, axis)]
        return (
            own == [1]
            and math.gcd(form.constant, *(coefficient for _, coefficient in rest)) % size == 0
            and not any(self.is_different(atom, axis) for atom, _ in rest)
        )

    def is_place(self, atom: tile.Expr, axis: str) -> bool:
        """Return whether an expression is the block's index along the axis, or that modulo whole clusters."""
        match atom:
            case tile.Var():
                return self.axis_of.get(atom) == axis
            case tile.Binary(op="floormod", a=a, b=tile.Const(value=by)):
                return int(by) % self.get_cluster_extent(axis) == 0 and self.is_of_clusters(affine_form(a), axis)
            case _:
                return False

    def is_same_in_cluster(self, left: tile.Expr, right: tile.Expr, more: int, axis: str) -> bool:
        """Return whether left - right < more certainly holds for all blocks of a cluster or for none."""
        form = affine_form(tile.Binary("sub", left, right, left.dtype))
        below = Affine(form.terms, form.constant - more)  # below < 0 is the condition, above < 0 its negation
        above = Affine(tuple((atom, -coefficient) for atom, coefficient in form.terms), -below.constant - 1)
        return self.is_of_clusters(below, axis) or self.is_of_clusters(above, axis)

    def find_sliceable_axes(self, copy: tile.TileOp, axes: str) -> str:
        """Return those of these axes along whose blocks the copy's tile can be sliced: all, else one, else ""."""
        global_region, buffer = copy.regions
        layout = self.assignment.shared[buffer.buffer.name]
        for some in (axes, *axes) if len(axes) > 1 else axes:
            if sliced_dimension(global_region.extent, layout, count_multicast_blocks(self.cluster, some)) is not None:
                return some
        return ""
