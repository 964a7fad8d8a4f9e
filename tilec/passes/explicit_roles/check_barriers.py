"""Deadlocks and wrong byte counts at the barriers of explicit roles, found by running them
(`explicit_roles.protocol`)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.types import INT32
from tilec.ops.synchronisation.barriers import AllocBarrier, Arrive, AwaitBarrier, CpAsyncArrive, ExpectTx
from tilec.passes.explicit_roles import protocol
from tilec.passes.explicit_roles.known_values import UnknownValue
from tilec.passes.layout.assign_layouts import LayoutAssignment, RoleAssignment
from tilec.support.diagnostics import CompileError, ErrorCollector, Label, raise_error


def check_barriers(kernel: tile.Kernel, assignment: LayoutAssignment, mistakes: ErrorCollector) -> None:
    """Refuse a kernel in which a role waits at a barrier for ever, or announced bytes are not the copied bytes. Not
    checked where control flow depends on data, or on several sizes.

    Errors: `missing-arrival`, `barrier-deadlock`, `transaction-bytes`."""
    roles = protocol.list_checkable_roles(assignment, mistakes)
    statements = [s for role in roles for s in tile.walk_statements(role.kernel.body) if isinstance(s, tile.TileOp)]
    _check_arrivals(protocol.find_allocations(kernel), statements)
    with suppress(UnknownValue):
        try:
            protocol.run_barriers(kernel, roles)
        except UnknownValue:
            _run_with_size(kernel, roles)


def _run_with_size(kernel: tile.Kernel, roles: Sequence[RoleAssignment]) -> None:
    """Run the barriers with an assumed value for the kernel's only scalar; do nothing where it has none or several.
    Several sizes may be related: not tried."""
    scalars = [param for param in kernel.params if isinstance(param, tile.Var) and param.dtype == INT32]
    if len(scalars) != 1:
        return
    try:
        protocol.run_barriers(kernel, roles, {scalars[0]: protocol.ASSUMED_SIZE})
    except CompileError as error:
        note = f"counted where {scalars[0].name} = {protocol.ASSUMED_SIZE:,}"
        raise CompileError(*(replace(d, notes=(*d.notes, note)) for d in error.diagnostics)) from None


def _check_arrivals(allocations: dict[str, AllocBarrier], statements: list[tile.TileOp]) -> None:
    """Refuse a wait for a barrier at which no role arrives, except one that drains a pipeline."""
    arrived = {
        protocol.barrier_name(s) for s in statements if isinstance(s, Arrive | CpAsyncArrive | ExpectTx) or s.commits
    }
    for op in statements:
        # A drain needs no arrival: no iteration may have filled a stage.
        if isinstance(op, AwaitBarrier) and protocol.barrier_name(op) not in arrived and op.drains is None:
            raise_error(
                "missing-arrival",
                f"no role arrives at {protocol.barrier_name(op)}, but this waits for it",
                op.span,
                "this wait never ends",
                secondary=(Label(allocations[protocol.barrier_name(op)].span, "allocated here"),),
                help=f"write T.barrier_arrive({protocol.barrier_name(op)}) after the work, also after a T.tma_copy",
            )
