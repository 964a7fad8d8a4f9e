"""Statements of explicit roles in the order of their schedules (`loop.role_loops`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.rewrite import rewrite_statements
from tilec.passes.layout.assign_layouts import LayoutAssignment, RoleAssignment
from tilec.passes.loop.build_problem import PlannedLoop
from tilec.passes.loop.role_loops import group_statements, map_tiles_to_pipelines, release_early


def order_roles(assignment: LayoutAssignment, loops: Sequence[PlannedLoop]) -> LayoutAssignment:
    """Put the statements in loops of explicit roles in the order of the loops' schedules."""
    if not assignment.roles or not loops:
        return assignment
    # By role and variable, since roles may share a loop of the kernel.
    schedules = {(p.loop.roles[0], p.loop.loop.var): p.solution.schedule for p in loops}
    pipelines = map_tiles_to_pipelines(assignment.kernel)

    def order_role(part: RoleAssignment) -> RoleAssignment:
        """Return one role with the bodies of its scheduled loops in schedule order."""
        own = {var: schedule for (role, var), schedule in schedules.items() if role == part.name}
        kernel = part.kernel

        def order_loop(stmt: tile.Stmt) -> tile.Stmt:
            """Return a scheduled loop with its body in schedule order; any other statement as it is."""
            if not isinstance(stmt, tile.For) or stmt.var not in own:
                return stmt
            parts = release_early(group_statements(stmt.body), pipelines)
            return replace(stmt, body=tuple(s for place in own[stmt.var].order for s in parts[place].statements))

        kernel = replace(kernel, body=rewrite_statements(kernel.body, order_loop))
        return replace(part, assignment=replace(part.assignment, kernel=kernel))

    return replace(assignment, roles=tuple(map(order_role, assignment.roles)))
