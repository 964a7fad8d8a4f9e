"""Statements of explicit roles in the order of their schedules (`loop.role_loops`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.rewrite import map_nested_bodies, map_statements
from tilec.passes.layout.assign_layouts import LayoutAssignment, RoleAssignment
from tilec.passes.loop.build_problem import PlannedLoop
from tilec.passes.loop.role_loops import Statements, group_statements, map_tiles_to_pipelines, release_early
from tilec.sched.schedule import Schedule


def order_roles(assignment: LayoutAssignment, loops: Sequence[PlannedLoop]) -> LayoutAssignment:
    """Put the statements of explicit roles in the order of their schedules."""
    if not assignment.roles or not loops:
        return assignment
    # By role and variable, since roles may share a loop of the kernel.
    schedules = {(p.loop.roles[0], p.loop.loop.var): p.solution.schedule for p in loops}
    pipelines = map_tiles_to_pipelines(assignment.kernel)

    def order_role(part: RoleAssignment) -> RoleAssignment:
        own = {var: schedule for (role, var), schedule in schedules.items() if role == part.name}
        kernel = part.assignment.kernel
        kernel = replace(kernel, body=_order_body(kernel.body, own, pipelines))
        return replace(part, assignment=replace(part.assignment, kernel=kernel))

    return replace(assignment, roles=tuple(map(order_role, assignment.roles)))


def _order_body(body: Statements, schedules: Mapping[tile.Var, Schedule], pipelines: Mapping[str, str]) -> Statements:
    def order_statement(stmt: tile.Stmt) -> tile.Stmt:
        if not isinstance(stmt, tile.For) or stmt.var not in schedules:
            return map_nested_bodies(stmt, lambda inside: _order_body(inside, schedules, pipelines))
        parts = release_early(group_statements(stmt.body), pipelines)
        reordered = (s for place in schedules[stmt.var].order for s in parts[place].statements)
        return replace(stmt, body=tuple(reordered))

    return map_statements(body, order_statement)
