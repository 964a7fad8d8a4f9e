"""Multicast: blocks of a cluster that load the same tile each load a slice of it, for all of them.

Blocks that differ along one axis of the cluster load the same tile if the copy's indices do not depend on that axis's
block index, and equally often if nothing around the copy depends on it either. Then the producer's load by TMA becomes
a share: the tile is split into as many slices as there are such blocks, and each slice goes to the same place in all of
them. Dependences on block indices are followed through the text.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.affine import Affine, affine
from tilec.ir.multicast import number, sliced_dimension
from tilec.ir.rewrite import map_statements, with_bodies
from tilec.ops.copy import Copy
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.memory.prefetch import is_prefetched


def with_multicast(assignment: LayoutAssignment, *, enabled: bool = True) -> LayoutAssignment:
    """Return the kernel with the axes along which blocks share a copy in its attribute `multicast`."""
    if not enabled or assignment.form != "warp_specialised" or assignment.kernel.cluster.blocks == 1:
        return assignment
    finder = Finder(assignment)
    every = "".join(axis for axis, size in zip("xyz", assignment.kernel.cluster.extents, strict=True) if size > 1)
    return replace(assignment, kernel=replace(assignment.kernel, body=finder.body(assignment.kernel.body, every)))


def shared_axes(stmt: tile.Stmt) -> str:
    """Return the axes along which blocks load the tile together."""
    return stmt.multicast if isinstance(stmt, Copy) else ""


class Finder:
    """Finds shared loads. `values` are those of binds; `alike` the axes along which a variable is the same in all
    blocks."""

    def __init__(self, assignment: LayoutAssignment) -> None:
        self.assignment = assignment
        self.cluster = assignment.kernel.cluster.extents
        self.values: dict[tile.Var, tile.Expr] = {}
        self.alike: dict[tile.Var, str] = {p: "xyz" for p in assignment.kernel.params if isinstance(p, tile.Var)}
        self.axis_of = _axes(assignment.kernel)

    def body(self, stmts: tuple[tile.Stmt, ...], axes: str) -> tuple[tile.Stmt, ...]:
        """Rewrite statements that all blocks along `axes` run equally often."""
        return map_statements(stmts, lambda stmt: self.stmt(stmt, axes))

    def stmt(self, stmt: tile.Stmt, axes: str) -> tile.Stmt:
        match stmt:
            case tile.For():
                axes = self.along(axes, stmt.start, stmt.stop)
                self.alike[stmt.var] = axes
                if any(isinstance(inner, tile.Break) for inner in tile.walk(stmt.body)):
                    axes = ""
                return with_bodies(stmt, lambda body: self.body(body, axes))
            case tile.While():
                return with_bodies(stmt, lambda body: self.body(body, ""))
            case tile.If():
                axes = self.along(axes, stmt.condition)
                return with_bodies(stmt, lambda body: self.body(body, axes))
            case tile.Bind():
                self.values[stmt.var] = tile.substitute(stmt.value, self.values)
                return stmt
            case Copy() if stmt.via == "tma" and not is_prefetched(stmt):
                found = self.sliceable(stmt, self.along(axes, *stmt.regions[0].start))
                return replace(stmt, multicast=found) if found else stmt
            case _:
                return stmt

    def along(self, axes: str, *exprs: tile.Expr) -> str:
        """Return the axes, among these, along which the expressions are the same in all blocks."""
        given = [tile.substitute(expr, self.values) for expr in exprs]
        return "".join(axis for axis in axes if not any(self.differs(expr, axis) for expr in given))

    def differs(self, expr: tile.Expr, axis: str) -> bool:
        match expr:
            case tile.Const():
                return False
            case tile.Var():
                return axis not in self.alike.get(expr, "xyz".replace(self.axis_of.get(expr, "xyz"), ""))
            case tile.Load():
                return True
            case tile.Binary(op="floordiv", a=a, b=tile.Const(value=by)) if self.is_of_clusters(affine(a), axis):
                return bool(int(by) % self.size(axis))
            case tile.Binary(op="lt" | "le" | "gt" | "ge", a=a, b=b):
                left, right = (a, b) if expr.op in ("lt", "le") else (b, a)
                if self.separates_clusters(left, right, int(expr.op in ("le", "ge")), axis):
                    return False
            case _:
                pass
        return any(self.differs(child, axis) for child in tile.children(expr))

    def size(self, axis: str) -> int:
        return self.cluster["xyz".index(axis)]

    def is_of_clusters(self, form: Affine, axis: str) -> bool:
        """Return whether a sum is the block's place in its cluster plus a multiple of the cluster's size that is the
        same in all its blocks: then all have one quotient by that size, and by its multiples."""
        size = self.size(axis)
        own = [coefficient for atom, coefficient in form.terms if self.is_place(atom, axis)]
        rest = [(atom, coefficient) for atom, coefficient in form.terms if not self.is_place(atom, axis)]
        return (
            own == [1]
            and math.gcd(form.constant, *(coefficient for _, coefficient in rest)) % size == 0
            and not any(self.differs(atom, axis) for atom, _ in rest)
        )

    def is_place(self, atom: tile.Expr, axis: str) -> bool:
        """Return whether an atom is the block's index along the axis, or the remainder of such a sum by whole
        clusters."""
        match atom:
            case tile.Var():
                return self.axis_of.get(atom) == axis
            case tile.Binary(op="floormod", a=a, b=tile.Const(value=by)):
                return int(by) % self.size(axis) == 0 and self.is_of_clusters(affine(a), axis)
            case _:
                return False

    def separates_clusters(self, left: tile.Expr, right: tile.Expr, more: int, axis: str) -> bool:
        """Return whether left - right < more holds for all blocks of a cluster or for none."""
        form = affine(tile.Binary("sub", left, right, left.dtype))
        below = Affine(form.terms, form.constant - more)  # below < 0 is the condition, above < 0 its negation
        above = Affine(tuple((atom, -coefficient) for atom, coefficient in form.terms), -below.constant - 1)
        return self.is_of_clusters(below, axis) or self.is_of_clusters(above, axis)

    def sliceable(self, copy: tile.TileOp, axes: str) -> str:
        """Return the axes, among these, along whose blocks the tile can be sliced."""
        global_region, buffer = copy.regions
        layout = self.assignment.shared[buffer.buffer.name]
        for some in (axes, *axes) if len(axes) > 1 else axes:
            if sliced_dimension(global_region.extent, layout, number(self.cluster, some)) is not None:
                return some
        return ""


def _axes(kernel: tile.Kernel) -> dict[tile.Var, str]:
    return dict(zip(kernel.block_vars, "xyz", strict=False))
