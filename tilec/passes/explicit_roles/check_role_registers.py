"""Check of the registers that a kernel's roles request together (T.set_max_nreg)."""

from __future__ import annotations

from collections import Counter

from tilec.ir import tile
from tilec.ir.groups import WARP_THREADS, WARPGROUP_THREADS, WARPGROUP_WARPS, describe_warps
from tilec.ops.synchronisation.warpgroups import SetRegisters
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.support.diagnostics import Label, raise_error
from tilec.support.source import Span
from tilec.target.table import Target


def check_role_registers(assignment: LayoutAssignment, target: Target) -> None:
    """Refuse a kernel whose roles together request more registers than a multiprocessor has.

    A role that asks for more than there are waits for others to release as many, so for ever. A role that requests none
    counts with an equal share of them; without any request, nothing is refused. Errors: `too-many-registers`."""
    at_first = target.limit("registers_per_sm") // assignment.kernel.threads // 8 * 8
    requests: dict[str, tuple[int, Span]] = {}
    totals: Counter[int] = Counter()  # of each section
    last = max(part.section for part in assignment.roles)
    for part in assignment.roles:
        counts = [s for s in tile.walk_statements(part.kernel.body) if isinstance(s, SetRegisters)]
        most = max(counts, key=lambda op: op.count, default=None)
        threads = part.kernel.threads
        totals[part.section] += threads * (at_first if most is None else most.count)
        if most is None:
            continue
        requests[part.name] = most.count, most.span
        if threads == assignment.kernel.threads:
            continue
        if part.section < last:
            raise_error(
                "cross-role-operation",
                "all warps of the block work together again below, with the same number of registers",
                most.span,
                "changes the number of registers of some warps",
                help="remove it, or give the work below to one of the roles",
            )
        if part.first_warp % WARPGROUP_WARPS or threads % WARPGROUP_THREADS:
            raise_error(
                "cross-role-operation",
                "a warpgroup changes its number of registers as a whole",
                most.span,
                f"run by {describe_warps(range(part.first_warp, part.first_warp + threads // WARP_THREADS))} alone",
                help="remove it, or let a role be whole warpgroups of 128 threads",
            )
    limit, total = target.limit("registers_per_sm"), max(totals.values())
    if requests and total > limit:
        name, (count, span) = max(requests.items(), key=lambda item: item[1][0])
        others = tuple(Label(where, f"{n} for {other}") for other, (n, where) in requests.items() if other != name)
        raise_error(
            "too-many-registers",
            f"the roles request {total:,} registers, {target.name} has {limit:,}",
            span,
            f"{count} for each thread of {name}",
            secondary=others,
            notes=(
                f"without T.set_max_nreg a thread of this block has {at_first}; a warpgroup has {WARPGROUP_THREADS}",
            ),
            help="request fewer here, or fewer in other roles",
        )
