"""Mechanisms and layouts of a kernel with explicit roles.

Each role of a kernel (`explicit_roles.split_roles`) is treated as a kernel of its own, except that all roles choose the
layouts of shared tiles together. A role that begins within a warpgroup has no operations of whole warpgroups.
Operations of roles alone have their mechanisms before
(`explicit_roles.assign_role_mechanisms`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations

from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.ir.groups import WARPGROUP_WARPS, describe_warps
from tilec.ops.copies.copy import Copy
from tilec.ops.products.gemm import Gemm
from tilec.passes.explicit_roles.split_roles import ExplicitRole, find_split_roles
from tilec.passes.layout.assign_layouts import (
    LayoutAssignment,
    RoleAssignment,
    assign_fragment_layouts,
    assign_shared_layouts,
)
from tilec.passes.layout.select_mechanisms import select_role_mechanisms
from tilec.rewriting.substitution import rename_buffers
from tilec.support.diagnostics import ErrorCollector, raise_error
from tilec.support.options import EnvironmentSwitches
from tilec.target.table import Target


def assign_role_layouts(
    kernel: tile.Kernel,
    target: Target,
    switches: EnvironmentSwitches,
    mistakes: ErrorCollector,
    versions: tuple[tuple[str, int], ...],
) -> LayoutAssignment:
    """Choose mechanisms and fragment layouts for each role alone, and one layout for each shared tile of all roles.
    Tiles that no role uses are dropped, from `versions` (names and counts) too."""
    parts = find_split_roles(kernel)
    used_names, passed = _list_buffer_names(kernel), frozenset(_find_passed_tensors(parts))
    assignments: list[LayoutAssignment] = []
    for part in parts:
        has_warpgroups = part.warps.start % WARPGROUP_WARPS == 0
        if not has_warpgroups:
            _check_without_warpgroups(part)
        own_target = target if has_warpgroups else target.without("wgmma")
        selected = select_role_mechanisms(part.kernel, own_target, switches, mistakes, passed)
        assigned = assign_fragment_layouts(selected, mistakes)
        assignments.append(_rename_added_tiles(assigned, _list_buffer_names(part.kernel), used_names, part))
    shared = assign_shared_layouts(assignments, selected, mistakes)
    assignments = [
        replace(one, shared={n: s for n, s in shared.items() if n in _list_buffer_names(one.kernel)})
        for one in assignments
    ]
    made = tuple(
        RoleAssignment(part.name, part.warps.start, one, part.section)
        for part, one in zip(parts, assignments, strict=True)
    )
    used = dict.fromkeys(b for one in assignments for b in one.kernel.buffers)
    names = {buffer.name for buffer in used}
    allocated = dict.fromkeys(b for b in kernel.buffers if b.scope == "barrier")  # even if no role has anything to do
    return LayoutAssignment(
        replace(kernel, buffers=(*(used | allocated),)),
        "serial",
        {name: layout for one in assignments for name, layout in one.fragments.items()},
        shared,
        tuple(made for one in assignments for made in one.conversions),
        made,
        tuple((name, depth) for name, depth in versions if name in names),
    )


def _find_passed_tensors(parts: Sequence[ExplicitRole]) -> Iterator[str]:
    """Yield the names of tensors that one role writes and another reads, or writes in a later section. An arrival
    publishes what threads have written to a tensor, but not what TMA still writes there."""
    for writer, other in permutations(parts, 2):
        written = {b.name for s in writer.kernel.body for b in find_writes(s) if b.scope == "global"}
        touched = {b.name for s in other.kernel.body for b in find_reads(s)}
        if writer.section != other.section:
            touched |= {b.name for s in other.kernel.body for b in find_writes(s)}
        yield from written & touched


def _check_without_warpgroups(part: ExplicitRole) -> None:
    """Refuse what only whole warpgroups can do in a role that begins within one.

    Errors: `unsupported-operand`."""
    for op in tile.walk_statements(part.kernel.body):
        is_copy = isinstance(op, Copy) and {"tmem", "fragment"} == {region.buffer.scope for region in op.regions}
        if is_copy or (isinstance(op, Gemm) and op.wait == "wgmma"):
            raise_error(
                "unsupported-operand",
                "only whole warpgroups can do this",
                op.span,
                f"run by {describe_warps(part.warps)}, which begin within a warpgroup of four warps",
                help="let the role begin at a thread whose index is a multiple of 128",
            )


def _list_buffer_names(kernel: tile.Kernel) -> set[str]:
    return {b.name for b in kernel.buffers}


def _rename_added_tiles(
    assignment: LayoutAssignment, kernel_names: set[str], used_names: set[str], part: ExplicitRole
) -> LayoutAssignment:
    """Rename the tiles that passes added to a role whose names another role already uses; record all in
    `used_names`."""
    new_names: dict[str, str] = {}
    for buffer in assignment.kernel.buffers:
        if buffer.name not in kernel_names:
            new_names[buffer.name] = f"{buffer.name}.{part.name}" if buffer.name in used_names else buffer.name
            used_names.add(new_names[buffer.name])
    if all(old == new for old, new in new_names.items()):
        return assignment
    body = tuple(rename_buffers(s, new_names) for s in assignment.kernel.body)
    buffers = tuple(replace(b, name=new_names.get(b.name, b.name)) for b in assignment.kernel.buffers)
    fragments = {new_names.get(name, name): layout for name, layout in assignment.fragments.items()}
    return replace(assignment, kernel=replace(assignment.kernel, body=body, buffers=buffers), fragments=fragments)
