"""bank-conflict: two alias groups access shared memory at once, both in patterns that their layouts serve slowly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilec.driver.lints.registry import SCHEDULE, register_lint
from tilec.ir.tile import Parallel, TileOp, walk_statements
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.layout.shared.atoms import Sweep, compute_conflict_factor, find_shared_accesses
from tilec.passes.layout.shared.lane_addresses import find_conflict_factors as conflicts_of_nest
from tilec.passes.layout.shared.transpose_operands import is_operand_transposition
from tilec.passes.loop.build_problem import LoopProblem, PlannedLoop
from tilec.passes.state import KernelState
from tilec.sched.problem import Problem
from tilec.sched.schedule import Schedule
from tilec.support.diagnostics import Diagnostic, Label
from tilec.support.source import Span


@register_lint(SCHEDULE, "bank-conflict")
def find_bank_conflicts(work: KernelState) -> Iterator[Diagnostic]:
    """Yield the warnings of each explicit role, or of the whole kernel."""
    for assignment in work.assignment.kernels:
        yield from _find_conflicting_pairs(assignment, work.loops)


def _find_conflicting_pairs(assignment: LayoutAssignment, loops: Iterable[PlannedLoop]) -> Iterator[Diagnostic]:
    """Yield a warning for each pair of tiles that statements access at once with bank conflicts, at its worst place."""
    slow = _find_conflicted_tiles(assignment)
    together = [
        (stmt.span, stmt.span)
        for stmt in walk_statements(assignment.kernel.body)
        if isinstance(stmt, Parallel | TileOp)
    ]
    together += [
        pair for planned in loops for pair in _find_overlapping_statements(planned.loop, planned.solution.schedule)
    ]
    worst: dict[frozenset[str], tuple[float, Diagnostic]] = {}
    for first, second in together:
        for tile, ways in slow.get(first, {}).items():
            for other, others_ways in slow.get(second, {}).items():
                pair = frozenset((tile, other))
                if tile != other and ways + others_ways > worst.get(pair, (0.0,))[0]:
                    worst[pair] = ways + others_ways, _build_warning((tile, first, ways), (other, second, others_ways))
    yield from (found for _, found in worst.values())


def _build_warning(one: tuple[str, Span, float], another: tuple[str, Span, float]) -> Diagnostic:
    """Build the warning about two tiles; each comes with the factor by which its accesses are slowed down."""
    (tile, first, ways), (other, second, others_ways) = one, another
    return Diagnostic(
        "bank-conflict",
        f"{tile} and {other} are accessed at the same time and conflict in the banks of shared memory",
        Label(first, f"{tile} takes {ways:g} times as long as its bytes need"),
        (Label(second, f"and {other} {others_ways:g} times"),) if first != second else (),
        (f"{other} takes {others_ways:g} times as long",) if first == second else (),
        "index one of them along its rows, or make its rows multiples of 32 bytes",
        "warning",
    )


def _find_conflicted_tiles(assignment: LayoutAssignment) -> dict[Span, dict[str, float]]:
    """Return, by statement span, the tiles accessed with conflicts and the factor by which they slow it down. Nests
    count by the addresses of their lanes, other statements by their access pattern."""
    nests = [s for s in walk_statements(assignment.kernel.body) if isinstance(s, Parallel)]
    found = {nest.span: conflicts_of_nest(nest, assignment) for nest in nests}
    inside = {s.span for nest in nests for s in walk_statements(nest.body)}
    turning = {s.span for s in walk_statements(assignment.kernel.body) if is_operand_transposition(s)}
    for access in find_shared_accesses(assignment.kernel, assignment.fragments, assignment.nest_layout):
        if access.span in inside or (access.span in turning and isinstance(access.pattern, Sweep)):
            continue
        found.setdefault(access.span, {})[access.tile] = compute_conflict_factor(
            assignment.shared[access.tile], access.pattern
        )
    # Names with a dot are the compiler's own.
    return {
        span: {tile: ways for tile, ways in tiles.items() if ways >= 2 and "." not in tile}
        for span, tiles in found.items()
    }


def _find_overlapping_statements(loop: LoopProblem, schedule: Schedule) -> Iterator[tuple[Span, Span]]:
    """Yield pairs of statements that hold a shared memory port in the same rows of the reservation table."""
    held = [_find_shared_rows(loop.problem, schedule, op) for op in range(len(loop.statements))]
    for i, rows in enumerate(held):
        for j in range(i):
            if any(a < d and c < b for a, b in rows for c, d in held[j]):
                yield loop.statements[j].span, loop.statements[i].span


def _find_shared_rows(problem: Problem, schedule: Schedule, op: int) -> list[tuple[int, int]]:
    rows = []
    for use in problem.ops[op].uses:
        if problem.slots[use.slot].name.startswith("tp_smem") and use.cycles:
            first = (schedule.start[op] + use.offset) % schedule.ii
            end = first + min(use.cycles, schedule.ii)
            rows += [(first, min(end, schedule.ii)), (0, end - schedule.ii)]
    return [(first, end) for first, end in rows if end > first]
