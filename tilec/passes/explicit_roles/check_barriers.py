"""Deadlocks and wrong byte counts at the barriers of explicit roles, found by running them
(`explicit_roles.protocol`)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.types import INT32
from tilec.ops.synchronisation.barriers import AllocBarrier, Arrive, AwaitBarrier, CpAsyncArrive, ExpectTx
from tilec.passes.explicit_roles.known_values import UnknownValue
from tilec.passes.explicit_roles.protocol import (
    ASSUMED_SIZE,
    Role,
    barrier_name,
    find_allocations,
    list_checkable_roles,
    run_barriers,
)
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.support.diagnostics import CompileError, ErrorCollector, Label, raise_error


def check_barriers(kernel: tile.Kernel, assignment: LayoutAssignment, mistakes: ErrorCollector) -> None:
    """Check that no role waits for ever at a barrier, and that expected bytes are the bytes that come.

    Errors: `missing-arrival`, `barrier-deadlock`, `transaction-bytes`."""
    roles = list_checkable_roles(assignment, mistakes)
    statements = [s for role in roles for s in tile.walk_statements(role.kernel.body) if isinstance(s, tile.TileOp)]
    _check_arrivals(find_allocations(kernel), statements)
    with suppress(UnknownValue):
        try:
            run_barriers(kernel, roles)
        except UnknownValue:
            _run_with_size(kernel, roles)


def _run_with_size(kernel: tile.Kernel, roles: Sequence[Role]) -> None:
    """Run the barriers with a value for the only size known at launch. Several sizes may be related, so these are not
    tried."""
    scalars = [param for param in kernel.params if isinstance(param, tile.Var) and param.dtype == INT32]
    if len(scalars) != 1:
        return
    try:
        run_barriers(kernel, roles, {scalars[0]: ASSUMED_SIZE})
    except CompileError as error:
        note = f"counted where {scalars[0].name} = {ASSUMED_SIZE:,}"
        raise CompileError(*(replace(d, notes=(*d.notes, note)) for d in error.diagnostics)) from None


def _check_arrivals(allocations: dict[str, AllocBarrier], statements: list[tile.TileOp]) -> None:
    """Refuse a wait for a barrier at which no role arrives."""
    arrived = {barrier_name(s) for s in statements if isinstance(s, Arrive | CpAsyncArrive | ExpectTx) or s.commits}
    for op in statements:
        # A drain needs no arrival: no iteration may have filled a stage.
        if isinstance(op, AwaitBarrier) and barrier_name(op) not in arrived and op.drains is None:
            raise_error(
                "missing-arrival",
                f"no role arrives at {barrier_name(op)}, but this waits for it",
                op.span,
                "this wait never ends",
                secondary=(Label(allocations[barrier_name(op)].span, "allocated here"),),
                help=f"write T.barrier_arrive({barrier_name(op)}) after the work, also after a T.tma_copy",
            )
